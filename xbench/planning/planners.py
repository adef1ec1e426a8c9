"""Buckets of each mode: functions from a `Planner` and a `ModeInfo`, named by `ModeInfo.planner`.

Buckets are indices of `planner.step.gradients`, in launch order; the planner then predicts their step from the mode's
facts. What one of the next forward pass makes, or a search, is a `Candidate` and brings more than buckets.
"""

from __future__ import annotations

from dataclasses import replace

from xbench.modes import EXACT, ModeInfo
from xbench.planning import merge
from xbench.planning.auto import Candidate
from xbench.planning.plans import Planner, caps_mib
from xbench.planning.simulate import Buckets
from xbench.units import format_percent

_FREE = "exact for a link that costs computation nothing"
"""The arithmetic that makes the exact plan the optimum."""

_MIB = 1024 * 1024


def nothing(planner: Planner, mode: ModeInfo) -> Buckets:
    """No bucket at all."""
    return []


def ddp(planner: Planner, mode: ModeInfo) -> Buckets:
    """DDP's own buckets."""
    return merge.ddp(planner.step.gradients)


def single(planner: Planner, mode: ModeInfo) -> Buckets:
    """Everything at once."""
    return merge.single(planner.step.gradients)


def wfbp(planner: Planner, mode: ModeInfo) -> Buckets:
    """A bucket a gradient."""
    return merge.wfbp(planner.step.gradients)


def mgwfbp(planner: Planner, mode: ModeInfo) -> Buckets:
    """The paper's greedy, by ready times under traffic where they were measured."""
    cost = planner.known_cost
    return planner.undisturbed(merge.mgwfbp(planner.under_traffic, cost.alpha_s, cost.beta_s_per_byte))


def mgwfbp_note(planner: Planner, step_s: float) -> str:
    """How far the greedy is from the optimum."""
    best_s = planner.simulate(EXACT, planner.undisturbed(planner.exact)).step_s
    gap = step_s / best_s - 1.0 if best_s > 0 else 0.0
    side = "below" if gap < 0 else "above"
    return f"the paper's greedy: predicted step {format_percent(abs(gap))} {side} that of {EXACT}, {_FREE}"


def optimal(planner: Planner, mode: ModeInfo) -> Buckets:
    """The exact plan, by ready times under traffic where they were measured."""
    return planner.undisturbed(planner.exact)


def optimal_note(planner: Planner, step_s: float) -> str:
    """Under which model the plan is exact."""
    return f"{_FREE}; the predicted step counts what it costs" if planner.contention is not None else _FREE


def tuned_ddp(planner: Planner, mode: ModeInfo) -> Buckets:
    """What DDP makes of the exact plan: that plan itself for one dtype, see `bucket_caps_mib` for several."""
    gradients = planner.under_traffic
    kinds = [gradients[bucket[0]].dtype for bucket in planner.exact]
    caps = caps_mib(kinds, [sum(gradients[index].nbytes for index in bucket) for bucket in planner.exact])
    formed = merge.ddp_assignment(gradients, [int(cap * _MIB) for cap in caps]) if caps else merge.ddp(gradients)
    return planner.undisturbed(formed)


def searched(planner: Planner, mode: ModeInfo) -> Buckets | Candidate:
    """The best of the search; of modes of the next forward pass too where `Planner.overlap` allows them."""
    return planner.best() if planner.overlap == "forward" else planner.search().best().buckets


def in_halves(planner: Planner, mode: ModeInfo) -> Candidate:
    """The best buckets found for reduce-scatters in backward and all-gathers in the next forward pass."""
    return replace(planner.candidate(planner.next_forward.dear()), carrier=mode.name)


def in_parts(planner: Planner, mode: ModeInfo) -> Candidate:
    """The best parts found, in the order in which the next forward pass needs them."""
    return replace(planner.candidate(planner.next_forward.priority()), carrier=mode.name)
