"""A few real steps of the best candidate plans, before `auto` settles on one.

The search ranks plans by a model, and the model's best are often within its error of each other. So a short list (the
search's best, and each schedule's own buckets that are predicted close) is run in turns, a step of warm-up and two
steps at a time, and the fastest is taken: by the median of its ratios to the model's favourite, round by round, and
only where that is clearer than the noise of so many steps. Where measurement and prediction disagree by more than a
tenth, what computation and communication cost each other is scaled until the candidates' predictions fit, the search
runs again, and its new answer is tried too. The prediction that is shown for the chosen plan is the unfitted model's,
as for every other schedule.

All ranks decide alike: times are the slowest rank's, shared before any decision.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from xbench.planning.auto import Candidate
from xbench.planning.plans import Planner
from xbench.planning.simulate import Buckets
from xbench.records import Plan
from xbench.schedules.engine import Engine
from xbench.units import format_seconds

if TYPE_CHECKING:
    from xbench.runtime.worker import Rank

TRIAL_S = 25.0
MOST_ROUNDS = 5
FEWEST_ROUNDS = 2
"""Candidates that are predicted to be the slowest go untried where all of them leave no time for so many rounds."""

FEWEST_TRIED = 2
TIMED_STEPS = 2
CLOSE = 1.3
"""Other schedules' plans are tried when they are predicted to take at most this many times the best."""

RIVALS = ("optimal", "ddp", "mgwfbp", "single", "wfbp")
NOISE = 0.04
"""Of one step of a trial, as a share: another plan than the favourite must win by this over the root of its steps."""

DISAGREE = 0.10
_FACTORS = (0.25, 4.0)


def try_candidates(rank: Rank, planner: Planner, plans: Mapping[str, Plan], unused: Sequence[str]) -> Plan:
    """The plan of `auto` after the trial. Every rank calls it together and gets the same."""
    favourite = Candidate("auto", _indices(planner, plans["auto"]), plans["auto"].predicted_step_s)
    shortlist = [favourite]
    for mode in RIVALS:
        if mode not in plans:
            continue
        buckets = _indices(planner, plans[mode])
        step_s = planner.simulate("auto", buckets).step_s
        if step_s <= CLOSE * favourite.step_s and all(buckets != other.buckets for other in shortlist):
            shortlist.append(Candidate(mode, buckets, step_s))
    shortlist = _affordable(shortlist)
    rounds = _rounds(shortlist)
    if rounds == 0:
        why = f"not tried beforehand: {len(shortlist)} candidates take longer than {TRIAL_S:.0f} s"
        return plans["auto"].model_copy(update={"note": why})
    measured = _run(rank, planner, shortlist, rounds, unused)
    off = statistics.median(m / c.step_s for m, c in zip(measured, shortlist, strict=True))
    again = ""
    if abs(off - 1) > DISAGREE and planner.contention is not None:
        fitted = replace(planner, contention=planner.contention.amplified(_factor(planner, shortlist, measured)))
        found = fitted.search().best()
        if all(found.buckets != other.buckets for other in shortlist):
            best = min(range(len(shortlist)), key=lambda place: measured[place])
            second = [
                shortlist[best],
                Candidate("planned again", found.buckets, fitted.simulate("auto", found.buckets).step_s),
            ]
            again = f"; predictions were {off - 1:+.0%} off, so it was planned again"
            both = _run(rank, planner, second, rounds, unused)
            shortlist.append(second[1])
            measured.append(measured[best] * both[1] / both[0])
    chosen = min(range(len(shortlist)), key=lambda place: measured[place])
    if measured[chosen] > (1 - NOISE / math.sqrt(rounds * TIMED_STEPS)) * measured[0]:
        chosen = 0
    tried = ", ".join(f"{c.name} {format_seconds(m)}" for c, m in zip(shortlist, measured, strict=True))
    plan = planner.plan("auto", shortlist[chosen].buckets)
    note = f"the buckets of {shortlist[chosen].name!r}, after {rounds * TIMED_STEPS} steps each of: {tried}{again}"
    return plan.model_copy(update={"note": note})


def _indices(planner: Planner, plan: Plan) -> Buckets:
    place = {gradient.name: index for index, gradient in enumerate(planner.step.gradients)}
    return [[place[name] for name in names] for names in plan.buckets]


def _rounds(shortlist: Sequence[Candidate]) -> int:
    round_s = (1 + TIMED_STEPS) * sum(candidate.step_s for candidate in shortlist)
    return min(MOST_ROUNDS, int(TRIAL_S / round_s)) if round_s > 0 else MOST_ROUNDS


def _affordable(shortlist: Sequence[Candidate]) -> list[Candidate]:
    """The favourite, DDP's own buckets if they are there, and as many of the others as time allows, the best first."""
    kept = list(shortlist)
    while _rounds(kept) < FEWEST_ROUNDS and len(kept) > FEWEST_TRIED:
        others = [candidate for candidate in kept[1:] if candidate.name != "ddp"]
        kept.remove(max(others, key=lambda candidate: candidate.step_s))
    return kept


def engine_of(rank: Rank, planner: Planner, buckets: Buckets, unused: Sequence[str]) -> Engine:
    """Our engine, attached, with these buckets and one for each parameter that got no gradient. Raises UsageError."""
    names = [gradient.name for gradient in planner.step.gradients]
    named = [[names[index] for index in bucket] for bucket in buckets] + [[name] for name in unused]
    model, optimizer = rank.workload.model, rank.workload.optimizer
    copies, compress = rank.run.copies, rank.run.compress
    return Engine(model, optimizer, named, group=rank.group, wait="step", copies=copies, compress=compress)


def _run(
    rank: Rank, planner: Planner, shortlist: Sequence[Candidate], rounds: int, unused: Sequence[str]
) -> list[float]:
    """A step [s] of each candidate, of the slowest rank, in rounds whose order turns; see `_in_pairs`."""
    times: list[list[float]] = [[] for _ in shortlist]
    for number in range(rounds):
        for offset in range(len(shortlist)):
            place = (number + offset) % len(shortlist)
            candidate = shortlist[place]
            engine = engine_of(rank, planner, candidate.buckets, unused)
            for step in range(1 + TIMED_STEPS):
                rank.note(f"trying {candidate.name}, round {number + 1} of {rounds}")
                dist.all_reduce(torch.zeros(1, device=rank.device))
                took_s = rank.timed_step()
                if step:
                    times[place].append(took_s)
            engine.detach()
    slowest = torch.tensor(times, dtype=torch.float64, device=rank.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    rank.workload.optimizer.zero_grad(set_to_none=True)
    return _in_pairs(slowest.tolist())


def _in_pairs(times: Sequence[Sequence[float]]) -> list[float]:
    """One step [s] of each row of steps, TIMED_STEPS a round: the first's is its median, another's is that times the
    median of its ratios to the first, round by round, which a machine that changes its speed between rounds does not
    change.
    """
    rounds = [[sum(row[at : at + TIMED_STEPS]) for at in range(0, len(row), TIMED_STEPS)] for row in times]
    first_s = statistics.median(times[0])
    return [first_s * statistics.median(a / b for a, b in zip(row, rounds[0], strict=True)) for row in rounds]


def _factor(planner: Planner, shortlist: Sequence[Candidate], measured: Sequence[float]) -> float:
    """By how much to multiply the contention so that predictions fit on the (geometric) mean, within _FACTORS."""
    assert planner.contention is not None
    low, high = _FACTORS
    wanted = sum(math.log(value) for value in measured)
    for _ in range(20):
        middle = math.sqrt(low * high)
        fitted = replace(planner, contention=planner.contention.amplified(middle))
        if sum(math.log(fitted.simulate("auto", candidate.buckets).step_s) for candidate in shortlist) < wanted:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
