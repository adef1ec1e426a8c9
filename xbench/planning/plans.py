"""Plans of each mode from a profile and a cost model: buckets and the predicted step (docs/planner.md).

`mgwfbp` decides with the straight line, as its paper does. Every prediction uses T as measured (`CostCurve.of`), so
plans compare on the same link.

With measured contention, every prediction starts from the undisturbed gradients, and the simulator delays them. Without
it, schedules that overlap backward use the ready times under traffic (`loaded`) where these were measured.

Two costs of DDP beside its collectives are predicted. It broadcasts the model's buffers (batch-norm statistics) before
forward, with one collective per dtype. It also copies every gradient out of its bucket after all have arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xbench.errors import unknown
from xbench.modes import (
    EXACT,
    MODES,
    ModeInfo,
    candidate_modes,
    mode_info,
    next_forward_modes,
    planned_modes,
    waiting_modes,
)
from xbench.planning import merge
from xbench.planning.auto import Candidate, Search
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.planning.next_forward import from_forward
from xbench.planning.next_forward_search import NextForwardSearch, worth_s
from xbench.planning.simulate import Buckets, Step, simulate
from xbench.planning.step import Gradient, StepModel, require_ready_order
from xbench.records import CostModel, Layer, Plan, Slice, Timeline
from xbench.registry import imported
from xbench.units import format_percent

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Planner:
    """Inputs of all plans of one step on one link. Raises ValueError where gradients are not in ready order.

    Without a `cost`, communication is assumed free, and modes whose buckets depend on the link have no plan.
    `buffer_bytes` [B]: buffers that DDP broadcasts before each forward pass, one entry per dtype. `layers` are the
    profile's; without them, modes of the next forward pass cannot be planned. `halves`: costs of a reduce-scatter and
    an all-gather; None takes half of an all-reduce for each.
    """

    step: StepModel
    cost: CostModel | None
    contention: Contention | None = None
    buffer_bytes: tuple[int, ...] = ()
    layers: tuple[Layer, ...] | None = None
    halves: tuple[CostModel, CostModel] | None = None

    @property
    def modes(self) -> list[str]:
        """The modes that are planned with the given inputs unless some are named."""
        known = waiting_modes() + (next_forward_modes() if self._may_put_off else ())
        return [mode for mode in known if self.cost is not None or not MODES.entry(mode).needs_link]

    @property
    def _may_put_off(self) -> bool:
        """True if updates may wait for the next forward pass, and the inputs suffice to plan it."""
        return self.layers is not None and not self.step.updates_together

    def plans(self, modes: Sequence[str] | None = None) -> dict[str, Plan]:
        """A plan by mode, in the order of `modes`; None: every mode that can be planned. Raises as `plan` does."""
        return {mode: self.plan(mode) for mode in (self.modes if modes is None else modes)}

    def plan(self, mode: str, buckets: Buckets | None = None) -> Plan:
        """The plan of one single-job mode with its predicted step and timeline, for these `buckets` if given.

        Without a cost model, `ddp`, `single` and `wfbp` still have buckets; their prediction then takes communication
        as free, and the note says so. Raises SpecError for an unknown mode, and ValueError when the mode needs a cost
        model or layers and there are none.
        """
        if mode not in planned_modes():
            raise unknown("mode", mode, planned_modes(), listing="xbench list modes")
        info = MODES.entry(mode)
        if info.needs_link and self.cost is None:
            raise ValueError(f"a cost model is needed to plan {mode!r}: its buckets depend on the link")
        if info.reducer != "none":
            require_ready_order(self.step.gradients)
        chosen = buckets if buckets is not None and not info.puts_off else self._chosen(info)
        if isinstance(chosen, Candidate):
            return self.carried(chosen, mode)
        step = self.simulate(mode, chosen)
        return self._plan(mode, chosen, step, step.timeline, self._note(info, step.step_s))

    def carried(self, candidate: Candidate, mode: str = "auto") -> Plan:
        """The plan of `mode` from a candidate, with its prediction. Raises ValueError as `plan` does."""
        if candidate.carrier is None:
            return self.plan(mode, candidate.buckets)
        step, own = self.step_of(candidate), mode == candidate.carrier
        note = candidate.name if own else f"carried by {candidate.carrier}: {candidate.name}"
        timeline = from_forward(step) if mode_info(candidate.carrier).puts_off else step.timeline
        plan = self._plan(mode, candidate.buckets, step, timeline, note)
        return plan.model_copy(update={"parts": candidate.parts, "carrier": None if own else candidate.carrier})

    def _plan(self, mode: str, buckets: Buckets, step: Step, timeline: Timeline, note: str | None) -> Plan:
        gradients = self.step.gradients
        whole_s = self.with_input_s(step.step_s)
        if whole_s > step.step_s:
            late = Slice(name="input", start_s=step.step_s, end_s=whole_s)
            timeline = timeline.model_copy(update={"compute": [*timeline.compute, late]})
        return Plan(
            mode=mode,
            buckets=[[gradients[index].name for index in bucket] for bucket in buckets],
            bucket_bytes=[sum(gradients[index].nbytes for index in bucket) for bucket in buckets],
            predicted_step_s=whole_s,
            predicted_exposed_s=max(0.0, step.step_s - self.step.compute_s),
            timeline=timeline,
            note=note,
        )

    def with_input_s(self, step_s: float) -> float:
        """A simulated step [s], no shorter than a loader that works ahead takes for its batches."""
        return max(step_s, self.step.least_s)

    def indices(self, plan: Plan) -> Buckets:
        """Convert a plan's buckets to indices of `step.gradients`. Raises KeyError for another gradient."""
        place = {gradient.name: index for index, gradient in enumerate(self.step.gradients)}
        return [[place[name] for name in bucket] for bucket in plan.buckets]

    def best(self) -> Candidate:
        """The best candidate for `auto:forward`: of the search and of the next forward pass.

        Raises ValueError as `search` does.
        """
        searched = self.search().best()  # its time excludes the forward pass
        found = [replace(searched, step_s=self.simulate("auto", searched.buckets).step_s)]
        if self._may_put_off:
            for mode in next_forward_modes():
                chosen = self._chosen(MODES.entry(mode))
                assert isinstance(chosen, Candidate)
                found.append(chosen)
        return min(found, key=self._worth_s)

    def step_of(self, candidate: Candidate) -> Step:
        """The step of a candidate for `auto`. One that updates in the next forward pass is counted from backward on."""
        if candidate.carrier is None or not mode_info(candidate.carrier).puts_off:
            return self.simulate(candidate.carrier or "auto", candidate.buckets)
        found = self.next_forward
        buckets = _translated(candidate.buckets, self.step.gradients, found.step.gradients)
        return found.step_of(candidate.carrier, buckets, candidate.parts)

    def _chosen(self, mode: ModeInfo) -> Buckets | Candidate:
        """Call the mode's planner."""
        assert mode.planner is not None
        chosen: Buckets | Candidate = imported(mode.planner)(self, mode)
        return chosen

    def candidate(self, found: Candidate) -> Candidate:
        """Convert a result for the next forward pass to a candidate with buckets of `step.gradients`."""
        return replace(found, buckets=_translated(found.buckets, self.next_forward.step.gradients, self.step.gradients))

    @cached_property
    def next_forward(self) -> NextForwardSearch:
        """The search for the next forward pass. Raises ValueError without layers or a cost model, or where all updates
        wait for all gradients."""
        if self.step.updates_together:
            raise ValueError("the first update waits for all gradients, so none is put off to the next forward pass")
        if self.layers is None or self.cost is None:
            raise ValueError("the layers of a profile and a cost model are needed to plan for the next forward pass")
        return NextForwardSearch(self.layers, self.step, self.cost, self.contention, self.halves)

    def _worth_s(self, candidate: Candidate) -> float:
        launches = 2 * len(candidate.buckets) if candidate.parts is None else len(candidate.parts.order)
        return worth_s(candidate.step_s, launches)

    def simulate(self, mode: str, buckets: Buckets) -> Step:
        """The step of `mode` with these buckets of `step.gradients`."""
        step, info = self.step, mode_info(mode)
        if self.contention is None and step.loaded is not None and info.overlap != "none":
            loaded, each = step.loaded, step.loaded_each  # the nearer by the number of buckets
            if each is not None and len(buckets) ** 2 > len(self.exact) * len(each):
                loaded = each
            buckets = _translated(buckets, step.gradients, loaded)
            step = replace(step, gradients=loaded, backward_s=max(step.backward_s, loaded[-1].ready_s))
        forward_s, optimizer_s = step.forward_s, step.optimizer_s
        if buckets and self.contention is not None:
            forward_s += self.contention.meeting_s
        if info.reducer == "ddp":
            forward_s += sum(self._curve(float(nbytes)) for nbytes in self.buffer_bytes)
            if self.contention is not None:
                optimizer_s += self.contention.copy_s_per_byte * step.grad_bytes
        return simulate(
            replace(step, forward_s=forward_s, optimizer_s=optimizer_s),
            buckets,
            self._curve,
            single_after_backward=info.overlap == "none",
            early_update=info.early_update and not self.step.updates_together,
            contention=self.contention,
        )

    @cached_property
    def _curve(self) -> CostCurve:
        return CostCurve.of(self.cost) if self.cost is not None else CostCurve.line(0.0, 0.0)

    @property
    def known_cost(self) -> CostModel:
        """The cost model. Raises ValueError without one."""
        if self.cost is None:
            raise ValueError("a cost model is needed to plan buckets that depend on the link")
        return self.cost

    @property
    def under_traffic(self) -> Sequence[Gradient]:
        """The gradients for planning, with ready times under traffic where these were measured."""
        return self.step.loaded or self.step.gradients

    @cached_property
    def exact(self) -> Buckets:
        """The exact plan of the gradients `under_traffic`, which three modes use."""
        return merge.optimal(self.under_traffic, self._curve)

    def undisturbed(self, buckets: Buckets) -> Buckets:
        """Convert buckets of the gradients `under_traffic` to buckets of `step.gradients`."""
        return _translated(buckets, self.under_traffic, self.step.gradients)

    def search(self) -> Search:
        """The search behind `auto`. Raises ValueError without a cost model."""
        return Search(
            self.step.gradients,
            self.known_cost,
            backward_s=self.step.backward_s,
            optimizer_s=self.step.optimizer_s,
            early_update=not self.step.updates_together,
            contention=self.contention,
            others=self._by_loaded_times() if self.step.loaded is not None else (),
        )

    def _by_loaded_times(self) -> list[tuple[str, Buckets]]:
        """Buckets of other modes by ready times under traffic, which the search does not use."""
        found = [(mode, self._chosen(MODES.entry(mode))) for mode in candidate_modes() if MODES.entry(mode).needs_link]
        return [(mode, chosen) for mode, chosen in found if not isinstance(chosen, Candidate)]

    def _note(self, mode: ModeInfo, step_s: float) -> str | None:
        if self.cost is None and mode.reducer != "none":
            return "no cost model: communication is taken as free"
        if mode.plan_note is not None:
            note: str | None = imported(mode.plan_note)(self, step_s)
            return note
        if mode.reducer == "ddp":
            return "from the second step on: DDP rebuilds its buckets after the first"
        return None


def bucket_caps_mib(plan: Plan, dtypes: Mapping[str, str] | None = None) -> list[float]:
    """`bucket_cap_mb_list` [MiB] with which DistributedDataParallel rebuilds exactly the plan's buckets.

    DDP converts each entry to int(cap · 2²⁰) bytes and rebuilds its buckets after its first step. It never rebuilds
    with `find_unused_parameters` on a graph that is not static. It walks the gradients in ready order and closes a
    bucket when its bytes reach the cap. A cap of the bucket's own bytes therefore closes it with its last gradient and
    no earlier, in any order of its members. Bytes over 2²⁰ are exact in a float.

    Every dtype walks the list from its start, so one list cannot describe two dtypes. With `dtypes` (parameter name to
    dtype), the caps are those of the dtype with the most bytes. The other dtypes use the same caps, as in the plan of
    `ddp-tuned`. Empty buckets are left out: DDP puts their tensors into the next one. An empty list means that there is
    nothing to tune, which is also its meaning in DDP.

    Raises KeyError when `dtypes` misses a parameter of the plan.
    """
    kinds = [dtypes[names[0]] if dtypes is not None else "" for names in plan.buckets]
    return caps_mib(kinds, plan.bucket_bytes)


def _translated(buckets: Buckets, of: Sequence[Gradient], to: Sequence[Gradient]) -> Buckets:
    """Convert buckets from one order of the same gradients to another."""
    place = {gradient.name: index for index, gradient in enumerate(to)}
    return [[place[of[index].name] for index in bucket] for bucket in buckets]


def caps_mib(kinds: Sequence[str], bucket_bytes: Sequence[int]) -> list[float]:
    """Caps from each bucket's dtype and bytes: those of the dtype with the most bytes."""
    total: dict[str, int] = {}
    for kind, nbytes in zip(kinds, bucket_bytes, strict=True):
        total[kind] = total.get(kind, 0) + nbytes
    heaviest = max(total, key=lambda kind: total[kind], default="")
    return [nbytes / _MIB for kind, nbytes in zip(kinds, bucket_bytes, strict=True) if kind == heaviest and nbytes > 0]


# Planner functions of the modes, which `ModeInfo.planner` names: each takes a `Planner` and a `ModeInfo`, and returns
# buckets, as indices of `planner.step.gradients` in launch order, or a `Candidate`, which has more than buckets.

_FREE = "exact for a link that costs computation nothing"
"""The model under which the exact plan is the optimum."""


def nothing(planner: Planner, mode: ModeInfo) -> Buckets:
    """No buckets."""
    return []


def ddp(planner: Planner, mode: ModeInfo) -> Buckets:
    """DDP's own buckets."""
    return merge.ddp(planner.step.gradients)


def single(planner: Planner, mode: ModeInfo) -> Buckets:
    """One bucket per dtype."""
    return merge.single(planner.step.gradients)


def wfbp(planner: Planner, mode: ModeInfo) -> Buckets:
    """One bucket per gradient."""
    return merge.wfbp(planner.step.gradients)


def mgwfbp(planner: Planner, mode: ModeInfo) -> Buckets:
    """The paper's greedy, with ready times under traffic where they were measured."""
    cost = planner.known_cost
    return planner.undisturbed(merge.mgwfbp(planner.under_traffic, cost.alpha_s, cost.beta_s_per_byte))


def mgwfbp_note(planner: Planner, step_s: float) -> str:
    """Note on the gap between the greedy plan and the optimum."""
    best_s = planner.simulate(EXACT, planner.undisturbed(planner.exact)).step_s
    gap = step_s / best_s - 1.0 if best_s > 0 else 0.0
    side = "below" if gap < 0 else "above"
    return f"the paper's greedy: predicted step {format_percent(abs(gap))} {side} that of {EXACT}, {_FREE}"


def optimal(planner: Planner, mode: ModeInfo) -> Buckets:
    """The exact plan, with ready times under traffic where they were measured."""
    return planner.undisturbed(planner.exact)


def optimal_note(planner: Planner, step_s: float) -> str:
    """Note on the model under which the plan is exact."""
    return f"{_FREE}; the predicted step counts what it costs" if planner.contention is not None else _FREE


def tuned_ddp(planner: Planner, mode: ModeInfo) -> Buckets:
    """Buckets that DDP forms from the exact plan: that plan itself for one dtype; `bucket_caps_mib` covers several."""
    gradients = planner.under_traffic
    kinds = [gradients[bucket[0]].dtype for bucket in planner.exact]
    caps = caps_mib(kinds, [sum(gradients[index].nbytes for index in bucket) for bucket in planner.exact])
    formed = merge.ddp_assignment(gradients, [int(cap * _MIB) for cap in caps]) if caps else merge.ddp(gradients)
    return planner.undisturbed(formed)


def searched(planner: Planner, mode: ModeInfo) -> Buckets | Candidate:
    """The best plan of the search, with modes of the next forward pass where the mode's search includes them."""
    return planner.best() if mode.may_put_off else planner.search().best().buckets


def in_halves(planner: Planner, mode: ModeInfo) -> Candidate:
    """The best buckets found for reduce-scatters in backward and all-gathers in the next forward pass."""
    return replace(planner.candidate(planner.next_forward.dear()), carrier=mode.name)


def in_parts(planner: Planner, mode: ModeInfo) -> Candidate:
    """The best parts found, in the order in which the next forward pass needs them."""
    return replace(planner.candidate(planner.next_forward.priority()), carrier=mode.name)
