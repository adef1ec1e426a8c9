"""Program of the ranks of one launch: its phases, decided by the parent before they start.

Every rank of every job reads the same program, so ranks never have to agree on the next phase. The order is: profile,
parity check, blocks in a balanced order, timelines. Timelines come last so that they disturb no block of
the launch. Plans of an earlier launch are passed on, so that all launches time the same buckets. Nothing here imports
torch, because the parent reads it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from xbench.modes import MODES, mode_info
from xbench.planning.bounds import bounds
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.turns import JobTimes
from xbench.rank.events import SchedulesPlanned
from xbench.records import Contention as ContentionRecord
from xbench.records import EmulatedLink, Plan
from xbench.records.parts import Parts
from xbench.spec import ModeSpec, RunSpec, Spec
from xbench.stats.blocks import balanced_orders

#: Target time of one block [s]: long compared with timer resolution, short enough that all modes share drift.
BLOCK_S = 3.0
MIN_STEPS, MAX_STEPS = 4, 400
UNKNOWN_STEPS = 50
"""Steps of a block whose step time is unknown."""


class JobPlan(Spec):
    """Plans of one job: buckets by mode (None: the schedule's own), and expected times.

    `parts` of those buckets and `carriers` by mode, if the plan has them (`records.Plan`).
    """

    buckets: dict[str, list[list[str]] | None]
    step_s: dict[str, float]
    exposed_s: dict[str, float]
    link_s: dict[str, float]
    compute_s: float
    unused_parameters: bool = False
    parts: dict[str, Parts] = Field(default_factory=dict)
    backward_s: dict[str, float] = Field(default_factory=dict)
    carriers: dict[str, str] = Field(default_factory=dict)
    units: dict[str, list[list[str]]] = Field(default_factory=dict)
    """Paths of the blocks of each unit, by text of a mode that plans them."""
    scale: float | None = None
    """Factor of the loss with which training begins, if it is scaled: with a larger one, first steps are skipped."""

    def carrier_of(self, mode: ModeSpec) -> str:
        """Return the schedule that carries this mode's gradients under this plan."""
        return self.carriers.get(mode.carrier, mode.carrier)


def job_times(plans: Sequence[JobPlan], carrier: str) -> list[JobTimes]:
    """Return the turn planner's times of each job if `carrier` carries its gradients."""
    return [JobTimes(plan.compute_s, plan.exposed_s.get(carrier, 0.0), plan.link_s.get(carrier)) for plan in plans]


class Phase(Spec):
    """One phase of all ranks, of the given `kind`."""

    kind: Literal["profile", "parity", "block", "timeline"]
    mode: str = ""
    round: int = 0
    position: int = 0


class Program(Spec):
    """Argument of every rank of a launch."""

    run: RunSpec
    launch: int
    phases: tuple[Phase, ...]
    jobs: int = 1
    plans: tuple[JobPlan, ...] = ()
    emulated: EmulatedLink | None = None

    def mode(self, text: str) -> ModeSpec:
        """Return the mode of that name."""
        return next(mode for mode in self.run.modes if mode.text == text)


class TrainingPlan(Spec):
    """Training that every mode of `converge` does. `seeds` determine weights and sample order; `lr` is the initial
    rate, falling to 0."""

    seeds: tuple[int, ...]
    steps: int
    steps_per_epoch: int
    batch_size: int
    lr: float


class ConvergeProgram(Program):
    """Argument of every rank of `converge`."""

    training: TrainingPlan


def phases(run: RunSpec, launch: int, *, seed: int = 0) -> tuple[Phase, ...]:
    """Return the phases of launch number `launch`. The first also profiles, checks parity and records timelines.

    If the run profiles apart, the first times no blocks.
    """
    steps: list[Phase] = []
    if launch == 0:
        steps.append(Phase(kind="profile"))
        if run.kind == "comparison":
            gated = [mode for mode in run.modes if mode_info(mode.carrier).trains]
            steps += [Phase(kind="parity", mode=mode.text) for mode in gated]
    if run.kind == "comparison" and not (launch == 0 and run.profiles_apart):
        steps += balanced_blocks([mode.text for mode in run.modes], run.effort.rounds, seed + launch)
    if run.kind == "comparison" and launch == 0:
        steps += [Phase(kind="timeline", mode=mode.text) for mode in run.modes if _recorded(mode)]
    return tuple(steps)


def balanced_blocks(modes: Sequence[str], rounds: int, seed: int) -> tuple[Phase, ...]:
    """Return the blocks of one launch, each mode once a round, in a balanced order."""
    blocks = [(turn, mode) for turn, order in enumerate(balanced_orders(modes, rounds, seed)) for mode in order]
    return tuple(Phase(kind="block", mode=mode, round=turn, position=i) for i, (turn, mode) in enumerate(blocks))


def _recorded(mode: ModeSpec) -> bool:
    """True if a mode has turns to record, or steps that no other mode has."""
    return not mode.paired or mode_info(mode.name).sharing == "in turns"


def whole_cycles(steps: int, cycle: int) -> int:
    """Return the smallest number of whole cycles' steps that is at least `steps`."""
    return math.ceil(steps / cycle) * cycle


def steps_in_block(run: RunSpec, slowest_step_s: float) -> int:
    """Return the timed steps of one block: the user's, or as many as fill BLOCK_S at the slowest mode's speed."""
    if run.effort.steps is not None:
        return run.effort.steps
    if slowest_step_s <= 0:
        return UNKNOWN_STEPS
    return min(MAX_STEPS, max(MIN_STEPS, round(BLOCK_S / slowest_step_s)))


# --- plans for every trainable parameter ------------------------------------------------------------------------------


def job_plan(
    planner: Planner, plans: Mapping[str, Plan], compute_s: float, contention: ContentionRecord | None
) -> tuple[JobPlan, SchedulesPlanned]:
    """Return the `JobPlan` of these plans, and the journal's event. Every rank gets the same."""
    step, cost = planner.step, planner.cost
    curve = CostCurve.of(cost) if cost is not None else CostCurve.line(0.0, 0.0)
    lower = bounds(step.gradients, curve, compute_s=compute_s, contention=planner.contention, **step.parts)
    paced = {info.name: plans[info.paced_by] for info in MODES if info.paced_by is not None and info.paced_by in plans}
    event = SchedulesPlanned(cost_model=cost, contention=contention, plans=dict(plans), bounds=lower)
    buckets = {name: p.buckets if mode_info(name).takes_plan else None for name, p in plans.items()}
    for info in MODES:
        taken = next((plans[other].buckets for other in info.buckets_of if other in plans), None)
        if taken is not None:
            buckets[info.name] = taken
    plans = {**plans, **paced}
    plan = JobPlan(
        buckets={**buckets, **dict.fromkeys(paced)},
        step_s={name: p.predicted_step_s for name, p in plans.items()},
        exposed_s={name: p.predicted_exposed_s for name, p in plans.items()},
        link_s={name: float(sum(curve(float(nbytes)) for nbytes in p.bucket_bytes)) for name, p in plans.items()},
        compute_s=compute_s,
        parts={name: p.parts for name, p in plans.items() if p.parts is not None},
        carriers={name: p.carrier for name, p in plans.items() if p.carrier is not None},
    )
    return plan, event


def with_missing(buckets: list[list[str]], missing: Sequence[str]) -> list[list[str]]:
    """Return the buckets, and one at the end for each parameter that got no gradient during profiling.

    It may get one later, on some ranks or all. Every trainable parameter must be in exactly one bucket.
    """
    return [*buckets, *([name] for name in missing)]


def complete(plan: JobPlan, missing: Mapping[str, int], *, sometimes_missing: bool = False) -> JobPlan:
    """Add the parameters (name: bytes) that got no gradient during profiling to each plan, as `with_missing` does.

    The parts of their buckets are sent after all others, because planned parameters are needed more often.
    `sometimes_missing`: whether a parameter got no gradient in some step of some rank. DDP must search for that as
    well.
    """
    if not missing:
        return plan.model_copy(update={"unused_parameters": True}) if sometimes_missing else plan
    buckets = {name: with_missing(b, list(missing)) if b is not None else None for name, b in plan.buckets.items()}
    parts = {name: p.followed_by(list(missing.values())) for name, p in plan.parts.items()}
    return plan.model_copy(update={"buckets": buckets, "parts": parts, "unused_parameters": True})
