"""From a profile and a cost model to the plan of each mode: its buckets and the step to expect of them.

`mgwfbp` decides with the straight line, as its paper does; every prediction uses T as measured (`Curve.of`), so that
plans compare on the same link.

Where contention was measured, every prediction is made of the undisturbed gradients, which the simulator then delays.
Where it was not, but ready times were measured under traffic (`loaded`), schedules that overlap backward are predicted
from those. Either way `mgwfbp`, `optimal` and `ddp-tuned` choose their buckets by the loaded ready times if there are
any: their planners know no contention, so the ready times must.

`dear` and `priority` let gradients travel on into the next forward pass (`next_forward`), so their plans need the
profile's layers as well. `auto` is one of them only where `overlap` allows it.

DDP is predicted with what it does beside its collectives: it broadcasts the model's buffers (batch-norm statistics)
before forward, one collective a dtype, and it copies every gradient out of its bucket again when all have arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xbench.errors import unknown
from xbench.planning import merge
from xbench.planning.auto import Candidate, Search
from xbench.planning.contention import Contention
from xbench.planning.cost import Curve
from xbench.planning.gradients import Gradient, require_ready_order
from xbench.planning.next_forward import from_forward
from xbench.planning.next_forward_search import NextForward, NextForwardSearch, worth_s
from xbench.planning.simulate import Buckets, Step, simulate
from xbench.planning.step import StepModel
from xbench.records import CostModel, Layer, Plan
from xbench.spec import Overlap
from xbench.units import format_percent

PLANNED_MODES = ("compute", "ddp", "ddp-tuned", "single", "wfbp", "mgwfbp", "optimal", "auto")
"""Modes whose next forward pass waits for all gradients."""

NEXT_FORWARD = ("dear", "priority")
"""Modes each layer of whose next forward pass waits for its own; planned where the layers are known."""

NEED_COST = frozenset({"ddp-tuned", "mgwfbp", "optimal", "auto", *NEXT_FORWARD})
"""Modes whose buckets depend on the link."""

EARLY_UPDATE = frozenset({"single", "wfbp", "mgwfbp", "optimal", "auto"})
"""Modes on our engine, whose optimizer updates what has arrived while the rest travels."""

DDP_REDUCER = frozenset({"ddp", "ddp-tuned"})
"""Modes on DDP's own reducer."""

_QUIET = frozenset({"compute", "single"})
"""Modes whose gradients do not travel during backward."""

_FREE = "exact for a link that costs computation nothing"
"""The arithmetic that makes `optimal` the optimum."""

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Planner:
    """All that plans of one step on one link are made of. Raises ValueError where gradients are not in ready order.

    `cost` None: communication is taken as free, and modes whose buckets depend on the link have no plan.
    `buffer_bytes`: what DDP broadcasts before each forward, one entry a dtype [B]. `layers` are the profile's; None:
    the modes of `NEXT_FORWARD` cannot be planned. `overlap`: whether `auto` may be one of those. Not `thorough`: their
    search is a short one.
    """

    step: StepModel
    cost: CostModel | None
    contention: Contention | None = None
    buffer_bytes: tuple[int, ...] = ()
    layers: tuple[Layer, ...] | None = None
    overlap: Overlap = "backward"
    thorough: bool = True

    @property
    def modes(self) -> list[str]:
        """The modes that can be planned with what is known."""
        known = PLANNED_MODES if self.layers is None else (*PLANNED_MODES, *NEXT_FORWARD)
        return [mode for mode in known if self.cost is not None or mode not in NEED_COST]

    def plans(self, modes: Sequence[str] | None = None) -> dict[str, Plan]:
        """A plan by mode, in the order of `modes`; None: every mode that can be planned. Raises as `plan` does."""
        return {mode: self.plan(mode) for mode in (self.modes if modes is None else modes)}

    def plan(self, mode: str, buckets: Buckets | None = None) -> Plan:
        """The plan of one single-job mode with its predicted step and timeline, for these `buckets` if given.

        Without a cost model, `ddp`, `single` and `wfbp` still have buckets; their prediction then takes communication
        as free, and the note says so. Raises SpecError for an unknown mode, and ValueError when the mode needs a cost
        model or layers and there are none.
        """
        if mode not in PLANNED_MODES and mode not in NEXT_FORWARD:
            raise unknown("mode", mode, (*PLANNED_MODES, *NEXT_FORWARD), listing="xbench modes")
        if mode in NEED_COST and self.cost is None:
            raise ValueError(f"a cost model is needed to plan {mode!r}: its buckets depend on the link")
        if mode != "compute":
            require_ready_order(self.step.gradients)
        if mode in NEXT_FORWARD:
            return self.carried(self._best(mode), mode)
        if buckets is None and mode == "auto" and self.overlap == "forward":
            return self.carried(self.best())
        if buckets is None:
            buckets = self._buckets(mode)
        step = self.simulate(mode, buckets)
        names = [gradient.name for gradient in self.step.gradients]
        return Plan(
            mode=mode,
            buckets=[[names[index] for index in bucket] for bucket in buckets],
            bucket_bytes=[sum(self.step.gradients[index].nbytes for index in bucket) for bucket in buckets],
            predicted_step_s=step.step_s,
            predicted_exposed_s=max(0.0, step.step_s - self.step.compute_s),
            timeline=step.timeline,
            note=self._note(mode, step.step_s),
        )

    def carried(self, candidate: Candidate, mode: str = "auto") -> Plan:
        """The plan of `mode` that a candidate makes, with its prediction. Raises ValueError as `plan` does."""
        if candidate.carrier is None:
            return self.plan(mode, candidate.buckets)
        step = self.step_of(candidate)
        names = [gradient.name for gradient in self.step.gradients]
        return Plan(
            mode=mode,
            buckets=[[names[index] for index in bucket] for bucket in candidate.buckets],
            bucket_bytes=[sum(self.step.gradients[index].nbytes for index in bucket) for bucket in candidate.buckets],
            predicted_step_s=step.step_s,
            predicted_exposed_s=max(0.0, step.step_s - self.step.compute_s),
            timeline=from_forward(step),
            note=candidate.name if mode == candidate.carrier else f"carried by {candidate.carrier}: {candidate.name}",
            parts=candidate.parts,
            carrier=None if mode == candidate.carrier else candidate.carrier,
        )

    def best(self) -> Candidate:
        """The best of `auto`: of the search, and of `NEXT_FORWARD` where `overlap` allows it. Raises ValueError."""
        searched = self.search().best()  # whose time is without the forward pass
        found = [replace(searched, step_s=self.simulate("auto", searched.buckets).step_s)]
        if self.overlap == "forward" and self.layers is not None:
            found += [self._best(mode) for mode in NEXT_FORWARD]
        return min(found, key=self._worth_s)

    def variations(self) -> list[Candidate]:
        """What a trial may try beside the best `priority`; see `NextForwardSearch.variations`. Raises ValueError."""
        return [self._candidate(found) for found in self._next_forward.variations()]

    def step_of(self, candidate: Candidate) -> Step:
        """The step of a candidate for `auto`; that of a carrier is counted from the start of backward."""
        if candidate.carrier is None:
            return self.simulate("auto", candidate.buckets)
        found = self._next_forward
        buckets = _translated(candidate.buckets, self.step.gradients, found.step.gradients)
        return found.step_of(candidate.carrier, buckets, candidate.parts)

    def _best(self, mode: str) -> Candidate:
        """The best found of a mode of `NEXT_FORWARD`."""
        return self._candidate(self._next_forward.dear() if mode == "dear" else self._next_forward.priority())

    def _candidate(self, found: NextForward) -> Candidate:
        buckets = _translated(found.buckets, self._next_forward.step.gradients, self.step.gradients)
        return Candidate(found.name, buckets, found.step.step_s, found.mode, found.parts)

    @cached_property
    def _next_forward(self) -> NextForwardSearch:
        if self.layers is None or self.cost is None:
            raise ValueError("the layers of a profile and a cost model are needed to plan for the next forward pass")
        return NextForwardSearch(self.layers, self.step, self.cost, contention=self.contention, thorough=self.thorough)

    def _worth_s(self, candidate: Candidate) -> float:
        launches = 2 * len(candidate.buckets) if candidate.parts is None else len(candidate.parts.order)
        return worth_s(candidate.step_s, launches)

    def simulate(self, mode: str, buckets: Buckets) -> Step:
        """The step that `mode` makes with these buckets of `step.gradients`."""
        step = self.step
        if self.contention is None and step.loaded is not None and mode not in _QUIET:
            buckets = _translated(buckets, step.gradients, step.loaded)
            step = replace(step, gradients=step.loaded, backward_s=max(step.backward_s, step.loaded[-1].ready_s))
        forward_s, optimizer_s = step.forward_s, step.optimizer_s
        if buckets and self.contention is not None:
            forward_s += self.contention.meeting_s
        if mode in DDP_REDUCER:
            forward_s += sum(self._curve(float(nbytes)) for nbytes in self.buffer_bytes)
            if self.contention is not None:
                optimizer_s += self.contention.copy_s_per_byte * step.grad_bytes
        return simulate(
            replace(step, forward_s=forward_s, optimizer_s=optimizer_s),
            buckets,
            self._curve,
            single_after_backward=mode == "single",
            early_update=mode in EARLY_UPDATE,
            contention=self.contention,
        )

    @cached_property
    def _curve(self) -> Curve:
        return Curve.of(self.cost) if self.cost is not None else Curve.line(0.0, 0.0)

    @cached_property
    def _exact(self) -> Buckets:
        """The exact plan, as indices of the gradients that planning looks at: three modes ask for it."""
        return merge.optimal(self.step.loaded or self.step.gradients, self._curve)

    def _buckets(self, mode: str) -> Buckets:
        quiet = self.step.gradients
        gradients = self.step.loaded or quiet
        if mode == "single":
            return merge.single(quiet)
        if mode == "wfbp":
            return merge.wfbp(quiet)
        if mode == "ddp":
            return merge.ddp(quiet)
        if self.cost is None or mode == "compute":
            return []
        if mode == "mgwfbp":
            found = merge.mgwfbp(gradients, self.cost.alpha_s, self.cost.beta_s_per_byte)
        elif mode == "optimal":
            found = self._exact
        elif mode == "ddp-tuned":
            found = _tuned(gradients, self._exact)
        else:
            return self.search().best().buckets
        return _translated(found, gradients, quiet)

    def search(self) -> Search:
        """The search behind `auto`. Raises ValueError without a cost model."""
        if self.cost is None:
            raise ValueError("a cost model is needed to plan 'auto': its buckets depend on the link")
        return Search(
            self.step.gradients,
            self.cost,
            backward_s=self.step.backward_s,
            optimizer_s=self.step.optimizer_s,
            contention=self.contention,
            others=[(mode, self._buckets(mode)) for mode in ("optimal", "mgwfbp") if self.step.loaded is not None],
        )

    def _note(self, mode: str, step_s: float) -> str | None:
        if self.cost is None and mode != "compute":
            return "no cost model: communication is taken as free"
        if mode == "mgwfbp":
            best_s = self.simulate("optimal", self._buckets("optimal")).step_s
            gap = step_s / best_s - 1.0 if best_s > 0 else 0.0
            side = "below" if gap < 0 else "above"
            return f"the paper's greedy: predicted step {format_percent(abs(gap))} {side} that of optimal, {_FREE}"
        if mode == "optimal":
            return f"{_FREE}; the predicted step counts what it costs" if self.contention is not None else _FREE
        if mode in DDP_REDUCER:
            return "from the second step on: DDP rebuilds its buckets after the first"
        return None


def make_plan(
    mode: str,
    gradients: Sequence[Gradient],
    cost: CostModel | None,
    *,
    forward_s: float,
    backward_s: float,
    optimizer_s: float,
) -> Plan:
    """`Planner.plan` for a step of these parts without contention. Raises as it does."""
    return Planner(StepModel(tuple(gradients), forward_s, backward_s, optimizer_s), cost).plan(mode)


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
    """`Planner.plans` for a step of these parts without contention. Raises as it does."""
    return Planner(StepModel(tuple(gradients), forward_s, backward_s, optimizer_s), cost).plans(modes)


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


def _translated(buckets: Buckets, of: Sequence[Gradient], to: Sequence[Gradient]) -> Buckets:
    """Buckets of one order of the same gradients as buckets of another."""
    place = {gradient.name: index for index, gradient in enumerate(to)}
    return [[place[of[index].name] for index in bucket] for bucket in buckets]


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
