"""Measured inputs of plans, converted to a device that takes another time to compute.

One factor scales every measured compute time, and the host's own costs of communication (launches, hooks, copies into
buckets). Slow-downs between collectives and computation keep their ratios, because they were not measured on the other
device. The wait for input stays: the loader is on the host.
"""

from __future__ import annotations

from typing import TypeVar

from xbench import records
from xbench.planning.contention import is_launch_bound
from xbench.records import Interval, Layer, StepTimes
from xbench.records.parts import Part

P = TypeVar("P", bound=Part)

COMPUTED = ("accumulate_s", "forward_s", "backward_s", "optimizer_s")
WHOLE = ("uninstrumented_step_s", "uninstrumented_ci95", "step_s", "step_ci95")


def scaled_layer(layer: Layer, factor: float) -> Layer:
    """The layer on a device that takes `factor` times as long."""
    tensors = [_scaled(tensor, factor, "ready_s", "ready_loaded_s", "ready_loaded_each_s") for tensor in layer.tensors]
    return _scaled(layer, factor, "forward_s", "backward_s", "ready_s").model_copy(update={"tensors": tensors})


def scaled_times(times: StepTimes, factor: float) -> StepTimes:
    """The step's times, with their intervals, on a device that takes `factor` times as long. Input takes as before."""
    computed_s = sum(getattr(times, name) for name in COMPUTED)
    whole = (times.input_s + factor * computed_s) / (times.input_s + computed_s) if times.input_s else factor
    return _scaled(_scaled(times, factor, *COMPUTED), whole, *WHOLE)


def scaled_contention(was: records.Contention, factor: float) -> records.Contention:
    """Launches, hooks, copies and meetings `factor` times as long; slow-downs as measured.

    The host of a GPU stays the same. Its step may become launch-bound beside a faster device, or the reverse.
    """
    if was.host_step_s is not None and was.device_step_s is not None:
        device_step_s = was.device_step_s * factor
        bound = is_launch_bound(was.host_step_s, device_step_s)
        return was.model_copy(update={"device_step_s": device_step_s, "launch_bound": bound})
    return _scaled(was, factor, "launch_s", "hook_s", "copy_s_per_byte", "meeting_s")


def _scaled(part: P, factor: float, *names: str) -> P:
    """The part of a record with these times, or intervals of times, multiplied by `factor`."""

    def scaled(value: float | Interval | None) -> float | Interval | None:
        if isinstance(value, tuple):
            return (value[0] * factor, value[1] * factor)
        return None if value is None else value * factor

    return part.model_copy(update={name: scaled(getattr(part, name)) for name in names})
