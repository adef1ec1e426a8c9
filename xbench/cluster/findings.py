"""What a comparison of policies says: the best policy, how near the optimum it is, and what placement costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from xbench.records import ClusterResult, ClusterRun
from xbench.units import format_duration, format_percent

CLEAR = 0.01
"""Two policies that are closer than this share of the mean are not told apart in words."""


def findings(results: Sequence[ClusterResult]) -> list[str]:
    """The answer first. `results` are in the order of policies, restart costs and placements; one is not enough."""
    grounds = list(dict.fromkeys((one.restart_s, one.placement) for one in results))
    costs = {restart_s for restart_s, _ in grounds}
    placements = {placement for _, placement in grounds}
    said = []
    for restart_s, placement in grounds:
        here = [one for one in results if (one.restart_s, one.placement) == (restart_s, placement)]
        at = f" with restarts of {restart_s:g} s" if len(costs) > 1 else ""
        at += f" when {placement}" if len(placements) > 1 else ""
        said.append(_best(here, at))
    first = [one for one in results if (one.restart_s, one.placement) == grounds[0]]
    best = min(first, key=lambda one: one.jct_mean_s)
    if best.gap is not None:
        said.insert(1, f"{best.policy} is {above(best)}.")
    return said + _placed(results)


def _best(results: Sequence[ClusterResult], at: str) -> str:
    """The best policy where restarts cost the same and jobs are placed alike."""
    here = sorted(results, key=lambda one: one.jct_mean_s)
    best, reference = here[0], results[0].policy
    took = format_duration(best.jct_mean_s)
    if len(here) == 1:
        return f"The mean job completion time under {best.policy}{at}: {took}."
    shortest = f"{best.policy} has the shortest mean job completion time{at}: {took}"
    close = [one.policy for one in here[1:] if one.jct_mean_s < (1 + CLEAR) * best.jct_mean_s]
    if close:
        return f"{shortest}, and {', '.join(close)} within {format_percent(CLEAR)} of it."
    if any(one.policy == reference and one.growing for one in here):
        return f"{shortest}; no ratio is headlined, because the queue under {reference}, the reference, still grows."
    if best.ratio is not None:
        return f"{shortest}, {format_percent(1 - best.ratio)} less than {reference}'s{_sure(best)}."
    return f"{shortest}; {here[1].policy} is next with {format_duration(here[1].jct_mean_s)}."


def growth_warnings(results: Sequence[ClusterResult], runs: Sequence[ClusterRun]) -> list[str]:
    """A sentence where the queue still grows when the last job comes, under any policy."""
    growing = {one.policy: one for one in reversed(results) if one.growing}
    if not growing:
        return []
    told = []
    for policy, one in reversed(growing.items()):
        way = (one.policy, one.restart_s, one.placement)
        own = [run for run in runs if (run.policy, run.restart_s, run.placement) == way]
        middle, end = (
            fmean(count or 0.0 for count in counts)
            for counts in ([run.unfinished_middle for run in own], [run.unfinished_end for run in own])
        )
        told.append(f"{policy} {middle:.0f} and {end:.0f}")
    return [
        "the queue still grows when the last job comes (unfinished jobs in the middle of the arrivals and at the end: "
        f"{', '.join(told)}); means there depend on how long jobs come, and so do ratios to them; a lower load, more "
        "GPUs, or a longer trace with --window tells more"
    ]


def above(result: ClusterResult) -> str:
    """Its gap: 'at most 12.3 % above the optimum', '12.3 % above the exact optimum'."""
    gap = result.gap or 0.0
    if gap < 0.0005:
        return "at the exact optimum" if result.gap_exact else "at the optimum"
    share = format_percent(gap, 0 if gap >= 1 else 1)
    return f"{share} above the exact optimum" if result.gap_exact else f"at most {share} above the optimum"


def _placed(results: Sequence[ClusterResult]) -> list[str]:
    """What the other placements cost, at the first restart cost."""
    first = results[0]
    said = []
    for placement in dict.fromkeys(one.placement for one in results if one.placement != first.placement):
        costs = sorted(
            (one.placed_ratio - 1, one.policy)
            for one in results
            if one.placement == placement and one.restart_s == first.restart_s and one.placed_ratio is not None
        )
        (least, gentle), (most, harsh) = costs[0], costs[-1]
        jobs = f"{placement.capitalize() if placement else ''} over hosts, jobs take"
        if _longer(least) == _longer(most):
            said.append(f"{jobs} {_longer(least)} than {first.placement} on average.")
        else:
            said.append(
                f"{jobs} from {_longer(least)} ({gentle}) to {_longer(most)} ({harsh}) than {first.placement} on "
                "average."
            )
    return said


def _longer(share: float) -> str:
    return f"{format_percent(abs(share))} {'longer' if share >= 0 else 'less long'}"


def _sure(result: ClusterResult) -> str:
    if result.ratio_ci95 is None:
        return ""
    low, high = result.ratio_ci95
    return f" (ratio {result.ratio:.3f}, 95 % CI {low:.3f} to {high:.3f} over seeds)"
