"""Planner functions of the modes: each takes a `Planner` and a `ModeInfo`, and `ModeInfo.planner` names it.

Buckets are indices of `planner.step.gradients`, in launch order. The planner then predicts their step from the mode's
facts. Modes of the next forward pass, and searches, return a `Candidate`, which has more than buckets.
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
"""The model under which the exact plan is the optimum."""

_MIB = 1024 * 1024


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
