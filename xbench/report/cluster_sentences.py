"""Text of `xbench cluster compare`: the columns of a policy, their meaning, and the simulated setup.

The table holds each figure's mean over seeds. Only the mean job completion time and its ratio to the first policy have
intervals, because policies are compared by these two.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from xbench.records import ClusterComparison, ClusterResult, ClusterRun
from xbench.units import format_duration, format_percent, format_seconds


class Column(NamedTuple):
    """One figure of a policy, computed from its simulations."""

    heading: str
    cell: Callable[[Sequence[ClusterRun]], str]


def _mean(runs: Sequence[ClusterRun], name: str) -> float:
    return statistics.fmean(getattr(run, name) for run in runs)


def _times(ratio: float) -> str:
    """Format a ratio as '1.75×', '23.1×' or '1,170×'."""
    digits = 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{ratio:,.{digits}f}×"


COLUMNS = (
    Column("p50", lambda runs: format_duration(_mean(runs, "jct_p50_s"))),
    Column("p95", lambda runs: format_duration(_mean(runs, "jct_p95_s"))),
    Column("p99", lambda runs: format_duration(_mean(runs, "jct_p99_s"))),
    Column("queued", lambda runs: format_duration(_mean(runs, "queued_mean_s"))),
    Column("slowdown", lambda runs: _times(_mean(runs, "slowdown_mean"))),
    Column("unfair", lambda runs: _times(_mean(runs, "unfairness_p95"))),
    Column("makespan", lambda runs: format_duration(_mean(runs, "makespan_s"))),
    Column("held", lambda runs: format_percent(_mean(runs, "occupancy"), 0)),
    Column("useful", lambda runs: format_percent(_mean(runs, "useful_share"), 1)),
    Column("restarts", lambda runs: f"{_mean(runs, 'restarts'):.0f}"),
)
HOST_COLUMNS = (
    Column("across", lambda runs: format_percent(_mean(runs, "across_share"), 0)),
    Column("lost", lambda runs: format_percent(_mean(runs, "lost_share"), 1)),
)
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
    return ["policy", *placement, "mean JCT", *judged, *(column.heading for column in columns(record))]


def columns(record: ClusterComparison) -> tuple[Column, ...]:
    """Return the columns with figures of a policy."""
    return (*COLUMNS, *(HOST_COLUMNS if record.placements else ()))


def note(record: ClusterComparison) -> str:
    """Explain the columns."""
    return " ".join([NOTE, *([GAP_NOTE] if is_bounded(record) else []), *([HOST_NOTE] if record.placements else [])])


def heading(record: ClusterComparison, cost_s: float) -> str:
    """Return the title of a table."""
    return f"{cluster_of(record)}, {costing(cost_s)} (simulated)"


def cluster_of(record: ClusterComparison) -> str:
    """Describe the cluster: its GPUs, and its hosts if there are several."""
    hosts = f" on hosts of {record.gpus_per_host}" if record.gpus_per_host is not None else ""
    return f"{record.gpus} GPUs{hosts}"


def costing(restart_s: float) -> str:
    """Describe the cost of a restart."""
    return f"restarts of {restart_s:g} s" if restart_s else "restarts for nothing"


def rows(record: ClusterComparison, cost_s: float) -> list[list[str]]:
    """Return one row per policy and placement, with the columns of `headings`."""
    found = []
    for result in results_at(record, cost_s):
        runs = runs_of(record, result)
        placement = [result.placement or "–"] if record.placements else []
        figures = (column.cell(runs) for column in columns(record))
        found.append([result.policy, *placement, jct_of(result), *_judged(record, result), *figures])
    return found


def _judged(record: ClusterComparison, result: ClusterResult) -> list[str]:
    ratio = [ratio_of(result)] if is_compared(record) else []
    return [*ratio, *([gap_of(result)] if is_bounded(record) else [])]


def results_at(record: ClusterComparison, cost_s: float) -> list[ClusterResult]:
    """Return the results of one restart cost: policies in their order, each with its placements."""
    return [result for result in record.results if result.restart_s == cost_s]


def runs_of(record: ClusterComparison, result: ClusterResult) -> list[ClusterRun]:
    """Return the simulations behind a result."""
    way = (result.policy, result.restart_s, result.placement)
    return [run for run in record.runs if (run.policy, run.restart_s, run.placement) == way]


def jct_of(result: ClusterResult) -> str:
    """Format the mean job completion time, with its interval if there is one."""
    shown = format_duration(result.jct_mean_s)
    if result.jct_mean_ci95 is None:
        return shown
    low, high = result.jct_mean_ci95
    return f"{shown} [{format_duration(low)}, {format_duration(high)}]"


def ratio_of(result: ClusterResult) -> str:
    """Format the ratio to the reference's mean job completion time, with its interval if there is one."""
    if result.ratio is None:
        return "reference"
    if result.ratio_ci95 is None:
        return f"{result.ratio:.3f}"
    low, high = result.ratio_ci95
    return f"{result.ratio:.3f} [{low:.3f}, {high:.3f}]"


def gap_of(result: ClusterResult) -> str:
    """Format the gap to the optimum ('12.3 %') or an upper limit of it ('≤ 12.3 %'), with any interval."""
    if result.gap is None:
        return "–"
    digits = 0 if result.gap >= 1 else 1
    shown = f"{'' if result.gap_exact else '≤ '}{format_percent(result.gap, digits)}"
    if result.gap_ci95 is None:
        return shown
    low, high = result.gap_ci95
    return f"{shown} [{format_percent(low, digits)}, {format_percent(high, digits)}]"


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
    found += [*_loads(record), *_windows(record)]
    if trace.seeds:
        count = len(trace.seeds)
        few = "" if count >= 6 else "; fewer than 6 give no interval"
        found.append(("seeds", f"{count}, from {min(trace.seeds)} on{few}"))
    found += [("" if number else "notes", said) for number, said in enumerate(trace.notes)]
    bounded = next((run for run in record.runs if run.bound_s is not None), None)
    if bounded is not None and bounded.bound_s is not None:
        kind = "the exact optimum" if bounded.bound_exact else "a lower bound"
        of = "" if bounded.seed is None else f" of seed {bounded.seed}"
        found.append(("optimum", f"no schedule{of} has a mean JCT below {format_duration(bounded.bound_s)}: {kind}"))
    if record.across_hosts is not None:
        found.append(("hosts", f"{format_percent(record.across_hosts, 0)} of the speed on more hosts than needed"))
    slowest = max(record.runs, key=lambda run: run.decision_s)
    found.append(
        ("decisions", f"{format_seconds(slowest.decision_s)} each at most on average, {slowest.policy} (real)")
    )
    found.append(("made by", f"xbench {record.xbench}: {record.command}"))
    return found


def _loads(record: ClusterComparison) -> list[tuple[str, str]]:
    """Describe the GPU time that the jobs ask for; empty if all arrive at once."""
    trace = record.trace
    if trace.span_s <= 0:
        return []
    load = trace.gpu_hours * 3600 / (record.gpus * trace.span_s)
    of = f" of seed {trace.seeds[0]}" if trace.seeds else ""
    said = (
        f"the jobs{of} ask for {format_percent(load, 0)} of the GPU time until the last of them comes; held is over "
        "the time until the last ends"
    )
    return [("load", said)]


def _windows(record: ClusterComparison) -> list[tuple[str, str]]:
    if record.window is None:
        return []
    first, last = record.window
    said = f"jobs {first:,} to {last:,} by arrival count; all are simulated, and makespan and held are of all"
    return [("window", said)]
