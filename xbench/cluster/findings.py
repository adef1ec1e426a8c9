"""Conclusions of a comparison of policies: the best policy, its gap to the optimum, and the cost of placement."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from xbench.records import ClusterResult, ClusterRun
from xbench.units import format_duration, format_percent

CLEAR = 0.01
"""Share of the mean below which a difference between two policies is not mentioned."""


def findings(results: Sequence[ClusterResult]) -> list[str]:
    """The conclusions, the answer first. `results` are in the order of policies, restart costs and placements."""
    conditions = list(dict.fromkeys((result.restart_s, result.placement) for result in results))
    costs = {restart_s for restart_s, _ in conditions}
    placements = {placement for _, placement in conditions}
    sentences = []
    for restart_s, placement in conditions:
        matching = [result for result in results if (result.restart_s, result.placement) == (restart_s, placement)]
        condition = f" with restarts of {restart_s:g} s" if len(costs) > 1 else ""
        condition += f" when {placement}" if len(placements) > 1 else ""
        sentences.append(_best(matching, condition))
    first = [result for result in results if (result.restart_s, result.placement) == conditions[0]]
    best = min(first, key=lambda result: result.jct_mean_s)
    if best.gap is not None:
        sentences.insert(1, f"{best.policy} is {above(best)}.")
    return sentences + _placed(results)


def _best(results: Sequence[ClusterResult], condition: str) -> str:
    """Sentence on the best policy at one restart cost and placement."""
    ranked = sorted(results, key=lambda result: result.jct_mean_s)
    best, reference = ranked[0], results[0].policy
    took = format_duration(best.jct_mean_s)
    if len(ranked) == 1:
        return f"The mean job completion time under {best.policy}{condition}: {took}."
    shortest = f"{best.policy} has the shortest mean job completion time{condition}: {took}"
    close = [result.policy for result in ranked[1:] if result.jct_mean_s < (1 + CLEAR) * best.jct_mean_s]
    if close:
        return f"{shortest}, and {', '.join(close)} within {format_percent(CLEAR)} of it."
    if any(result.policy == reference and result.growing for result in ranked):
        return f"{shortest}; no ratio is headlined, because the queue under {reference}, the reference, still grows."
    if best.ratio is not None:
        return f"{shortest}, {format_percent(1 - best.ratio)} less than {reference}'s{_interval_text(best)}."
    return f"{shortest}; {ranked[1].policy} is next with {format_duration(ranked[1].jct_mean_s)}."


def growth_warnings(results: Sequence[ClusterResult], runs: Sequence[ClusterRun]) -> list[str]:
    """A warning if the queue under any policy still grows when the last job comes; else an empty list."""
    counts: dict[str, str] = {}
    for result in results:
        if result.growing and result.policy not in counts:
            scenario = (result.policy, result.restart_s, result.placement)
            same = [run for run in runs if (run.policy, run.restart_s, run.placement) == scenario]
            middle = fmean(run.unfinished_middle or 0.0 for run in same)
            end = fmean(run.unfinished_end or 0.0 for run in same)
            counts[result.policy] = f"{result.policy} {middle:.0f} and {end:.0f}"
    if not counts:
        return []
    return [
        "the queue still grows when the last job comes (unfinished jobs in the middle of the arrivals and at the end: "
        f"{', '.join(counts.values())}); means there depend on how long jobs come, and so do ratios to them; "
        "a lower load, more GPUs, or a longer trace with --window tells more"
    ]


def above(result: ClusterResult) -> str:
    """The gap in words: 'at most 12.3 % above the optimum'."""
    gap = result.gap or 0.0
    if gap < 0.0005:
        return "at the optimum"
    return f"at most {format_percent(gap, 0 if gap >= 1 else 1)} above the optimum"


def _placed(results: Sequence[ClusterResult]) -> list[str]:
    """Sentences on the cost of the other placements, at the first restart cost."""
    first = results[0]
    sentences = []
    for placement in dict.fromkeys(result.placement for result in results if result.placement != first.placement):
        costs = sorted(
            (result.placed_ratio - 1, result.policy)
            for result in results
            if result.placement == placement and result.restart_s == first.restart_s and result.placed_ratio is not None
        )
        (least, gentle), (most, harsh) = costs[0], costs[-1]
        jobs = f"{placement.capitalize() if placement else ''} over hosts, jobs take"
        if _longer(least) == _longer(most):
            sentences.append(f"{jobs} {_longer(least)} than {first.placement} on average.")
        else:
            sentences.append(
                f"{jobs} from {_longer(least)} ({gentle}) to {_longer(most)} ({harsh}) than {first.placement} on "
                "average."
            )
    return sentences


def _longer(share: float) -> str:
    return f"{format_percent(abs(share))} {'longer' if share >= 0 else 'less long'}"


def _interval_text(result: ClusterResult) -> str:
    if result.ratio_ci95 is None:
        return ""
    low, high = result.ratio_ci95
    return f" (ratio {result.ratio:.3f}, 95 % CI {low:.3f} to {high:.3f} over seeds)"
