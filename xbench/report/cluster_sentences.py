"""Text of `xbench cluster compare`: the columns of a policy, their meaning, and the simulated setup.

The table holds each figure's mean over seeds. Only the mean job completion time and its ratio to the first policy have
intervals, because policies are compared by these two.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from xbench.records import ClusterComparison, ClusterResult, ClusterRun
from xbench.report.sentences import ratio_text
from xbench.text import counted
from xbench.units import format_duration, format_percent, format_seconds

Cells = dict[str, Callable[[Sequence[ClusterRun]], str]]
"""Figures of a policy by heading, computed from its simulations."""


def _mean(runs: Sequence[ClusterRun], name: str) -> float:
    return statistics.fmean(getattr(run, name) for run in runs)


def _times(ratio: float) -> str:
    """Format a ratio as '1.75×', '23.1×' or '1,170×'."""
    digits = 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{ratio:,.{digits}f}×"


COLUMNS: Cells = {
    "p50": lambda runs: format_duration(_mean(runs, "jct_p50_s")),
    "p95": lambda runs: format_duration(_mean(runs, "jct_p95_s")),
    "p99": lambda runs: format_duration(_mean(runs, "jct_p99_s")),
    "queued": lambda runs: format_duration(_mean(runs, "queued_mean_s")),
    "slowdown": lambda runs: _times(_mean(runs, "slowdown_mean")),
    "unfair": lambda runs: _times(_mean(runs, "unfairness_p95")),
    "makespan": lambda runs: format_duration(_mean(runs, "makespan_s")),
    "held": lambda runs: format_percent(_mean(runs, "occupancy"), 0),
    "useful": lambda runs: format_percent(_mean(runs, "useful_share"), 1),
    "restarts": lambda runs: f"{_mean(runs, 'restarts'):.0f}",
}
HOST_COLUMNS: Cells = {
    "across": lambda runs: format_percent(_mean(runs, "across_share"), 0),
    "lost": lambda runs: format_percent(_mean(runs, "lost_share"), 1),
}
NOTE = (
    "JCT: job completion time, from arrival to end; p50 to p99 of it. Queued: mean wait for the first GPU. Slowdown: "
    "JCT over what the job takes alone on the GPUs that it asks for (at least 10 s), mean over jobs: 1× is no delay, "
    "and short jobs that wait long count most. Unfair: JCT over what the job would take with an even share of the "
    "crowded cluster, 95th percentile: above 1× it got less. Held: GPU time held, of all there was from the first "
    "arrival to the last end; useful: of that, what computed. All of it is simulated."
)
GAP_NOTE = (
    "Gap: mean JCT above that of the best schedule that shares no GPU and restarts for nothing; ≤: above a lower bound "
    "of it, so at most that far."
)
HOST_NOTE = "Across: GPU time held over several hosts; lost: of all held, what the fewest hosts would have saved."


def headings(record: ClusterComparison) -> list[str]:
    """Return the headings of the columns of `rows`."""
    placement = ["placement"] if record.placements else []
    judged = [*(["ratio"] if is_compared(record) else []), *(["gap"] if is_bounded(record) else [])]
    return ["policy", *placement, "mean JCT", *judged, *columns(record)]


def columns(record: ClusterComparison) -> Cells:
    """Return the columns with figures of a policy."""
    return COLUMNS | (HOST_COLUMNS if record.placements else {})


def note(record: ClusterComparison) -> str:
    """Explain the columns."""
    return " ".join([NOTE, *([GAP_NOTE] if is_bounded(record) else []), *([HOST_NOTE] if record.placements else [])])


def heading(record: ClusterComparison, cost_s: float) -> str:
    """Return the title of a table."""
    return f"{cluster_of(record)}, {costing(cost_s)} (simulated)"


def cluster_of(record: ClusterComparison) -> str:
    """Describe the cluster: its GPUs, and its hosts if there are several."""
    hosts = f" on hosts of {record.gpus_per_host}" if record.gpus_per_host is not None else ""
    return f"{counted(record.gpus, 'GPU')}{hosts}"


def costing(restart_s: float) -> str:
    """Describe the cost of a restart."""
    return f"restarts of {restart_s:g} s" if restart_s else "restarts for nothing"


def rows(record: ClusterComparison, cost_s: float) -> list[list[str]]:
    """Return one row per policy and placement, with the columns of `headings`."""
    found = []
    for result in results_at(record, cost_s):
        way = (result.policy, result.restart_s, result.placement)
        runs = [run for run in record.runs if (run.policy, run.restart_s, run.placement) == way]
        placement = [result.placement or "–"] if record.placements else []
        ratio = [ratio_of(result)] if is_compared(record) else []
        gap = [gap_of(result)] if is_bounded(record) else []
        figures = (cell(runs) for cell in columns(record).values())
        found.append([result.policy, *placement, jct_of(result), *ratio, *gap, *figures])
    return found


def results_at(record: ClusterComparison, cost_s: float) -> list[ClusterResult]:
    """Return the results of one restart cost: policies in their order, each with its placements."""
    return [result for result in record.results if result.restart_s == cost_s]


def jct_of(result: ClusterResult) -> str:
    """Format the mean job completion time, with its interval if there is one."""
    ends = "" if result.jct_mean_ci95 is None else f" [{', '.join(map(format_duration, result.jct_mean_ci95))}]"
    return f"{format_duration(result.jct_mean_s)}{ends}"


def ratio_of(result: ClusterResult) -> str:
    """Format the ratio to the reference's mean job completion time, with its interval if there is one."""
    return "reference" if result.ratio is None else ratio_text(result.ratio, result.ratio_ci95)


def gap_of(result: ClusterResult) -> str:
    """Format the upper limit of the gap to the optimum, '≤ 12.3 %', with any interval."""
    if result.gap is None:
        return "–"
    digits = 0 if result.gap >= 1 else 1
    ends = "" if result.gap_ci95 is None else f" [{', '.join(format_percent(end, digits) for end in result.gap_ci95)}]"
    return f"≤ {format_percent(result.gap, digits)}{ends}"


def is_bounded(record: ClusterComparison) -> bool:
    """True if any policy was compared to a bound."""
    return any(result.gap is not None for result in record.results)


def is_compared(record: ClusterComparison) -> bool:
    """True if there are several policies."""
    return len(record.policies) > 1


def basis(record: ClusterComparison) -> list[tuple[str, str]]:
    """Describe the simulated setup, as pairs of a name and a sentence."""
    trace = record.trace
    jobs = "job" if trace.jobs == 1 else "jobs"
    what = f"{trace.name}: {trace.jobs:,} {jobs}, {trace.gpu_hours:,.0f} GPU hours in {format_duration(trace.span_s)}"
    found = [("trace", what)]
    if trace.span_s > 0:  # not all at once
        load = trace.gpu_hours * 3600 / (record.gpus * trace.span_s)
        of = f" of seed {trace.seeds[0]}" if trace.seeds else ""
        asked = f"the jobs{of} ask for {format_percent(load, 0)} of the GPU time until the last of them comes"
        found.append(("load", f"{asked}; held is over the time until the last ends"))
    if record.window is not None:
        first, last = record.window
        counts = f"jobs {first:,} to {last:,} by arrival count"
        found.append(("window", f"{counts}; all are simulated, and makespan and held are of all"))
    if trace.seeds:
        count = len(trace.seeds)
        few = "" if count >= 6 else "; fewer than 6 give no interval"
        found.append(("seeds", f"{count}, from {min(trace.seeds)} on{few}"))
    found += [("" if number else "notes", said) for number, said in enumerate(trace.notes)]
    bounded = next((run for run in record.runs if run.bound_s is not None), None)
    if bounded is not None and bounded.bound_s is not None:
        of = "" if bounded.seed is None else f" of seed {bounded.seed}"
        told = f"no schedule{of} has a mean JCT below {format_duration(bounded.bound_s)}: a lower bound"
        found.append(("optimum", told))
    if record.across_hosts is not None:
        found.append(("hosts", f"{format_percent(record.across_hosts, 0)} of the speed on more hosts than needed"))
    slowest = max(record.runs, key=lambda run: run.decision_s)
    found.append(
        ("decisions", f"{format_seconds(slowest.decision_s)} each at most on average, {slowest.policy} (real)")
    )
    found.append(("made by", f"xbench {record.xbench}: {record.command}"))
    return found
