"""Trial of the search's favourite against DDP itself in a few real steps, before `auto` runs.

The search ranks plans by a model, and the reducer of DistributedDataParallel is not ours. So the plan that is
predicted to be the fastest and DDP itself take turns. A turn is one step of warm-up and two timed steps (more if steps
are short). DDP itself is taken if it was faster, by the median of its round-by-round ratios to the favourite. So `auto`
is slower than DDP by no more than the error of the trial. `may_be_ddp` has the runs in which DDP itself is not tried.

For `auto:forward`, the favourite may be `dear` or `priority`, attached as a schedule of its own. If that refuses the
model, the best plan of our own engine takes its place, and the plan's note reports this.

A turn runs free, as a timed block does. Ranks do not synchronise between its steps, which would end the overlap of
these schedules. On a GPU the host does not wait for the device either, because a wait before each step would cost a
schedule with many launches more than one with few.

All ranks decide alike: times are those of all ranks (`stats.steps`), and every rank knows them before any decision.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from xbench.errors import UsageError
from xbench.modes import MODES, mode_info
from xbench.planning.auto import Candidate
from xbench.planning.plans import Planner
from xbench.profilers import SHARE
from xbench.rank.reference import ddp_refusal
from xbench.rank.session import Session
from xbench.records import Plan
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.engine import Engine
from xbench.spec import RunSpec
from xbench.torch_compile import cut_by_ddp
from xbench.units import format_seconds

TRIAL_S = 25.0
MAX_ROUNDS = 5
MAX_SHORT_ROUNDS, SHORT_S = 10, 10.0
"""Short steps have more rounds: as many as take SHORT_S."""

TIMED_STEPS, MAX_TIMED_STEPS, TURN_S = 2, 12, 0.1
"""Timed steps of a candidate in a round: as many as fill TURN_S, within these limits. Short steps are noisy."""

DDP_WARMUP = 2
"""Steps of warm-up of DDP itself: it rebuilds its buckets at the beginning of its second step."""


def try_favourite(
    session: Session,
    planner: Planner,
    plans: Mapping[str, Plan],
    mode: str,
    unused: Mapping[str, int],
    *,
    sometimes_missing: bool = False,
) -> Plan:
    """Return the plan of the search `mode` after the trial. Collective: every rank calls it and gets the same plan.

    `unused` holds the bytes of each parameter that got no gradient during profiling. `sometimes_missing`: whether some
    parameter got none in some steps.
    """
    trial = Trial(session, planner, unused, sometimes_missing)
    planned, ddp = plans[mode], plans["ddp"]
    favourite = Candidate(
        planned.carrier or "auto", planner.indices(planned), planned.predicted_step_s, planned.carrier, planned.parts
    )
    refused = trial.refusal(favourite)
    if refused is not None:
        refused = f"; {favourite.carrier} was not tried: {refused}"
        searched = planner.search().best()
        favourite = replace(searched, name="searched", step_s=planner.step_of(searched).step_s)
    itself = Candidate("DDP itself", planner.indices(ddp), ddp.predicted_step_s, "ddp")
    chosen, after = favourite, ""
    untried = trial.ddp_refusal(itself)
    if untried is None:
        pair = (favourite, itself)
        rounds, steps = _rounds(pair), _steps(favourite.step_s)
        if rounds:
            took_s = trial.run(pair, rounds, steps)
            chosen = itself if took_s[1] < took_s[0] else favourite
            tried = ", ".join(f"{c.name} {format_seconds(step_s)}" for c, step_s in zip(pair, took_s, strict=True))
            after = f", after {rounds * steps} steps each of: {tried}"
        else:
            untried = f"a step of each takes longer than {TRIAL_S:.0f} s"
    whose = f"the buckets of {chosen.name!r}"
    if chosen.carrier is not None:
        whose = "DDP's own reducer" if chosen is itself else f"carried by {chosen.carrier!r}"
    missing = "" if untried is None else f"; DDP itself was not tried: {untried}"
    note = whose + after + (refused or "") + missing
    return planner.carried(chosen, mode).model_copy(update={"note": note})


def may_be_ddp(run: RunSpec) -> bool:
    """True if `auto` may hand the model to DDP itself.

    It may not where jobs take turns, because DDP's backward pass waits for its gradients in the job's own turn.
    """
    return not any(
        mode_info(mode.name).sharing == "in turns" and mode_info(mode.carrier).searches != "none" for mode in run.modes
    )


def _is_ddp(candidate: Candidate) -> bool:
    return candidate.carrier == "ddp"


def _rounds(pair: Sequence[Candidate]) -> int:
    round_s = (1 + TIMED_STEPS) * sum(candidate.step_s for candidate in pair)
    if round_s <= 0:
        return MAX_ROUNDS
    short_s = sum((1 + _steps(candidate.step_s)) * candidate.step_s for candidate in pair)
    return max(min(MAX_ROUNDS, int(TRIAL_S / round_s)), min(MAX_SHORT_ROUNDS, int(SHORT_S * SHARE / short_s)))


def _steps(step_s: float) -> int:
    """Return the timed steps of a candidate in a round. More than TIMED_STEPS add only a second or two in all."""
    wanted = math.ceil(TURN_S / step_s) if step_s > 0 else MAX_TIMED_STEPS
    return max(TIMED_STEPS, min(MAX_TIMED_STEPS, wanted))


@dataclass(frozen=True)
class Trial:
    """Real steps of candidates. `unused` holds the bytes of each parameter that got no gradient during profiling.

    `sometimes_missing`: whether some parameter got none in some steps. DDP must then look for such parameters.
    """

    session: Session
    planner: Planner
    unused: Mapping[str, int]
    sometimes_missing: bool = False

    def refusal(self, favourite: Candidate) -> str | None:
        """Return the reason for which a carrier refuses the model, or None. All ranks refuse alike.

        A schedule that waits in the forward pass refuses only in one, so a forward pass is run.
        """
        if favourite.carrier is None:
            return None
        try:
            with self.attach(favourite) as handle, torch.no_grad():
                self.session.workload.forward_loss(handle.model)
        except UsageError as error:
            return str(error)
        return None

    def ddp_refusal(self, itself: Candidate) -> str | None:
        """Return the reason for which DDP itself is not tried, or None. All ranks do alike."""
        if not may_be_ddp(self.session.run):
            return "its backward pass waits for gradients in the job's own turn"
        return ddp_refusal(self.session, lambda alone: self.attach(itself, alone))

    def attach(self, candidate: Candidate, group: dist.ProcessGroup | None = None) -> Handle:
        """Attach a candidate, over `group` in place of the run's. Raises UsageError if its schedule refuses.

        Each parameter without a gradient has a bucket of its own.
        """
        session = self.session
        group = session.group if group is None else group
        model, optimizer = session.workload.model, session.workload.optimizer
        compress = session.run.compress
        names = [gradient.name for gradient in self.planner.step.gradients]
        buckets = [[names[index] for index in bucket] for bucket in candidate.buckets]
        buckets += [[name] for name in self.unused]
        if candidate.carrier is None:
            engine = Engine(model, optimizer, buckets, group=group, wait="step", compress=compress)
            return Handle(model, engine)
        schedule: type[Schedule] = MODES.load(candidate.carrier)  # type: ignore[assignment]
        setup = AttachConfig(
            model,
            optimizer,
            buckets=buckets,
            group=group,
            wait="step",
            unused_parameters=bool(self.unused) or self.sometimes_missing,
            compress=compress,
            parts=candidate.parts.followed_by(list(self.unused.values())) if candidate.parts is not None else None,
        )
        return schedule().attach(setup)

    def run(self, pair: Sequence[Candidate], rounds: int, steps: int) -> list[float]:
        """Return the step time [s] of each of two candidates over all ranks, after `rounds` turns of each.

        The first is a median. The second is that times the median, over rounds, of the ratio of its round median to
        the first's. A machine that changes speed between rounds does not change the ratios. The order alternates.
        """
        times: list[list[list[float]]] = [[], []]
        for number in range(rounds):
            for place in (number % 2, 1 - number % 2):
                what = f"trying {pair[place].name}, round {number + 1} of {rounds},"
                times[place].append(self.turn(pair[place], steps, what))
        took_s = _steps_of_ranks(torch.tensor(times, dtype=torch.float64, device=self.session.device))[:, :, 1:]
        self.session.workload.optimizer.zero_grad(set_to_none=True)
        first, second = ([statistics.median(turn) for turn in turns] for turns in took_s.tolist())
        first_s = statistics.median(took_s[0].flatten().tolist())
        return [first_s, first_s * statistics.median(b / a for a, b in zip(first, second, strict=True))]

    def turn(self, candidate: Candidate, steps: int, what: str) -> list[float]:
        """Return the times [s] of the warm-up and of `steps` steps on this rank, one after the other without a wait."""
        session, clock = self.session, self.session.clock
        warmup = DDP_WARMUP if _is_ddp(candidate) else 1
        marks: list[Any] = []
        # A loader that works ahead would hide the differences of candidates, and their simulated steps leave it out.
        own_steps = session.workload.without_waits()
        with own_steps, cut_by_ddp(session.workload.model, _is_ddp(candidate)), self.attach(candidate) as handle:
            session.device_idle()
            dist.all_reduce(torch.zeros(1, device=session.device))
            marks.append(clock.mark())
            session.train(handle, warmup + steps, what, lambda: marks.append(clock.mark()))
            clock.flush()
            took_s = [clock.elapsed_s(*pair) for pair in itertools.pairwise(marks)]
            clock.reset()
        return [sum(took_s[:warmup]), *took_s[warmup:]]


def _steps_of_ranks(own_s: torch.Tensor) -> torch.Tensor:
    """Apply `stats.steps.steps_of_all` along the last dimension of each rank's times. The result is the same on all."""
    ends_s = own_s.cumsum(-1)
    dist.all_reduce(ends_s, op=dist.ReduceOp.MAX)
    return ends_s.diff(dim=-1, prepend=torch.zeros_like(ends_s[..., :1]))
