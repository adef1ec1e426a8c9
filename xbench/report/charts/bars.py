"""Bars of a comparison: time per sample with intervals and bounds, and predictions beside measurements."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.records import Comparison, ModeResult
from xbench.report import answer, sentences
from xbench.report.charts import axes
from xbench.report.page.model import Badge, Cell, Figure, Layout, Table, Trace, columns
from xbench.text import capitalized, cut
from xbench.units import format_seconds, format_signed_percent

ROW_PX = 34
MARGIN_PX = 128
HATCHED = {"shape": "/", "fgcolor": "--pattern", "fillmode": "overlay", "size": 8, "solidity": 0.2}
PLAIN = ("reference", "partial", "control")
"""Verdicts that make no judgement."""


def verdict_badge(record: Comparison, result: ModeResult) -> Badge:
    """Return a mode's verdict as a badge."""
    said = answer.verdict(record, result)
    kind = "failed" if said == "FAILED" else "plain" if said in PLAIN else said
    return Badge(said, kind if " " not in kind else "inconclusive")


def fastest_first(record: Comparison) -> list[ModeResult]:
    """Return every mode: those of the answer in its order, then the others, then those without a time."""
    places = {result.mode: place for place, result in enumerate(answer.ranking(record))}

    def key(result: ModeResult) -> tuple[int, float]:
        if not result.is_trusted or result.seconds_per_sample is None:
            return 2, 0.0
        if result.mode in places:
            return 0, places[result.mode]
        return 1, result.seconds_per_sample.median

    return sorted(record.modes.values(), key=key)


def time_per_sample(record: Comparison) -> Figure | None:
    """Draw one bar per mode, in the order of the answer, with intervals and bounds. None if nothing was timed."""
    results = fastest_first(record)
    timed = [(r, r.seconds_per_sample) for r in results if r.is_trusted and r.seconds_per_sample is not None]
    if not timed:
        return None
    bounds = bounds_per_sample(record)
    longest_s = max([one.ci95[1] for _, one in timed] + [one.median for _, one in timed])
    unit = axes.time_unit(longest_s)
    best = answer.winners(record)
    aside = answer.controls(record) | answer.partial(record)
    taking_part = [r for r, _ in timed if r.mode not in aside]
    hatched = [r for r, _ in timed if r.mode in aside]
    traces = [_bars(record, taking_part, unit, ["--c1" if r.mode in best else "--bar" for r in taking_part])]
    if hatched:
        bars, pattern = _bars(record, hatched, unit, []), HATCHED
        marker = {**bars["marker"], "color": "--aside", "pattern": pattern}
        traces.append({**bars, "insidetextfont": {"color": "--ink"}, "marker": marker})
    names = [axes.named(r.mode) for r in results]
    failed = [r for r in results if sentences.failure_line(r) is not None]
    right = max([longest_s, *bounds.values()])
    return Figure(
        key="time-per-sample",
        title="Time per sample",
        labels=sorted({r.label for r, _ in timed}),
        told=_told(record, bounds),
        traces=traces,
        layout={
            "xaxis": axes.time_axis("time per sample", unit, range=[0, unit.of(1.04 * right)]),
            "yaxis": axes.rows_axis(names),
            "bargap": 0.28,
            "shapes": [_bound(name, place, unit.of(at_s)) for place, (name, at_s) in enumerate(bounds.items())],
            "annotations": [
                *(_verdict_beside(record, r) for r in results if r not in failed),
                *(axes.in_place(axes.named(r.mode), _reason(r), "--bad") for r in failed),
            ],
            "legend": axes.BELOW,
            "margin": {"r": 160, "t": 8},
        },
        narrow={"margin.r": 12, "annotations": [axes.in_place(axes.named(r.mode), "FAILED", "--bad") for r in failed]},
        height=axes.rows_px(names, ROW_PX, MARGIN_PX),
        table=comparison_table(record, results),
    )


def _bars(record: Comparison, results: Sequence[ModeResult], unit: axes.Unit, colours: Sequence[str]) -> Trace:
    """Return a bar for each of these timed modes; the reference has an outline."""
    timed = [(r, r.seconds_per_sample) for r in results if r.seconds_per_sample is not None]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "time per sample",
        "showlegend": False,
        "y": [axes.named(r.mode) for r, _ in timed],
        "x": [unit.of(one.median) for _, one in timed],
        "error_x": axes.whiskers(((one.median, one.ci95) for _, one in timed), unit.per_s),
        "text": [format_seconds(one.median) for _, one in timed],
        "textposition": "inside",
        "insidetextanchor": "start",
        "insidetextfont": {"color": "--on-bar"},
        "constraintext": "none",
        "customdata": [_hover(record, r) for r, _ in timed],
        "hovertemplate": axes.HOVER,
        "marker": {
            "color": list(colours),
            "line": {
                "color": "--ink",
                "width": [2 if r.mode == answer.reference_of(record, r) else 0 for r, _ in timed],
            },
        },
    }


def bounds_per_sample(record: Comparison) -> dict[str, float]:
    """Return the distinct bounds as time per sample [s] by name; empty if the jobs do not share one workload."""
    alone = record.jobs[0].bounds if len(record.jobs) == 1 and record.cost_model is not None else None
    bounds = record.bounds or alone
    counts = {sample.samples_per_step for sample in record.samples}
    if bounds is None or len(counts) != 1 or len(set(record.spec.workloads)) > 1:
        return {}
    (per_step,) = counts
    below = any(sentences.is_below(mode, bounds) for mode in record.modes.values())
    line = ("reference" if below else "bound") + (" of one job" if len(record.jobs) > 1 else "")
    found = {"compute alone": bounds.compute_s}
    if bounds.compute_s < bounds.overlap_bound_s < bounds.backward_overlap_bound_s:
        found[f"{line}, next forward starts early"] = bounds.overlap_bound_s
    if bounds.compute_s < bounds.backward_overlap_bound_s:
        found[f"{line}, next forward waits"] = bounds.backward_overlap_bound_s
    return {name: at_s / per_step for name, at_s in found.items()}


def _bound(name: str, place: int, at: float) -> Layout:
    """Return a line across all bars, with an entry in the legend."""
    line = axes.vertical_line(
        at, color=("--ink", "--c5", "--c2")[place], width=2, dash=("dot", "dashdot", "dash")[place]
    )
    return {**line, "name": f"{name} (simulated)", "showlegend": True}


def _verdict_beside(record: Comparison, result: ModeResult) -> Layout:
    """Return the ratio and its verdict, to the right of the bar."""
    said = verdict_badge(record, result).text
    ratio = result.ratio
    if ratio is not None and ratio.verdict != "reference" and result.is_trusted:
        said = f"{answer.ratio_cell(result)}<br>{said}"
    return axes.row_text(axes.named(result.mode), said)


def _reason(result: ModeResult) -> str:
    """Return the beginning of the reason why a mode has no bar."""
    return cut((sentences.failure_line(result) or "").removeprefix(f"{result.mode} ").split("; ")[0], axes.REASON)


def _hover(record: Comparison, result: ModeResult) -> str:
    one = result.seconds_per_sample
    assert one is not None  # only timed modes have bars
    told = [f"<b>{axes.plain(result.mode)}</b> ({result.label})", f"{format_seconds(one.median)} a sample",
            f"95 % CI {answer.span_cell(one, ' to ')}"]  # fmt: skip
    if result.ratio is not None and result.ratio.verdict != "reference":
        of = f"of {axes.plain(answer.reference_of(record, result))}'s"
        told.append(f"{answer.ratio_cell(result)} {of}: {verdict_badge(record, result).text}")
    return "<br>".join(told)


def _told(record: Comparison, bounds: dict[str, float]) -> str:
    text = (
        "Over all jobs and ranks together; shorter is better. Whiskers are 95 % confidence intervals of the median; "
        f"the ratio is to {answer.references(record)}, the reference, taken block by block: it decides."
    )
    if bounds:
        beaten = any(name.startswith("reference") for name in bounds)
        least = "the least time, which some mode beat" if beaten else "what no schedule can beat"
        text += f" Lines: {least}, under the model (simulated)."
    if answer.controls(record) | answer.partial(record):
        text += " Hatched: controls, and modes that leave gradients out. They take no part in the answer."
    return text


def comparison_table(record: Comparison, results: Sequence[ModeResult]) -> Table:
    """Return the figures behind the bars. A failed mode has a row too."""
    rows: list[list[Cell]] = []
    for result in results:
        one = result.seconds_per_sample if result.is_trusted else None
        rows.append(
            [
                result.mode,
                *([str(answer.jobs_of(record, result.mode))] if answer.paired_modes(record) else []),
                format_seconds(one.median) if one else "–",
                answer.span_cell(one),
                answer.ratio_cell(result),
                verdict_badge(record, result),
                str(result.blocks),
                Badge.of(result.label),
            ]
        )
    jobs = ["jobs"] if answer.paired_modes(record) else []
    ratio = f"ratio to {answer.references(record)} [95 % CI]"
    names = ("mode", *jobs, "time per sample", "95 % CI", ratio, "verdict", "blocks", "label")
    headings = columns(names, ("mode", "verdict", "label"))
    return Table("Time per sample in figures", headings, rows, opened=True)


def predicted_and_measured(record: Comparison) -> Figure | None:
    """Draw one row per mode: prediction, measurement with its interval, and the difference. None without any."""
    pairs = [(r, r.predicted_step_s, r.step_s) for r in fastest_first(record)
             if r.is_trusted and r.predicted_step_s is not None and r.step_s is not None]  # fmt: skip
    if not pairs:
        return None
    unit = axes.time_unit(max(max(predicted_s, step.ci95[1]) for _, predicted_s, step in pairs))
    names = [axes.named(r.mode) for r, _, _ in pairs]
    between: Trace = {
        "type": "scatter", "mode": "lines", "showlegend": False, "hoverinfo": "skip",
        "x": [x for _, predicted_s, step in pairs for x in (unit.of(predicted_s), unit.of(step.median), None)],
        "y": [y for name in names for y in (name, name, None)],
        "line": {"color": "--grid-strong", "width": 3},
    }  # fmt: skip
    measured = axes.points(
        unit.all(step.median for _, _, step in pairs),
        names,
        [f"<b>{axes.plain(r.mode)}</b><br>measured {format_seconds(step.median)} ({r.label})" for r, _, step in pairs],
        name="measured, 95 % CI",
        error_x=axes.whiskers(((step.median, step.ci95) for _, _, step in pairs), unit.per_s),
        marker={"symbol": "circle", "size": 11, "color": "--c1"},
    )
    predicted = axes.points(
        unit.all(predicted_s for _, predicted_s, _ in pairs),
        names,
        [f"<b>{axes.plain(r.mode)}</b><br>predicted {format_seconds(predicted_s)} (simulated), "
         f"{signed(r.prediction_error)}" for r, predicted_s, _ in pairs],
        name="predicted (simulated)",
        marker={"symbol": "diamond-open", "size": 12, "color": "--c2", "line": {"width": 2}},
    )  # fmt: skip
    return Figure(
        key="predicted",
        title="Predicted against measured step",
        labels=[*sorted({r.label for r, _, _ in pairs}), "simulated"],
        told="Predicted before anything was timed, from the profile and the cost model alone. At the right, predicted "
        "over measured, minus one: below zero, the step took longer than predicted.",
        traces=[between, measured, predicted],
        layout={
            "xaxis": axes.time_axis("step", unit),
            "yaxis": axes.rows_axis(names),
            "annotations": [
                axes.row_text(axes.named(r.mode), signed(r.prediction_error), size=12) for r, _, _ in pairs
            ],
            "legend": axes.BELOW,
            "margin": {"r": 76, "t": 8},
        },
        height=axes.rows_px(names, ROW_PX, MARGIN_PX),
        table=step_table(record),
    )


def step_table(record: Comparison) -> Table:
    """Return where the step goes: measured, exposed, removed, predicted, and whether it trains what DDP trains."""
    rows: list[list[Cell]] = []
    for result in record.modes.values():
        cells: dict[str, Cell] = {**answer.shown_cells(record, result), "label": Badge.of(result.label)}
        cells["error"] = str(cells["error"]).replace("-", "−")
        if cells["same network"] == "FAILED":
            cells["same network"] = Badge("FAILED", "failed")
        rows.append([answer.with_turns(result), *cells.values()])
    memory = ["memory"] if answer.memory_rows(record) else []
    headings = columns(("mode", "step", "exposed", "removed", "predicted", "error", "buckets", *memory, "same network",
                       "label"), ("mode", "same network", "label"))  # fmt: skip
    note = capitalized(sentences.columns_line(record))
    return Table("Where the step goes, in figures", headings, rows, note, opened=True)


def memory_table(record: Comparison) -> Table | None:
    """Return a rank's memory under each mode, with its parts; None if no mode's is known."""
    rows = answer.memory_rows(record)
    if not rows:
        return None
    cells = [list(row.values()) for row in rows]
    return Table("Memory of a rank", columns(list(rows[0]), ("mode",)), cells, f"{sentences.MEMORY}.", opened=True)


def signed(share: float | None) -> str:
    """Format a share as '−1.2 %', with a minus as wide as the plus; '–' for None."""
    return format_signed_percent(share).replace("-", "−")
