"""Tables of a comparison: on a terminal, in Markdown, and tidy ones with a row per mode, block or step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import Comparison, Estimate, Label, ModeResult
from xbench.report import markup, sentences
from xbench.report.answer import (
    jobs_of,
    memory_cells,
    paired_modes,
    parity_cell,
    ratio_cell,
    reference_of,
    references,
    shown_cells,
    span_cell,
    step_cells,
    trusted,
    verdict,
    with_memory,
    with_turns,
)
from xbench.report.charts.text import LEGEND, bar
from xbench.report.console import filled_table, fitting_table, indented, say, spare_columns
from xbench.report.view import Row, ends, fields
from xbench.units import format_seconds

VERDICT_STYLES = {"faster": "bold green", "slower": "red", "FAILED": "bold red", "inconclusive": "yellow"}
_STACKED_BAR_COLUMNS = 40
_MIN_BAR_COLUMNS, _MAX_BAR_COLUMNS = 6, 30
_DISPENSABLE = ("buckets", "removed", "memory")
"""Columns omitted one by one on a narrow terminal.

A label that all rows share is omitted first, because the answer states it.
"""

Setting = Callable[[Label], Row]
"""Columns at the start of every tidy table, for a row's label."""


def draw_modes(record: Comparison, console: Console) -> None:
    """Draw both tables and their legend, or one block per mode if the terminal is too narrow for tables."""
    longest_s = max(
        (max(r.seconds_per_sample.ci95[1], r.seconds_per_sample.median)
         for r in record.modes.values() if trusted(r) and r.seconds_per_sample), default=0.0
    )  # fmt: skip
    tables = _tables(record, longest_s, console)
    if tables is None:
        for result in record.modes.values():
            _stacked(record, result, longest_s, console)
    else:
        console.print(*tables, sep="")
    say(console, f"{LEGEND}; {sentences.columns_line(record)}", "dim")


def draw_memory(record: Comparison, console: Console) -> None:
    """Draw a rank's memory under each mode, and its parts, if a mode's is known and the terminal is wide enough."""
    rows = memory_rows(record)
    if not rows:
        return
    table = filled_table(sentences.MEMORY, list(rows[0]), [list(row.values()) for row in rows], ("mode",))
    if spare_columns(console, table) >= 0:
        console.print()
        console.print(table)


def memory_rows(record: Comparison) -> list[dict[str, str]]:
    """Return a row for each mode whose memory is known: its name, peak and parts."""
    return [{"mode": result.mode, **memory_cells(result)} for result in with_memory(record)]


def markdown_memory(record: Comparison) -> str:
    """Return a rank's memory under each mode, as Markdown; empty if no mode's is known."""
    rows = memory_rows(record)
    if not rows:
        return ""
    cells = [[markup.code(row["mode"]), *list(row.values())[1:]] for row in rows]
    return f"{sentences.MEMORY}.\n\n{markup.table(list(rows[0]), cells)}"


def _styled(verdict: str) -> Text:
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


def _tables(record: Comparison, longest_s: float, console: Console) -> tuple[Table, Table] | None:
    """Return both tables with as many columns as fit on the terminal; None if not even the fewest fit."""
    for spread in (True, False):
        spare = spare_columns(console, _time_table(record, spread, longest_s, 0))
        if spare >= _MIN_BAR_COLUMNS:
            break
    else:
        return None
    steps = [{"mode": with_turns(result), **shown_cells(record, result)} for result in record.modes.values()]
    one_label = len({result.label for result in record.modes.values()}) == 1
    dispensable = (*(("label",) if one_label else ()), *_DISPENSABLE)
    step_table = fitting_table(console, "Where the step goes", list(steps[0]), [list(row.values()) for row in steps],
                               ("mode", "same network", "label"), dispensable)  # fmt: skip
    if spare_columns(console, step_table) < 0:
        return None
    return _time_table(record, spread, longest_s, min(_MAX_BAR_COLUMNS, spare)), step_table


def _time_table(record: Comparison, spread: bool, longest_s: float, bar_columns: int) -> Table:
    """Return seconds per sample, ratios and verdicts: the figures behind the answer. `spread` adds interval columns."""
    title = f"Time per sample, all jobs and ranks together; ratio to the reference, {references(record)}"
    hidden = {*(() if paired_modes(record) else ("jobs",)), *(() if spread else ("95 % CI",))}
    rows = []
    for result in record.modes.values():
        estimate = result.seconds_per_sample if trusted(result) else None
        cells: dict[str, str | Text] = {
            "mode": result.mode,
            "jobs": str(jobs_of(record, result.mode)),
            "per sample": format_seconds(estimate.median) if estimate else "–",
            "95 % CI": span_cell(estimate),
            "": _bar(estimate, longest_s, bar_columns) if estimate else "",
            "ratio [95 % CI]": ratio_cell(result),
            "verdict": _styled(verdict(record, result)),
        }
        rows.append({name: cell for name, cell in cells.items() if name not in hidden})
    return filled_table(title, list(rows[0]), [list(row.values()) for row in rows], ("mode", "", "verdict"))


def _bar(estimate: Estimate, longest_s: float, columns: int) -> Text:
    drawn = bar(estimate.median, estimate.ci95, longest_s, columns) if longest_s > 0 and columns > 0 else ""
    return Text(drawn, no_wrap=True)


def _stacked(record: Comparison, result: ModeResult, longest_s: float, console: Console) -> None:
    """Draw one mode as a block, for narrow terminals."""
    judged = verdict(record, result)
    jobs = f" of {jobs_of(record, result.mode)} jobs" if result.mode in paired_modes(record) else ""
    console.print(Text.assemble((result.mode, "bold"), jobs, " ", _styled(judged)))
    if not trusted(result) or result.seconds_per_sample is None:
        return
    if longest_s > 0:
        columns = min(_STACKED_BAR_COLUMNS, console.width - 4)
        indented(console, _bar(result.seconds_per_sample, longest_s, columns).plain)
    cells = step_cells(result)
    ratio = f"ratio to {reference_of(record, result)} {ratio_cell(result)}"
    buckets = f"{cells['buckets']} bucket{'' if cells['buckets'] == '1' else 's'}"
    memory = f", memory {cells['memory']}" if result.memory is not None else ""
    for line in (
        f"{format_seconds(result.seconds_per_sample.median)} a sample, {ratio}",
        f"step {cells['step']}, exposed {cells['exposed']}, removed {cells['removed']}",
        f"predicted {cells['predicted']}, error {cells['error']}",
        f"{buckets}, same network: {cells['same network']}, {result.label}{memory}",
    ):
        indented(console, line)


def markdown_modes(record: Comparison) -> str:
    """Return one row per mode, as Markdown."""
    ratio = markup.Markup(f"ratio to {markup.code(references(record))} [95 % CI]")
    jobs = ["jobs"] if paired_modes(record) else []
    headings = ["mode", *jobs, "time per sample [95 % CI]", ratio, "verdict", "step", "exposed",
                "predicted step (simulated)", "error", "same network", "label"]  # fmt: skip
    return markup.table(headings, [_mode_row(record, result) for result in record.modes.values()])


def _mode_row(record: Comparison, result: ModeResult) -> list[str]:
    judged, cells = verdict(record, result), step_cells(result)
    sample = result.seconds_per_sample if trusted(result) else None
    return [
        markup.code(result.mode),
        *([str(jobs_of(record, result.mode))] if paired_modes(record) else []),
        f"{format_seconds(sample.median)} [{span_cell(sample, ', ')}]" if sample else "–",
        ratio_cell(result),
        markup.strong(judged) if judged in ("faster", "FAILED") else judged,
        *(cells[heading] for heading in ("step", "exposed", "predicted", "error", "same network")),
        result.label,
    ]


def sample_rows(record: Comparison, of: Setting) -> Iterator[Row]:
    """Return one row per block, with the mode's status. A mode without blocks has one row without figures."""
    seen: set[str] = set()
    for sample in record.samples:
        seen.add(sample.mode)
        yield {
            **_block(record, of, record.modes.get(sample.mode), sample.mode, sample.job),
            **fields(sample, "launch", "round", "position", "started_s"),
            "steps": len(sample.steps_s),
            "warmup_steps": len(sample.warmup_s),
            "step_s": sample.step_s,
            "samples_per_step": sample.samples_per_step,
            "s_per_sample": sample.step_s / sample.samples_per_step if sample.samples_per_step else None,
            "outlier": sample.outlier,
        }
    empty = dict.fromkeys(("launch", "round", "position", "started_s", "steps", "warmup_steps", "step_s",
                           "samples_per_step", "s_per_sample", "outlier"))  # fmt: skip
    for name, result in record.modes.items():
        if name not in seen:
            yield {**_block(record, of, result, name, None), **empty}


def step_rows(record: Comparison, of: Setting) -> Iterator[Row]:
    """Return every step of every block, with warm-up steps marked."""
    for sample in record.samples:
        timed = [("warm-up", took_s) for took_s in sample.warmup_s] + [("timed", took_s) for took_s in sample.steps_s]
        for number, (phase, took_s) in enumerate(timed):
            yield {
                **_block(record, of, record.modes.get(sample.mode), sample.mode, sample.job),
                **fields(sample, "launch", "round", "position"),
                "step": number,
                "phase": phase,
                "step_s": took_s,
                "outlier": sample.outlier,
            }


def _block(record: Comparison, of: Setting, result: ModeResult | None, mode: str, job: int | None) -> Row:
    label = result.label if result is not None else record.fabric.label
    return {**of(label), "mode": mode, "status": _status(result), "job": job, "workload": _title(record, job)}


def _title(record: Comparison, job: int | None) -> str:
    if job is not None and job < len(record.jobs):
        return record.jobs[job].workload.title
    return " + ".join(dict.fromkeys(one.workload.title for one in record.jobs))


def mode_rows(record: Comparison, of: Setting) -> Iterator[Row]:
    """Return the results of each mode. A failed mode has its error, and no time."""
    for name, result in record.modes.items():
        fine = trusted(result)
        step = result.step_s if fine else None
        sample = result.seconds_per_sample if fine else None
        ratio = result.ratio if fine else None
        yield {
            **of(result.label),
            "workload": _title(record, None),
            "jobs": jobs_of(record, name),
            "mode": name,
            "status": _status(result),
            "verdict": verdict(record, result),
            **fields(result, "error", "blocks"),
            "step_s": step.median if step else None,
            **ends("step", step.interval if step else None, "_s"),
            "s_per_sample": sample.median if sample else None,
            **ends("s_per_sample", sample.interval if sample else None),
            "reference": reference_of(record, result),
            "ratio": ratio.value if ratio else None,
            **ends("ratio", ratio.interval if ratio else None),
            "exposed_s": result.exposed_s if fine else None,
            "removed_share": result.removed_share if fine else None,
            "removed_low": result.removed_ci95[0] if fine and result.removed_ci95 else None,
            "removed_high": result.removed_ci95[1] if fine and result.removed_ci95 else None,
            "predicted_step_s_simulated": result.predicted_step_s,
            "prediction_error": result.prediction_error if fine else None,
            "buckets": len(result.plan.buckets) if result.plan else None,
            "units": len(result.units) or None,
            "largest_bucket_bytes": max(result.plan.bucket_bytes, default=None) if result.plan else None,
            # yes, not shown, FAILED, or 'no (ranks agree)' for modes that train another network on purpose
            "same_network": parity_cell(result).partition(" (±")[0] if result.parity else None,
            "same_network_why": result.parity.message if result.parity else None,
            "pattern": result.pattern,
            **_memory_fields(result),
        }


def _memory_fields(result: ModeResult) -> Row:
    """Return the memory of a rank: its peak, whence that is, and its parts [B]."""
    parts = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
    memory = result.memory
    return {
        "memory_peak_bytes": memory.peak_bytes if memory else None,
        "memory_by": memory.by if memory else None,
        **{part: getattr(memory, part) if memory else None for part in parts},
    }


def _status(result: ModeResult | None) -> str:
    """Return ok, failed (also after a failed parity check), or not measured."""
    if result is not None and trusted(result):
        return "ok"
    return "not measured" if result is not None and result.status == "not measured" else "failed"
