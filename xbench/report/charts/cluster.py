"""Charts of cluster policies: completion times, GPUs held and waiting jobs over time, and spans of every job."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from xbench.records import ClusterComparison, ClusterCurve, ClusterResult
from xbench.report import cluster_sentences as told
from xbench.report.charts.axes import BELOW, COLOURS, HOVER, Unit, long_unit, marks, plain, rounded, whiskers
from xbench.report.page.model import Cell, Figure, Table, Trace, columns
from xbench.units import format_duration


def mean_times(record: ClusterComparison) -> Figure:
    """Draw the mean job completion time: one bar per policy, restart cost and placement."""
    unit = long_unit(max(result.jct_mean_s for result in record.results))
    traces: list[Trace] = []
    grounds = list(dict.fromkeys((one.restart_s, one.placement) for one in record.results))
    for place, (cost_s, placement) in enumerate(grounds):
        here = [result for result in told.results_at(record, cost_s) if result.placement == placement]
        placed = f", {placement}" if placement else ""
        traces.append({
            "type": "bar", "name": f"{told.costing(cost_s)}{placed}", "x": [plain(one.policy) for one in here],
            "y": [unit.of(one.jct_mean_s) for one in here], "marker": {"color": COLOURS[place % len(COLOURS)]},
            "customdata": [_hover(one) for one in here], "hovertemplate": HOVER,
            "error_y": _intervals(here, unit.per_s),
        })  # fmt: skip
    policy, *others = told.headings(record)
    headings = columns((policy, "restart", *others), (policy, "placement"))
    rows: list[list[Cell]] = [
        [row[0], f"{cost_s:g} s", *row[1:]] for cost_s in record.restart_costs_s for row in told.rows(record, cost_s)
    ]
    intervals = " Lines: the 95 % interval over seeds." if any(one.jct_mean_ci95 for one in record.results) else ""
    return Figure(
        key="mean-jct",
        title="Mean job completion time",
        labels=["simulated"],
        told=f"From a job's arrival to its end; shorter is better.{intervals}",
        traces=traces,
        layout={
            "barmode": "group",
            "yaxis": {"title": {"text": f"mean JCT [{unit.name}]"}, "rangemode": "tozero"},
            "xaxis": {"type": "category"},
            "legend": BELOW,
            "showlegend": len(traces) > 1,
        },
        height=400,
        table=Table("Every policy in figures", headings, rows, told.note(record), opened=True),
    )


def _intervals(results: Sequence[ClusterResult], per_s: float) -> Trace:
    """Return the intervals over seeds as lines; a result without an interval has none."""
    ends = [(result.jct_mean_s, result.jct_mean_ci95 or (result.jct_mean_s, result.jct_mean_s)) for result in results]
    return whiskers(ends, per_s, visible=any(result.jct_mean_ci95 for result in results))


def _hover(result: ClusterResult) -> str:
    return f"<b>{plain(result.policy)}</b><br>{told.jct_of(result)}<br>ratio {told.ratio_of(result)}" + (
        f"<br>gap {told.gap_of(result)}" if result.gap is not None else ""
    )


def _first(record: ClusterComparison) -> list[ClusterCurve]:
    """Return the curves of the first restart cost and placement. A plot of more would be unreadable."""
    placement = record.placements[0] if record.placements else None
    at = (record.restart_costs_s[0], placement)
    return [curve for curve in record.curves if (curve.restart_s, curve.placement) == at]


def _of_seed(record: ClusterComparison) -> str:
    seed = f" of seed {record.trace.seeds[0]}" if record.trace.seeds else ""
    cost = f", {told.costing(record.restart_costs_s[0])}" if len(record.restart_costs_s) > 1 else ""
    placed = f", {record.placements[0]}" if len(record.placements) > 1 else ""
    return f"The simulation{seed}{cost}{placed}."


def distributions(record: ClusterComparison) -> list[Figure]:
    """Draw the share of jobs done within a time."""
    curves = _first(record)
    if not curves:
        return []
    look = marks(record.policies)
    unit = long_unit(max(curve.jct_s[50] for curve in curves))
    traces: list[Trace] = [
        {
            "type": "scatter", "mode": "lines", "name": plain(curve.policy),
            "x": [rounded(max(unit.of(value), 1e-6)) for value in curve.jct_s], "y": list(range(101)),
            "line": {"color": look[curve.policy].colour, "width": 2},
            "hovertemplate": f"<b>{plain(curve.policy)}</b><br>%{{y}} % within %{{x:.3~r}} {unit.name}<extra></extra>",
        }
        for curve in curves
    ]  # fmt: skip
    shares = (5, 25, 50, 75, 90, 95, 99)
    headings = columns(("policy", *(f"{share} %" for share in shares)), ("policy",))
    rows: list[list[Cell]] = [
        [curve.policy, *(format_duration(curve.jct_s[share]) for share in shares)] for curve in curves
    ]
    return [
        Figure(
            key="jct-distribution",
            title="Jobs done within a time",
            labels=["simulated"],
            told=f"{_of_seed(record)} A curve further to the left is better.",
            traces=traces,
            layout={
                "xaxis": {"type": "log", "title": {"text": f"JCT [{unit.name}], logarithmic"}, "tickformat": "~r"},
                "yaxis": {"title": {"text": "jobs [%]"}, "range": [0, 100]},
                "legend": BELOW,
                "hovermode": "closest",
            },
            height=400,
            table=Table("Percentiles of the job completion time", headings, rows),
        )
    ]


def over_time(record: ClusterComparison) -> list[Figure]:
    """Draw the GPUs held and the waiting jobs over time."""
    curves = [curve for curve in _first(record) if curve.at_s]
    if not curves:
        return []
    look = marks(record.policies)
    unit = long_unit(max(curve.at_s[-1] for curve in curves))
    found = []
    for key, title, said in (("held", "GPUs held", f"; there are {record.gpus}"), ("waiting", "Jobs that wait", "")):
        traces: list[Trace] = [
            {
                "type": "scatter", "mode": "lines", "name": plain(curve.policy),
                "x": [rounded(unit.of(value)) for value in curve.at_s],
                "y": [rounded(value) for value in getattr(curve, key)],
                "line": {"color": look[curve.policy].colour, "width": 1.5, "shape": "hvh"},
            }
            for curve in curves
        ]  # fmt: skip
        count = len(curves[0].at_s)
        found.append(
            Figure(
                key=f"{key}-over-time",
                title=title,
                labels=["simulated"],
                told=f"{_of_seed(record)} Means over {count} equal windows of each policy's makespan{said}.",
                traces=traces,
                layout={
                    "xaxis": {"title": {"text": f"since the first arrival [{unit.name}]"}},
                    "yaxis": {"title": {"text": title.lower()}, "rangemode": "tozero"},
                    "legend": BELOW,
                },
                height=340,
                table=_windows(title, curves, key),
            )
        )
    return found


def _windows(title: str, curves: Sequence[ClusterCurve], key: str) -> Table:
    """Return the means over each tenth of the makespan."""
    headings = columns(("policy", *(f"{low} to {low + 10} %" for low in range(0, 100, 10))), ("policy",))
    rows: list[list[Cell]] = []
    for curve in curves:
        values = getattr(curve, key)
        parts = [values[len(values) * tenth // 10 : len(values) * (tenth + 1) // 10] for tenth in range(10)]
        rows.append([curve.policy, *(f"{fmean(part):.1f}" if part else "–" for part in parts)])
    return Table(f"{title}, by tenths of the makespan", headings, rows)


def held_bars(spans: Sequence[tuple[str, float, float, str]], count: int, what: str, place: int, unit: Unit) -> Trace:
    """Draw a bar for each span in which a job held `count` of something: (job, from [s], to [s], what else to say)."""
    return {
        "type": "bar", "orientation": "h", "name": f"{count} {what}s" if count > 1 else f"1 {what}",
        "y": [plain(job) for job, *_ in spans], "base": [rounded(unit.of(from_s)) for _, from_s, *_ in spans],
        "x": [rounded(unit.of(to_s - from_s)) for _, from_s, to_s, _ in spans],
        "marker": {"color": COLOURS[place % len(COLOURS)], "line": {"color": "--paper", "width": 0.5}},
        "customdata": [f"<b>{plain(job)}</b><br>{count} {what}s from {format_duration(from_s)} to "
                       f"{format_duration(to_s)}{more}" for job, from_s, to_s, more in spans],
        "hovertemplate": HOVER,
    }  # fmt: skip


def lines_of_jobs(jobs: Sequence[str], over: str) -> dict[str, Any]:
    """Lay out a chart of spans: a line a job, the first on top."""
    return {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"title": {"text": over}},
        "yaxis": {"type": "category", "categoryorder": "array", "showticklabels": len(jobs) <= 40,
                  "categoryarray": [plain(name) for name in reversed(jobs)]},
        "legend": BELOW,
        "hovermode": "closest",
    }  # fmt: skip


def gantt(record: ClusterComparison) -> list[Figure]:
    """Draw one chart per policy of a small trace: a line per job, with a bar while it holds GPUs."""
    found: list[Figure] = []
    headings = columns(("job", "GPUs", "from", "to"), ("job",))
    for policy in record.policies:
        spans = [span for span in record.spans if span.policy == policy]
        if not spans:
            continue
        unit = long_unit(max(span.to_s for span in spans))
        order = list(dict.fromkeys(span.job for span in sorted(spans, key=lambda span: span.from_s)))
        traces: list[Trace] = []
        for place, gpus in enumerate(sorted({span.gpus for span in spans})):
            own = [(span.job, span.from_s, span.to_s, "") for span in spans if span.gpus == gpus]
            traces.append(held_bars(own, gpus, "GPU", place, unit))
        rows: list[list[Cell]] = [
            [span.job, str(span.gpus), format_duration(span.from_s), format_duration(span.to_s)] for span in spans
        ]
        found.append(
            Figure(
                key=f"gantt-{len(found)}",
                title=f"Every job under {policy}",
                labels=["simulated"],
                told=f"{_of_seed(record)} A line a job in the order of their beginning; a bar while it holds GPUs.",
                traces=traces,
                layout=lines_of_jobs(order, f"since the first arrival [{unit.name}]"),
                height=120 + min(900, 14 * len(order)),
                table=Table(f"Every span under {policy}", headings, rows, bulk=True),
                folded=bool(found),
            )
        )  # fmt: skip
    return found
