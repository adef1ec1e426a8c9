"""From a profile and a cost model to the plan of each mode: its buckets and the step to expect of them.

`mgwfbp` decides with the straight line, as its paper does; every prediction uses T as measured (`Curve.of`), so that
plans compare on the same link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from xbench.errors import unknown
from xbench.planning import merge
from xbench.planning.cost import Curve, FloatArray, Transfer
from xbench.planning.gradients import Gradient, require_ready_order
from xbench.planning.simulate import Buckets, simulate
from xbench.records import CostModel, Plan
from xbench.units import format_percent

PLANNED_MODES = ("compute", "ddp", "ddp-tuned", "single", "wfbp", "mgwfbp", "optimal")
NEED_COST = frozenset({"ddp-tuned", "mgwfbp", "optimal"})
"""Modes whose buckets depend on the link."""

EARLY_UPDATE = frozenset({"single", "wfbp", "mgwfbp", "optimal"})
"""Modes on our engine, whose optimizer updates what has arrived while the rest travels."""

_MIB = 1024 * 1024


def make_plan(
    mode: str,
    gradients: Sequence[Gradient],
    cost: CostModel | None,
    *,
    forward_s: float,
    backward_s: float,
    optimizer_s: float,
) -> Plan:
    """The plan of one single-job mode, with its predicted step and timeline.

    Without a cost model, `ddp`, `single` and `wfbp` still have buckets; their prediction then takes communication as
    free, and the note says so. Raises SpecError for an unknown mode, and ValueError when the mode needs a cost model
    and there is none, or the gradients are not in ready order.
    """
    if mode not in PLANNED_MODES:
        raise unknown("mode", mode, PLANNED_MODES, listing="xbench modes")
    if mode in NEED_COST and cost is None:
        raise ValueError(f"a cost model is needed to plan {mode!r}: its buckets depend on the link")
    if mode != "compute":
        require_ready_order(gradients)
    curve = Curve.of(cost) if cost is not None else _free

    def step_s(buckets: Buckets) -> float:
        return simulate(
            gradients,
            buckets,
            curve,
            forward_s=forward_s,
            backward_s=backward_s,
            optimizer_s=optimizer_s,
            early_update=True,
        ).step_s

    buckets = _buckets(mode, gradients, cost, curve)
    step = simulate(
        gradients,
        buckets,
        curve,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        single_after_backward=mode == "single",
        early_update=mode in EARLY_UPDATE,
    )
    note: str | None = None
    if cost is None and mode != "compute":
        note = "no cost model: communication is taken as free"
    elif mode == "mgwfbp":
        gap = step.step_s / step_s(merge.optimal(gradients, curve)) - 1.0 if step.step_s > 0 else 0.0
        note = f"the paper's greedy: predicted step {format_percent(max(0.0, gap))} above the exact optimum's"
    elif mode in ("ddp", "ddp-tuned"):
        note = "from the second step on: DDP rebuilds its buckets after the first"
    return Plan(
        mode=mode,
        buckets=[[gradients[index].name for index in bucket] for bucket in buckets],
        bucket_bytes=[sum(gradients[index].nbytes for index in bucket) for bucket in buckets],
        predicted_step_s=step.step_s,
        predicted_exposed_s=step.exposed_s,
        timeline=step.timeline,
        note=note,
    )


def make_plans(
    gradients: Sequence[Gradient],
    cost: CostModel | None,
    modes: Sequence[str] | None = None,
    /,
    *,
    forward_s: float,
    backward_s: float,
    optimizer_s: float,
) -> dict[str, Plan]:
    """A plan by mode, in the order of `modes`; None: every mode that can be planned with what is known.

    Raises as `make_plan` does.
    """
    if modes is None:
        modes = [mode for mode in PLANNED_MODES if cost is not None or mode not in NEED_COST]
    return {
        mode: make_plan(
            mode, gradients, cost, forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s
        )
        for mode in modes
    }  # fmt: skip


def bucket_caps_mib(plan: Plan, dtypes: Mapping[str, str] | None = None) -> list[float]:
    """`bucket_cap_mb_list` [MiB] with which DistributedDataParallel rebuilds exactly the plan's buckets.

    DDP turns each entry into int(cap · 2²⁰) bytes and, once it has rebuilt (after its first step; it never does with
    `find_unused_parameters` on a graph that is not static), walks the gradients in the order in which they became
    ready and closes a bucket when its bytes reach the cap. A cap of the bucket's own bytes therefore closes it with
    its last gradient and no earlier, in whatever order its members come; bytes over 2²⁰ are exact in a float.

    Every dtype walks the list from its start, so one list cannot describe two dtypes. `dtypes` (parameter name to
    dtype) says which is which: the caps are then those of the dtype with the most bytes, and the others make do, as
    the plan of `ddp-tuned` does. Empty buckets are left out: DDP takes their tensors along with the next. An empty
    list means that there is nothing to tune, which is also how DDP reads it.

    Raises KeyError when `dtypes` misses a parameter of the plan.
    """
    kinds = [dtypes[names[0]] if dtypes is not None else "" for names in plan.buckets]
    return _caps_mib(kinds, plan.bucket_bytes)


def _buckets(mode: str, gradients: Sequence[Gradient], cost: CostModel | None, curve: Transfer) -> Buckets:
    if mode == "single":
        return merge.single(gradients)
    if mode == "wfbp":
        return merge.wfbp(gradients)
    if mode == "ddp":
        return merge.ddp(gradients)
    if mode == "mgwfbp" and cost is not None:
        return merge.mgwfbp(gradients, cost.alpha_s, cost.beta_s_per_byte)
    if mode == "optimal":
        return merge.optimal(gradients, curve)
    if mode == "ddp-tuned":
        return _tuned(gradients, merge.optimal(gradients, curve))
    return []


def _tuned(gradients: Sequence[Gradient], wanted: Buckets) -> Buckets:
    """What DDP makes of the wanted buckets: those themselves for one dtype, see `bucket_caps_mib` for several."""
    kinds = [gradients[bucket[0]].dtype for bucket in wanted]
    caps = _caps_mib(kinds, [sum(gradients[index].nbytes for index in bucket) for bucket in wanted])
    return merge.ddp_assignment(gradients, [int(cap * _MIB) for cap in caps]) if caps else merge.ddp(gradients)


def _caps_mib(kinds: Sequence[str], bucket_bytes: Sequence[int]) -> list[float]:
    """Caps from each bucket's dtype and bytes: those of the dtype with the most bytes."""
    total: dict[str, int] = {}
    for kind, nbytes in zip(kinds, bucket_bytes, strict=True):
        total[kind] = total.get(kind, 0) + nbytes
    heaviest = max(total, key=lambda kind: total[kind], default="")
    return [nbytes / _MIB for kind, nbytes in zip(kinds, bucket_bytes, strict=True) if kind == heaviest and nbytes > 0]


def _free(nbytes: FloatArray, /) -> FloatArray:
    return np.zeros_like(nbytes)
