"""Trial of the best candidate plans in a few real steps, before `auto` chooses one (docs/planner.md).

The search ranks plans by a model, and the best ones are often within the model's error of each other. So a short list
is run in turns, and the fastest is chosen by the median of its round-by-round ratios to the model's favourite, if the
gain exceeds the noise of so many steps. Half of the time goes to all candidates, the other half to the favourite and
the fastest so far (successive halving: Karnin, Koren, Somekh, ICML 2013, in two halves). DistributedDataParallel itself
needs no margin: it is taken if it was faster than the favourite and no other plan won.

A turn runs free, as a timed block does. Ranks do not synchronise between its steps, which would end the overlap of
`dear` and `priority`. On a GPU the host does not wait for the device either, because a wait before each step would cost
a schedule with many launches more than one with few. All ranks decide alike: times are those of all ranks
(`stats.steps`), and every rank knows them before any decision.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from xbench.errors import UsageError
from xbench.modes import MODES, mode_info, next_forward_modes, tried_modes
from xbench.planning.auto import Candidate
from xbench.planning.plans import Planner
from xbench.profilers.budget import SHARE
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

MIN_ROUNDS = 2
"""Minimum of rounds. If time does not suffice, candidates that are predicted to be the slowest are not tried."""

MIN_TRIED = 2
FINALISTS = 4
"""The favourite and the fastest of the others. They share the second half of the rounds, if there are twice MIN_ROUNDS.
"""

TIMED_STEPS, MAX_TIMED_STEPS, TURN_S = 2, 12, 0.1
"""Timed steps of a candidate in a round: as many as fill TURN_S, within these limits. Short steps are noisy."""

CLOSE = 1.3
"""Largest ratio of a plan's predicted step to the best at which another schedule's plan is tried."""

NOISE = 0.04
"""Noise of one step of a trial, as a share. To replace the favourite, a plan must win by this over the root of its
steps."""

DDP_WARMUP = 2
"""Steps of warm-up of DDP itself: it rebuilds its buckets at the beginning of its second step."""

DISAGREE = 0.10
_FACTORS = (0.25, 4.0)


@dataclass(frozen=True)
class CandidateTiming:
    """Step time of a candidate [s] and the number of timed steps. `in_final`: whether it ran in the second half."""

    step_s: float
    steps: int
    in_final: bool = True


def try_candidates(
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
    planned, ahead = plans[mode], next_forward_modes() if mode_info(mode).may_put_off else ()
    favourite = Candidate(
        planned.carrier or "auto", planner.indices(planned), planned.predicted_step_s, planned.carrier, planned.parts
    )
    shortlist, refused = trial.attachable(_shortlist(planner, plans, favourite, ahead))
    itself, untried = trial.ddp_itself(plans)
    shortlist = _affordable([*shortlist, *itself])
    rounds, steps = _rounds(shortlist), _steps(favourite.step_s)
    if rounds == 0:
        why = f"not tried beforehand: {len(shortlist)} candidates take longer than {TRIAL_S:.0f} s"
        return planner.carried(shortlist[0], mode).model_copy(update={"note": why + refused + untried})
    found = trial.run(shortlist, rounds, steps)
    fitting = [(one.step_s, c) for one, c in zip(found, shortlist, strict=True)]
    off = statistics.median(step_s / c.step_s for step_s, c in fitting)
    again = ""
    if abs(off - 1) > DISAGREE and planner.contention is not None:
        fitted = replace(planner, contention=planner.contention.amplified(_factor(planner, fitting)))
        better = fitted.best() if ahead and not refused else fitted.search().best()
        if all(not _alike(better, other) for other in shortlist):
            best = _fastest(found)
            second = [shortlist[best], replace(better, name="planned again", step_s=fitted.step_of(better).step_s)]
            again = f"; predictions were {off - 1:+.0%} off, so it was planned again"
            second, refused_again = trial.attachable(second)
            again += refused_again
            if not refused_again:
                known, new = trial.run(second, rounds, steps)
                shortlist.append(second[1])
                found.append(replace(new, step_s=found[best].step_s * new.step_s / known.step_s))
    chosen = _fastest(found)
    if found[chosen].step_s > (1 - NOISE / math.sqrt(found[chosen].steps)) * found[0].step_s:
        chosen = _unchanged(shortlist, found)
    tried = ", ".join(f"{c.name} {format_seconds(one.step_s)}" for c, one in zip(shortlist, found, strict=True))
    plan = planner.carried(shortlist[chosen], mode)
    whose = f"the buckets of {shortlist[chosen].name!r}"
    if _is_ddp(shortlist[chosen]):
        whose = "DDP's own reducer"
    elif plan.carrier is not None:
        whose = f"carried by {plan.carrier!r}" + (
            ", planned again" if shortlist[chosen].name == "planned again" else ""
        )
    fewest, most = min(one.steps for one in found), max(one.steps for one in found)
    counted = f"{fewest} to {most}" if fewest < most else str(fewest)
    note = f"{whose}, after {counted} steps each of: {tried}{again}{refused}{untried}"
    return plan.model_copy(update={"note": note})


def may_be_ddp(run: RunSpec) -> bool:
    """True if `auto` may hand the model to DDP itself.

    It may not where jobs take turns, because DDP's backward pass waits for its gradients in the job's own turn.
    """
    return not any(
        mode_info(mode.name).sharing == "in turns" and mode_info(mode.carrier).searches != "none" for mode in run.modes
    )


def _is_ddp(candidate: Candidate) -> bool:
    return candidate.carrier == "ddp"


def _unchanged(shortlist: Sequence[Candidate], found: Sequence[CandidateTiming]) -> int:
    """Return the index of the favourite, or of DDP itself where it was faster: no other plan beats the favourite."""
    places = [0, *(place for place, one in enumerate(found) if _is_ddp(shortlist[place]) and one.in_final)]
    return min(places, key=lambda place: found[place].step_s)


def _fastest(found: Sequence[CandidateTiming]) -> int:
    """Return the index of the fastest candidate of the second half."""
    return min((place for place, one in enumerate(found) if one.in_final), key=lambda place: found[place].step_s)


def _shortlist(
    planner: Planner, plans: Mapping[str, Plan], favourite: Candidate, ahead: Sequence[str]
) -> list[Candidate]:
    """Return the favourite, and the other schedules' plans that are predicted to be close to it, with those `ahead`."""
    found = [favourite]
    if favourite.carrier is not None:  # keep one of our own engine's plans as a fallback
        searched = planner.search().best()
        found.append(replace(searched, name="searched", step_s=planner.step_of(searched).step_s))
    others = [
        Candidate(mode, planner.indices(plans[mode]), 0.0, mode if mode in ahead else None, plans[mode].parts)
        for mode in (*tried_modes(), *ahead)
        if mode in plans
    ]
    return found + _close(planner, others, found)


def _close(planner: Planner, others: Iterable[Candidate], found: Sequence[Candidate]) -> list[Candidate]:
    """Return those that are predicted to be close to the first of `found` and differ from all of `found`."""
    close: list[Candidate] = []
    for other in others:
        other = replace(other, step_s=planner.step_of(other).step_s)
        if other.step_s <= CLOSE * found[0].step_s and not any(_alike(other, one) for one in (*found, *close)):
            close.append(other)
    return close


def _alike(one: Candidate, other: Candidate) -> bool:
    return (one.buckets, one.carrier, one.parts) == (other.buckets, other.carrier, other.parts)


def _rounds(shortlist: Sequence[Candidate]) -> int:
    round_s = (1 + TIMED_STEPS) * sum(candidate.step_s for candidate in shortlist)
    if round_s <= 0:
        return MAX_ROUNDS
    short_s = sum((1 + _steps(candidate.step_s)) * candidate.step_s for candidate in shortlist)
    return max(min(MAX_ROUNDS, int(TRIAL_S / round_s)), min(MAX_SHORT_ROUNDS, int(SHORT_S * SHARE / short_s)))


def _steps(step_s: float) -> int:
    """Return the timed steps of a candidate in a round. More than TIMED_STEPS add only a second or two in all."""
    wanted = math.ceil(TURN_S / step_s) if step_s > 0 else MAX_TIMED_STEPS
    return max(TIMED_STEPS, min(MAX_TIMED_STEPS, wanted))


def _affordable(shortlist: Sequence[Candidate]) -> list[Candidate]:
    """Return the favourite, DDP itself if present, and as many of the others as time allows, best first."""
    kept = list(shortlist)
    while _rounds(kept) < MIN_ROUNDS and len(kept) > MIN_TRIED:
        others = [candidate for candidate in kept[1:] if not _is_ddp(candidate)]
        kept.remove(max(others, key=lambda candidate: candidate.step_s))
    return kept


@dataclass(frozen=True)
class Trial:
    """Real steps of candidates. `unused` holds the bytes of each parameter that got no gradient during profiling.

    `sometimes_missing`: whether some parameter got none in some steps. DDP must then look for such parameters.
    """

    session: Session
    planner: Planner
    unused: Mapping[str, int]
    sometimes_missing: bool = False

    def attachable(self, shortlist: Sequence[Candidate]) -> tuple[list[Candidate], str]:
        """Return candidates whose schedule accepts the model, and a note on the others. All ranks refuse alike.

        A schedule that waits in the forward pass refuses only in one, so a forward pass is run.
        """
        kept: list[Candidate] = []
        said: dict[str, str] = {}
        for candidate in shortlist:
            try:
                if candidate.carrier is not None:
                    with self.attach(candidate) as handle, torch.no_grad():
                        self.session.workload.forward_loss(handle.model)
            except UsageError as error:
                said.setdefault(str(candidate.carrier), str(error))
            else:
                kept.append(candidate)
        return kept, "".join(f"; {carrier} was not tried: {why}" for carrier, why in said.items())

    def ddp_itself(self, plans: Mapping[str, Plan]) -> tuple[list[Candidate], str]:
        """Return DDP with its own reducer as a candidate, or none and a note on the reason. All ranks do alike."""
        if "ddp" not in plans or not may_be_ddp(self.session.run):
            return [], ""
        planned = plans["ddp"]
        itself = Candidate("DDP itself", self.planner.indices(planned), planned.predicted_step_s, "ddp")
        refusal = ddp_refusal(self.session, lambda alone: self.attach(itself, alone))
        return ([itself], "") if refusal is None else ([], f"; DDP itself was not tried: {refusal}")

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

    def run(self, shortlist: Sequence[Candidate], rounds: int, steps: int) -> list[CandidateTiming]:
        """Return each candidate's step time over all ranks.

        The number of turns is that of `rounds` rounds of all candidates. FINALISTS share the second half.
        """
        everyone = list(range(len(shortlist)))
        first = rounds // 2 if len(shortlist) > FINALISTS and rounds >= 2 * MIN_ROUNDS else rounds
        times = self.in_turns(shortlist, first, steps)
        final = everyone
        if first < rounds:
            step_s = _in_pairs(times, steps)
            final = [0, *sorted(everyone[1:], key=lambda place: step_s[place])[: FINALISTS - 1]]
            more = (rounds - first) * len(shortlist) // FINALISTS
            second = self.in_turns([shortlist[place] for place in final], more, steps)
            for place, row in zip(final, second, strict=True):
                times[place] += row
        self.session.workload.optimizer.zero_grad(set_to_none=True)
        return [
            CandidateTiming(step_s, len(times[place]), place in final)
            for place, step_s in enumerate(_in_pairs(times, steps))
        ]

    def in_turns(self, shortlist: Sequence[Candidate], rounds: int, steps: int) -> list[list[float]]:
        """Return `rounds` times `steps` step times [s] of each candidate, over all ranks. The order rotates."""
        times: list[list[list[float]]] = [[] for _ in shortlist]
        for number in range(rounds):
            for offset in range(len(shortlist)):
                place = (number + offset) % len(shortlist)
                what = f"trying {shortlist[place].name}, round {number + 1} of {rounds},"
                times[place].append(self.turn(shortlist[place], steps, what))
        took_s = _steps_of_ranks(torch.tensor(times, dtype=torch.float64, device=self.session.device))
        rows: list[list[float]] = took_s[:, :, 1:].flatten(1).tolist()
        return rows

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


def _in_pairs(times: Sequence[Sequence[float]], steps: int) -> list[float]:
    """Return one step time [s] of each row.

    The first row's is its median. Another row's is that times the median, over rounds, of the ratio of its round median
    to the first row's. A machine that changes speed between rounds does not change the ratios. A row may be shorter
    than the first.
    """
    rounds = [[statistics.median(row[at : at + steps]) for at in range(0, len(row), steps)] for row in times]
    first_s = statistics.median(times[0])
    return [first_s * statistics.median(a / b for a, b in zip(row, rounds[0], strict=False)) for row in rounds]


def _factor(planner: Planner, fitting: Sequence[tuple[float, Candidate]]) -> float:
    """Return the contention factor at which predictions fit in the geometric mean, within _FACTORS."""
    assert planner.contention is not None
    low, high = _FACTORS
    wanted = sum(math.log(measured) for measured, _ in fitting)
    for _ in range(20):
        middle = math.sqrt(low * high)
        fitted = replace(planner, contention=planner.contention.amplified(middle))
        if sum(math.log(fitted.step_of(candidate).step_s) for _, candidate in fitting) < wanted:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
