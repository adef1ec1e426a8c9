"""What-if for another device: one factor scales every measured compute time, in the form of a record.

Layers, the step and the host's own costs of communication (launches, hooks, copies into buckets) are scaled. Slow-downs
between collectives and computation keep their ratios, because they were not measured on the other device.
"""

from __future__ import annotations

from xbench.records import Contention, Layer, StepTimes


def scaled_layer(layer: Layer, factor: float) -> Layer:
    """The layer on a device that takes `factor` times as long."""
    tensors = [
        tensor.model_copy(
            update={
                "ready_s": tensor.ready_s * factor,
                "ready_loaded_s": None if tensor.ready_loaded_s is None else tensor.ready_loaded_s * factor,
            }
        )
        for tensor in layer.tensors
    ]
    times = {name: getattr(layer, name) * factor for name in ("forward_s", "backward_s", "ready_s")}
    return layer.model_copy(update={**times, "tensors": tensors})


def scaled_times(times: StepTimes, factor: float) -> StepTimes:
    """The step's times, with their intervals, on a device that takes `factor` times as long."""
    names = ("forward_s", "backward_s", "optimizer_s", "step_s", "uninstrumented_step_s")
    update: dict[str, object] = {name: getattr(times, name) * factor for name in names}
    for name in ("step_ci95", "uninstrumented_ci95"):
        low, high = getattr(times, name)
        update[name] = (low * factor, high * factor)
    return times.model_copy(update=update)


def scaled_contention(was: Contention, factor: float) -> Contention:
    """Launches, hooks, copies and meetings `factor` times as long; slow-downs as measured."""
    names = ("launch_s", "hook_s", "copy_s_per_byte", "meeting_s")
    return was.model_copy(update={name: getattr(was, name) * factor for name in names})
