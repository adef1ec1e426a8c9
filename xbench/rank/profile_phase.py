"""Profile phase of a rank: layers, collectives, contention, plans. Every rank of the job calls `profile_job` together.

docs/how-it-measures.md says what is measured, in which order and why. A model may have collectives of its own, as a
loss over all ranks' features has. So every rank runs the same number of steps in each measurement. Those that cannot
are left out for such a model, with a remark.

Measurements under traffic, of contention and of launches are of the computation, so their steps keep the first batch of
a loader. So do all parts of a step whose loader works ahead: its workers hand out batches in bursts, so its wait is the
difference of two series of bare steps, with the loader and without (`with_loader`). In a step of several micro-steps,
communication meets only the last one, so these measurements are of one micro-step.

Collectives of compressed gradients are measured on compressed data, and their times stored by the bytes of the
uncompressed gradients: T(M) is the time to average M bytes of fp32 gradients. In a model of several dtypes, gradients
of the others are sent uncompressed but predicted as if compressed.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist

from xbench.modes import EXACT, UNMERGED, mode_info, mode_that_travels
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, fit
from xbench.planning.partial import backward_s_of
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.profilers import SHARE
from xbench.profilers.collectives import measure_all_reduce, sizes
from xbench.profilers.contention import (
    HostCost,
    host_step_s,
    launch_s,
    measure_contention,
    summarise_contention,
    summarise_launches,
    unshared_contention,
)
from xbench.profilers.engine_cost import EngineCost, bare_copy_cost, hook_s, measure_engine_cost, summarise_engine_cost
from xbench.profilers.host_links import ProcessorWatch
from xbench.profilers.layers import LayerProfiler, profile_step
from xbench.profilers.summary import clocks, cost_points, left_out, samples, slowest, sometimes_missing, summarise
from xbench.rank.autotune import try_favourite
from xbench.rank.events import Remarked, StepProfiled, StragglersSought
from xbench.rank.parity_checker import gathered
from xbench.rank.program import JobPlan, complete, job_plan, with_missing
from xbench.rank.rank_errors import refusals
from xbench.rank.session import Session
from xbench.rank.sharded_costs import halves_here, other_costs, unit_costs, units_by_mode
from xbench.rank.stragglers import Place, links_behind, place_of, ranks_behind
from xbench.records import Contention as ContentionRecord
from xbench.records import CostModel, Layer, Plan, StepTimes, Stragglers, UnitCost
from xbench.schedules.engine import Engine
from xbench.schedules.groups import collectives_begun, workers_of
from xbench.stats.convergence import cycles_s
from xbench.stats.summary import median_estimate
from xbench.torch_compile import plain_name

COLLECTIVES_S, QUICK_COLLECTIVES_S = 6.0, 2.4
UNDER_LOAD_ROUNDS = 2
UNDER_LOAD_STEPS = 5
MIN_UNDER_LOAD = 2
COMMUNICATES = (
    "the model has collectives of its own, so the slow-down of computation and traffic by each other was not measured, "
    "nor the host's time for units, and predictions lack both"
)
UNDER_LOAD_S = 60.0
"""Limit of the predicted time of all rounds [s]. Longer rounds have fewer steps, and none run if under two remain."""

AGAIN_S, QUICK_AGAIN_S = 4.0, 0.8
MIN_AGAIN, MAX_AGAIN = 5, 600
SAME_SPEED = 0.02
WITH_LOADER = 12
"""Least number of bursts of steps with a loader, for a test of its ranks (`stragglers.ranks_behind`)."""

PREPARED = 2
"""Bursts that a loader prepares in advance: torch's default `prefetch_factor`."""


@dataclass
class _Measured:
    """State of a rank's profile of the job so far."""

    raws: list[dict[str, Any]]
    layers: list[Layer]
    step: StepTimes
    wire: torch.dtype
    places: list[Place]
    waited: list[float]
    model_communicates: bool
    """True if the model itself begins collectives in a step, as a contrastive loss over all ranks does."""
    cost: CostModel | None = None
    contention: ContentionRecord | None = None
    other_costs: dict[str, CostModel] = field(default_factory=dict)
    unit_costs: dict[str, UnitCost] = field(default_factory=dict)

    @property
    def unused(self) -> list[str]:
        """Parameters that got no gradient."""
        return left_out(self.raws)["unused"]

    @property
    def grad_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(layer.grad_bytes for layer in self.layers)

    def exact_plan(self) -> Plan:
        """Return the plan of the exact schedule, from layers, step and link alone."""
        return Planner(StepModel.of(self.layers, self.step), self.cost).plan(EXACT)

    def planner(self, session: Session) -> Planner:
        """Return the planner of every schedule."""
        contention, buffer_bytes = None, tuple(session.workload.describe().buffer_bytes)
        if self.contention is not None and self.cost is not None:
            contention = Contention.planned(self.contention, CostCurve.of(self.cost))
        if self.wire == torch.bfloat16:  # T is by bytes before compression, and buffers are not compressed
            buffer_bytes = tuple(2 * nbytes for nbytes in buffer_bytes)
        model = StepModel.of(self.layers, self.step)
        return Planner(model, self.cost, contention, buffer_bytes, tuple(self.layers), self._halves(session))

    def _halves(self, session: Session) -> tuple[CostModel, CostModel] | None:
        """Return the costs of both halves of an all-reduce, measured in fp32; None if the plans take half of it."""
        names = halves_here(session, mode_info(mode_that_travels("halves")))
        if names is None or self.wire == torch.bfloat16 or not set(names) <= self.other_costs.keys():
            return None
        return self.other_costs[names[0]], self.other_costs[names[1]]

    def keep(self, session: Session) -> None:
        """Write the profile to the journal of rank 0."""
        if session.rank == 0:
            workload = session.workload.describe()
            session.journal.write(
                StepProfiled(workload=workload, layers=self.layers, step=self.step, series=samples(self.raws))
            )


def profile_job(session: Session) -> JobPlan:
    """Measure the step and the link, plan every schedule, and write all to the journal of rank 0."""
    found = _quiet_step(session)
    sometimes = bool(sometimes_missing(found.raws))
    bytes_of = {plain_name(name): p.numel() * p.element_size() for name, p in session.workload.model.named_parameters()}
    missing = {name: bytes_of[name] for name in found.unused}
    found.keep(session)
    if workers_of(session.group) > 1:
        found.cost = _link(session, found)
        found.other_costs = other_costs(session, found.grad_bytes, _collectives_s(session) / 2)
        links = links_behind(session, found.places, found.cost, found.grad_bytes, found.step.uninstrumented_step_s)
        session.part("layers under traffic")
        on_cpu = session.device.type == "cpu"
        with session.workload.on_one_batch():
            _load_layers(session, found)
            if not on_cpu:
                _load_each(session, found, found.cost)
            found.keep(session)
            if on_cpu:
                if found.model_communicates and session.rank == 0:
                    session.journal.write(Remarked(message=COMMUNICATES))
                found.contention = _contention(session, found, found.cost)
        session.part("step without communication")
        with session.workload.without_waits():
            again = bare_again(session, found.step)
            present = median_estimate(slowest(again))
            if abs(present.median / found.step.uninstrumented_step_s - 1) > SAME_SPEED:
                # Plans are made and timed at this speed, and all parts of the step are scaled to it (`StepModel.of`).
                bare = {"uninstrumented_step_s": present.median, "uninstrumented_ci95": present.ci95}
                found.step = found.step.model_copy(update=bare)
            if not found.model_communicates:  # its values would have no meaning, and might stop one rank alone
                found.unit_costs = unit_costs(session, found.raws, found.step.uninstrumented_step_s)
        found.keep(session)
        if session.rank == 0:
            ranks = ranks_behind(found.raws, again, found.waited, found.places)
            session.journal.write(StragglersSought(found=Stragglers(ranks=ranks, links=links)))
        if not on_cpu:
            with session.workload.on_one_batch():
                found.contention = _launches(session, found)
    if session.workload.loads_ahead:
        session.part("step with its loader")
        fed = bare_again(session, found.step, WITH_LOADER)
        cycles = [loader_cycles(own, session.workload.burst) for own in fed]
        if workers_of(session.group) > 1 and session.rank == 0:
            ranks = ranks_behind(found.raws, again, found.waited, found.places, cycles)  # in place of those above
            session.journal.write(StragglersSought(found=Stragglers(ranks=ranks, links=links)))
        found.step = with_loader(found.step, cycles)
        found.keep(session)
    planner = found.planner(session)
    plans = planner.plans()
    carriers = dict.fromkeys(mode.carrier for mode in session.run.modes)
    for name in carriers if found.cost is not None else ():
        if mode_info(name).searches != "none":
            plans.setdefault(name, planner.plan(name))
            session.part(f"candidates of {name}")
            with _refusals(session, f"candidates of {name} were not tried"):
                plans[name] = try_favourite(session, planner, plans, name, missing, sometimes_missing=sometimes)
    plan, event = job_plan(planner, plans, found.step.uninstrumented_step_s, found.contention)
    event = event.model_copy(update={"other_costs": found.other_costs, "unit_costs": found.unit_costs})
    scaler = session.workload.scaler
    scale = min(gathered(scaler.get_scale())) if scaler is not None else None
    units = units_by_mode(session, planner, found.layers, found.other_costs, found.unit_costs)
    plan = plan.model_copy(update={"backward_s": backward_s_of(found.layers), "scale": scale, "units": units})
    if session.rank == 0:
        session.journal.write(event)
    return complete(plan, missing, sometimes_missing=sometimes)


def _quiet_step(session: Session) -> _Measured:
    """Measure layers and step, without communication."""
    effort = session.run.effort
    session.part("layers")
    watch, before = ProcessorWatch(), collectives_begun()
    with session.workload.without_waits():
        raw = profile_step(
            session.workload, session.clock, steps=effort.profile_steps, warmup=effort.warmup_steps, note=session.note
        )
    own = raw.raw(), watch.use().waited_share, place_of(session), collectives_begun() > before
    raws, waited, places, communicates = map(list, zip(*gathered(own), strict=True))
    layers, step = summarise(raws)
    # Measurements and plans count fp32 bytes, whether they are sent in this dtype or not.
    compresses = session.run.compress == "bf16" and any(t.dtype == "float32" for one in layers for t in one.tensors)
    wire = torch.bfloat16 if compresses else torch.float32
    return _Measured(raws, layers, step, wire, places, waited, any(communicates))


def _collectives_s(session: Session) -> float:
    """Time for the measurement of one collective [s]."""
    return QUICK_COLLECTIVES_S if session.run.effort.is_quick else COLLECTIVES_S


def _link(session: Session, found: _Measured) -> CostModel:
    """Measure the time of a collective by its bytes."""
    session.part("link")
    session.note("measuring collectives")
    measured = measure_all_reduce(
        sizes(found.grad_bytes),
        session.device,
        session.group,
        seconds_budget=SHARE * _collectives_s(session),
        clock=session.clock,
        note=session.note,
        wire=found.wire,
    )
    everyone = gathered(measured)
    cost = fit(cost_points(everyone), backend=dist.get_backend(session.group), world_size=workers_of(session.group))
    return cost.model_copy(update=clocks(everyone))


def _load_layers(session: Session, found: _Measured) -> None:
    """Measure ready times under the exact plan's traffic, planned anew each round."""
    for _ in range(UNDER_LOAD_ROUNDS):
        if not _under_load(session, found, found.exact_plan(), "ready_loaded_s"):
            break


def _load_each(session: Session, found: _Measured, cost: CostModel) -> None:
    """Measure ready times while every gradient travels by itself, if that was possible for the exact plan."""
    each = Planner(StepModel.of(found.layers, found.step), cost).plan(UNMERGED)
    _under_load(session, found, each, "ready_loaded_each_s")


def _under_load(
    session: Session, found: _Measured, plan: Plan, name: Literal["ready_loaded_s", "ready_loaded_each_s"]
) -> bool:
    """Measure ready times while the buckets of a plan travel. False if its steps are too long, or the engine refuses.

    Our engine refuses a model on every rank alike, and its modes report it later.
    """
    steps = min(UNDER_LOAD_STEPS, int(UNDER_LOAD_S / UNDER_LOAD_ROUNDS / plan.predicted_step_s) - 1)
    if steps < MIN_UNDER_LOAD:
        return False
    with _refusals(session, "times of layers under traffic were not measured") as said:
        ready_s = ready_under_load(session, with_missing(plan.buckets, found.unused), steps)
        found.layers = [
            layer.model_copy(
                update={"tensors": [t.model_copy(update={name: ready_s.get(t.name, t.ready_s)}) for t in layer.tensors]}
            )
            for layer in found.layers
        ]
    return not said


@contextmanager
def _refusals(session: Session, what: str) -> Iterator[list[str]]:
    """Catch a schedule's refusal (`rank_errors.refusals`), and remark `what` it has prevented."""
    with refusals() as said:
        yield said
    if said and session.rank == 0:
        session.journal.write(Remarked(message=f"{what}: {said[0]}"))


def _launches(session: Session, found: _Measured) -> ContentionRecord:
    """Measure the host's time of a launch, a hook and a step on a GPU."""
    session.part("launches")
    own = HostCost(
        launch_s(session.group, session.device),
        hook_s(_engines(session), session.device),
        host_step_s(session.bare_step, session.device_idle, session.note),
    )
    session.workload.optimizer.zero_grad(set_to_none=True)
    return summarise_launches(gathered(own), found.step.uninstrumented_step_s)


def _contention(session: Session, found: _Measured, cost: CostModel) -> ContentionRecord:
    """Measure the slowdown of collectives and computation by each other, and the engine's cost."""
    contention: ContentionRecord
    curve = CostCurve.of(cost)
    link = session.program.emulated
    if link is not None and link.contention is None and link.slowdown is None:
        # Rank 0's values for all: ranks with different values would plan different buckets.
        contention = gathered(unshared_contention(session.group, curve))[0]
    else:
        session.part("contention")
        both = measure_contention(
            session.workload.last_micro_step(),
            session.group,
            curve,
            most_bytes=found.grad_bytes,
            note=session.note,
            quick=session.run.effort.is_quick,
            wire=found.wire,
            model_communicates=found.model_communicates,
        )
        contention = summarise_contention(gathered(both))
    buckets = with_missing(found.exact_plan().buckets, found.unused)
    session.part("engine")
    own = engine_cost(session, buckets, found.step.uninstrumented_step_s, found.grad_bytes, found.wire)
    hook_s, copy_s_per_byte = summarise_engine_cost(gathered(own))
    return contention.model_copy(update={"hook_s": hook_s, "copy_s_per_byte": copy_s_per_byte})


def ready_under_load(session: Session, buckets: list[list[str]], count: int) -> dict[str, float]:
    """Return each tensor's ready time [s since the start of backward] under these buckets' traffic, slowest rank."""
    session.note("measuring ready times under load")
    compress = session.run.compress
    workload = session.workload.last_micro_step()
    engine = Engine(workload.model, None, buckets, group=session.group, compress=compress)
    engine.takes_later_hooks = True  # those of the profiler
    try:
        with LayerProfiler(workload.model, session.clock, forward=False) as profiler:
            steps = []
            for number in range(count + 1):
                session.note(f"ready times under load, step {number + 1} of {count + 1}")
                steps.append(profiler.run_step(workload))
            session.clock.flush()
            times = [profiler.layer_times(step).ready_s for step in steps[1:]]
    finally:
        session.clock.reset()
        engine.detach()
        workload.clear()
    seen = [[value for value in column if value is not None] for column in zip(*times, strict=True)]
    medians = torch.tensor([statistics.median(values) if values else -1.0 for values in seen], dtype=torch.float64)
    everyone = medians.to(session.device)
    dist.all_reduce(everyone, op=dist.ReduceOp.MAX)
    slowest = everyone.tolist()
    names = [tensor.name for tensor in profiler.tensors]
    return {name: ready_s for name, ready_s in zip(names, slowest, strict=True) if ready_s >= 0}


def engine_cost(
    session: Session, buckets: list[list[str]], step_s: float, grad_bytes: int, wire: torch.dtype
) -> EngineCost:
    """Measure the cost of our engine's hooks and copies in a step of `step_s` [s] on this rank."""
    with _refusals(session, "the cost of the engine's hooks was not measured"):
        return measure_engine_cost(
            session.workload.last_micro_step(),
            _engines(session),
            buckets,
            step_s=step_s / session.workload.micro_steps,
            note=session.note,
            wire=wire,
            quick=session.run.effort.is_quick,
        )
    return bare_copy_cost(wire, grad_bytes)


def _engines(session: Session) -> Callable[[torch.nn.Module, list[list[str]]], Engine]:
    """Return a function that attaches an engine of this run with the given buckets to a model."""
    run = session.run

    def attach(model: torch.nn.Module, buckets: list[list[str]]) -> Engine:
        return Engine(model, None, buckets, group=session.group, compress=run.compress)

    return attach


# --- bare steps, measured again: at the machine's present speed, and with a loader ----------------------------------


def bare_again(session: Session, step: StepTimes, least: int = MIN_AGAIN) -> list[list[float]]:
    """Return the times [s] of a few seconds of bare steps, by rank, and of `least` bursts of a loader. Collective.

    As in the first measurement and in the blocks, steps do not wait for the device. A GPU that idles between steps
    would seem slower.
    """
    budget_s = SHARE * (QUICK_AGAIN_S if session.run.effort.is_quick else AGAIN_S)
    fewest = (least + PREPARED) * session.workload.burst
    count = max(fewest, min(MAX_AGAIN, int(budget_s / max(step.uninstrumented_step_s, 1e-4))))
    marks = [session.clock.mark()]
    for number in range(count + 1):
        session.note(f"step without communication, again, {number + 1} of {count + 1}")
        session.bare_step()
        marks.append(session.clock.mark())
    session.clock.flush()
    took_s = [session.clock.elapsed_s(*pair) for pair in itertools.pairwise(marks)]
    session.clock.reset()
    return gathered(took_s[1:])


def loader_cycles(steps_s: Sequence[float], burst: int) -> list[float]:
    """Return the times [s] of steps with a loader that works ahead: `burst` of them count as one, by their mean.

    The first bursts had been prepared before, and are left out.
    """
    return cycles_s(steps_s[PREPARED * burst :], burst)


def with_loader(step: StepTimes, cycles: Sequence[Sequence[float]]) -> StepTimes:
    """Return the step with the wait for a loader that works ahead.

    `step` is without it, and `cycles` has the times of steps with it [s] by rank (`loader_cycles`). The slowest rank
    counts: a burst of one need not meet that of another.
    """
    found = max(map(median_estimate, cycles), key=lambda one: one.median)
    input_s = found.median - step.uninstrumented_step_s
    if input_s <= 0:
        return step
    update = {"input_s": input_s, "uninstrumented_step_s": found.median, "uninstrumented_ci95": found.ci95}
    return step.model_copy(update=update)
