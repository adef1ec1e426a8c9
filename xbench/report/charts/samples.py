"""Every step over time, before any median: it shows warm-up, drift and outliers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from xbench.records import Comparison, Label, Sample
from xbench.report.charts.axes import BELOW, Mark, Unit, marks, named, plain, rounded, time_unit, upright
from xbench.report.page.model import Cell, Column, Figure, Layout, Table, Trace
from xbench.units import format_seconds

GAP = 0.03
"""Room between two launches, as a share of the whole measured time."""

HEIGHT_PX = 430


class Step(NamedTuple):
    """One step: its end [s] since the first launch began, its duration [s], its block, and whether it is warm-up."""

    at_s: float
    step_s: float
    sample: Sample
    warming: bool


def over_time(record: Comparison) -> Figure | None:
    """Draw each step of each block as its mode's mark: hollow in warm-up, ringed if its block is flagged."""
    begins_s = _launches(record.samples)
    steps = [step for sample in record.samples for step in _steps(sample, begins_s[sample.launch])]
    if not steps:
        return None
    unit = time_unit(median(step.step_s for step in steps))
    look = marks(record.modes)
    by_mode: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        by_mode[step.sample.mode].append(step)
    label: dict[str, Label] = {mode: result.label for mode, result in record.modes.items()}
    traces = [_steady(mode, by_mode[mode], look[mode], unit) for mode in record.modes if by_mode[mode]]
    warm = _warming(steps, look, unit)
    flagged = _flagged(steps, unit)
    return Figure(
        key="every-step",
        title="Every step over time",
        labels=sorted({label[mode] for mode in by_mode if mode in label}),
        told="Each mark is one step, at its place in the run; launches stand one after the other. Hollow: warm-up, "
        "which counts nowhere. Ringed: a block that was flagged as an outlier, and kept. A slope is drift, which "
        "alternating blocks of all modes divide out of ratios. Click on a name in the legend to hide it, twice to see "
        "it alone.",
        traces=[*traces, *([warm] if warm["x"] else []), *([flagged] if flagged["x"] else [])],
        layout={
            "xaxis": {"title": {"text": "time of measuring [s]"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"step [{unit.name}]"}, **_upright(steps, unit)},
            "shapes": [_parting(at_s) for launch, at_s in begins_s.items() if launch != min(begins_s)],
            "annotations": [_launch(launch, at_s) for launch, at_s in begins_s.items() if len(begins_s) <= 8],
            "legend": BELOW,
            "hovermode": "closest",
            "margin": {"t": 26},
        },
        height=HEIGHT_PX + 18 * (len(traces) // 4),
        table=_table(record),
    )


def _launches(samples: Sequence[Sample]) -> dict[int, float]:
    """Return the start [s] of each launch, if launches directly followed one another."""
    lasted: dict[int, float] = defaultdict(float)
    for sample in samples:
        end_s = sample.started_s + sum(sample.warmup_s) + sum(sample.steps_s)
        lasted[sample.launch] = max(lasted[sample.launch], end_s)
    gap_s = GAP * sum(lasted.values())
    begins, now_s = {}, 0.0
    for launch in sorted(lasted):
        begins[launch] = now_s
        now_s += lasted[launch] + gap_s
    return begins


def _steps(sample: Sample, began_s: float) -> list[Step]:
    now_s = began_s + sample.started_s
    made = []
    for place, step_s in enumerate([*sample.warmup_s, *sample.steps_s]):
        now_s += step_s
        made.append(Step(now_s, step_s, sample, place < len(sample.warmup_s)))
    return made


def _steady(mode: str, steps: Sequence[Step], mark: Mark, unit: Unit) -> Trace:
    """Return the timed steps of a mode. A second job's marks are smaller."""
    timed = [step for step in steps if not step.warming]
    return {
        **_points(timed, unit),
        "name": named(mode).replace("<br>", ""),
        "marker": {"color": mark.colour, "symbol": mark.symbol, "size": [8 if s.sample.job == 0 else 5 for s in timed],
                   "line": {"width": 0}},
    }  # fmt: skip


def _warming(steps: Sequence[Step], look: Mapping[str, Mark], unit: Unit) -> Trace:
    warm = [step for step in steps if step.warming and step.sample.mode in look]
    return {
        **_points(warm, unit),
        "name": "warm-up of any",
        "marker": {"color": [look[step.sample.mode].colour for step in warm],
                   "symbol": [f"{look[step.sample.mode].symbol}-open" for step in warm], "size": 7, "opacity": 0.75},
    }  # fmt: skip


def _flagged(steps: Sequence[Step], unit: Unit) -> Trace:
    flagged = [step for step in steps if step.sample.outlier and not step.warming]
    return {
        **_points(flagged, unit),
        "name": "flagged as an outlier",
        "hoverinfo": "skip",
        "hovertemplate": None,
        "marker": {"symbol": "circle-open", "size": 15, "color": "--bad", "line": {"width": 1.5}},
    }


def _points(steps: Sequence[Step], unit: Unit) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [rounded(step.at_s) for step in steps],
        "y": unit.all(step.step_s for step in steps),
        "customdata": [_said(step) for step in steps],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _said(step: Step) -> str:
    sample = step.sample
    warm = ", warm-up" if step.warming else ""
    return (
        f"<b>{plain(sample.mode)}</b> {format_seconds(step.step_s)}{warm}<br>launch {sample.launch + 1}, round "
        f"{sample.round + 1}, block {sample.position + 1}, job {sample.job + 1}"
    )


def _upright(steps: Sequence[Step], unit: Unit) -> Layout:
    """Return the axis of step times. If warm-up steps are much longer, it leaves them out until a double click."""
    longest_s = max(step.step_s for step in steps)
    typical_s = max((step.step_s for step in steps if not step.warming), default=longest_s)
    if longest_s <= 1.5 * typical_s:
        return {"rangemode": "tozero"}
    return {"range": [0, unit.of(1.25 * typical_s)]}


def _parting(at_s: float) -> Layout:
    return upright(rounded(at_s), color="--grid-strong", width=1, dash="dot")


def _launch(launch: int, at_s: float) -> Layout:
    return {"x": rounded(at_s), "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
            "text": f"launch {launch + 1}", "font": {"size": 11, "color": "--muted"}}  # fmt: skip


def _table(record: Comparison) -> Table:
    """Return one row per block. Its median is the sample of the statistics."""
    rows: list[list[Cell]] = [
        [
            sample.mode,
            str(sample.launch + 1),
            str(sample.round + 1),
            str(sample.position + 1),
            str(sample.job + 1),
            format_seconds(sample.step_s),
            f"{format_seconds(min(sample.steps_s))} – {format_seconds(max(sample.steps_s))}" if sample.steps_s else "–",
            str(len(sample.steps_s)),
            str(len(sample.warmup_s)),
            "outlier, kept" if sample.outlier else "",
        ]
        for sample in record.samples
    ]
    columns = [Column("mode", figures=False), *map(Column, ("launch", "round", "block", "job", "step", "least – most")),
               Column("steps"), Column("warm-up"), Column("flag", figures=False)]  # fmt: skip
    return Table("Every block in figures", columns, rows, "Step: what the block counts as, the median of its steps.",
                 bulk=True)  # fmt: skip
