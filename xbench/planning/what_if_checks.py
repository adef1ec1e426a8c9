"""Checks of a record before it is planned. Each raises ValueError with the fault, without the record's name.

Reading a record refuses infinite times. These checks refuse times that no measurement gives, and parts that are not of
one measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.planning.cost import CostCurve
from xbench.planning.step import StepModel
from xbench.planning.what_if_link import MAX_S, MIN_S
from xbench.records import Contention, CostModel, FabricRecord, Layer, StepTimes

MAX_SLOWDOWN = 1e6
"""Largest valid slow-down of computation by a collective."""


def check_times(layers: Sequence[Layer], times: StepTimes, cost: CostModel) -> None:
    """Raise ValueError for times that no measurement gives. Infinite times are refused when a record is read."""
    if cost.world_size < 2:
        raise ValueError(f"its cost model has a world size of {cost.world_size}, and an all-reduce needs 2")
    named = {
        "forward_s": times.forward_s,
        "backward_s": times.backward_s,
        "optimizer_s": times.optimizer_s,
        "uninstrumented_step_s": times.uninstrumented_step_s,
        "cost_model.alpha_s": cost.alpha_s,
        "cost_model.beta_s_per_byte": cost.beta_s_per_byte,
        **{f"{layer.name}.forward_s": layer.forward_s for layer in layers},
        **{f"{tensor.name}.ready_s": tensor.ready_s for layer in layers for tensor in layer.tensors},
        **{f"the all-reduce of {point.nbytes} bytes": point.transfer_s for point in cost.points},
    }
    for name, value in named.items():
        if not 0 <= value <= MAX_S:
            raise ValueError(f"{name} is {value:g}, out of range 0 to {MAX_S:g}")
    for point in cost.points:
        if point.nbytes <= 0 or point.transfer_s <= 0:
            raise ValueError(
                f"an all-reduce of {point.nbytes} bytes in {point.transfer_s:g} s: both must be above zero"
            )


def check_origin(cost: CostModel, fabric: FabricRecord) -> None:
    """Raise ValueError for a cost model that is not of all-reduces between the workers of this fabric."""
    if cost.collective != "all_reduce":
        raise ValueError(f"its cost model is of {cost.collective}, and all_reduce is needed")
    if (cost.world_size, cost.backend) != (fabric.world_size, fabric.backend):
        raise ValueError(
            f"its cost model is of {cost.world_size} workers over {cost.backend} and its fabric has "
            f"{fabric.world_size} over {fabric.backend}: they are not of one measurement"
        )


def check_ring(fabric: FabricRecord) -> None:
    """Raise ValueError for collectives of a topology other than a ring: they cannot be converted to another link."""
    topology = fabric.spec.partition("topology=")[2].partition(",")[0]
    if fabric.label == "emulated" and topology not in ("", "ring"):
        raise ValueError(f"it was emulated with the topology {topology}, and only a ring is carried over")


def check_contention(both: Contention | None) -> None:
    """Raise ValueError for times and slow-downs that no measurement gives."""
    if both is None:
        return
    named = {name: getattr(both, name) for name in ("launch_s", "hook_s", "copy_s_per_byte", "meeting_s", "rest_s")}
    for name, value in named.items():
        if not 0 <= value <= MAX_S:
            raise ValueError(f"{name} is {value:g}, out of range 0 to {MAX_S:g}")
    for point in both.points:
        where = f"of {point.nbytes} bytes"
        if point.in_flight not in (1, 2):
            raise ValueError(f"a point {where} has {point.in_flight} in flight, and it is 1 or 2 that are measured")
        for name, value, low, high in (
            ("alone_s", point.alone_s, MIN_S, MAX_S),
            ("loaded_s", point.loaded_s, MIN_S, MAX_S),
            ("compute_slowdown", point.compute_slowdown, 1 / MAX_SLOWDOWN, MAX_SLOWDOWN),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} {where} is {value:g}, out of range {low:g} to {high:g}")


def check_sizes(layers: Sequence[Layer], buffer_bytes: Sequence[int]) -> None:
    """Raise ValueError for a tensor or a buffer of negative size, and for a duplicate name."""
    names = [tensor.name for layer in layers for tensor in layer.tensors]
    if len(set(names)) < len(names):
        raise ValueError(f"the tensor {next(name for name in names if names.count(name) > 1)!r} stands twice")
    named = {tensor.name: tensor.bytes for layer in layers for tensor in layer.tensors}
    for name, nbytes in [*named.items(), *(("a dtype's buffers", nbytes) for nbytes in buffer_bytes)]:
        if nbytes < 0:
            raise ValueError(f"{name}: {nbytes} bytes are below zero")


def check_curve(cost: CostModel) -> None:
    """Raise ValueError for a cost model that is not a valid curve: times that fall, or are below zero."""
    try:
        CostCurve.of(cost)
    except ValueError as error:
        raise ValueError(f"its cost model: {error}") from None


def check_step(step: StepModel) -> None:
    """Raise ValueError for a step without compute time or without gradient bytes."""
    if not step.compute_s > 0:
        raise ValueError(f"its step took {step.compute_s:g} s, and must have taken time")
    if not step.grad_bytes > 0:
        raise ValueError("its gradients have no bytes: nothing to send")
