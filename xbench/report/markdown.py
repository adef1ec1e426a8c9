"""A record as Markdown, for a pull request: the answer, one table, and the rest folded.

GitHub-flavoured. Every time says whether it is real, emulated or simulated, and a mode that failed has a row that says
so. Layers, environment and command are in folded sections.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.records import (
    AnyRecord,
    Baseline,
    ClusterComparison,
    Comparison,
    Convergence,
    Layer,
    LiveRun,
    ModeResult,
    Noise,
    Profile,
    Regression,
    Restart,
    Scaling,
    Tuned,
    Validation,
)
from xbench.report import lines
from xbench.report.advice import advice
from xbench.report.answer import answer, jobs_of, paired_modes, references, trusted, was_reached
from xbench.report.cells import own_steps, parity_cell, ratio_cell, span_cell, verdict
from xbench.report.cluster import markdown as cluster_parts
from xbench.report.convergence import verdicts, without_accuracy
from xbench.report.live import markdown as live_parts
from xbench.report.markdown_parts import Markup, code, details, facts, fenced, plain, strong, table
from xbench.report.regression_markdown import baseline_markdown, noise_markdown, regression_markdown
from xbench.report.restart import markdown as restart_parts
from xbench.report.scaling import band_line
from xbench.report.tuned import kept_sentence
from xbench.report.validation import markdown as validation_tables
from xbench.units import format_bytes, format_count, format_percent, format_seconds, format_signed_percent

TOP_LAYERS = 20
VISIBLE_WARNINGS = 3


def render(record: AnyRecord) -> str:
    """Markdown of any kind of record, ending in a line end."""
    if isinstance(record, Regression):
        return regression_markdown(record)
    if isinstance(record, Baseline):
        return baseline_markdown(record)
    if isinstance(record, Noise):
        return noise_markdown(record)
    if isinstance(record, Comparison):
        parts = _comparison(record)
    elif isinstance(record, Profile):
        parts = _profile(record)
    elif isinstance(record, Scaling):
        parts = _scaling(record)
    elif isinstance(record, Validation):
        parts = _validation(record)
    elif isinstance(record, Convergence):
        parts = _convergence(record)
    elif isinstance(record, ClusterComparison):
        parts = [*cluster_parts(record), _warnings(record.warnings)]
    elif isinstance(record, LiveRun):
        parts = [*live_parts(record), _warnings(record.warnings)]
    elif isinstance(record, Restart):
        parts = [*restart_parts(record), _warnings(record.warnings)]
    else:
        parts = _tuned(record)
    return "\n\n".join(part for part in [*parts, _command(record)] if part) + "\n"


def _comparison(record: Comparison) -> list[str]:
    titles = " and ".join(dict.fromkeys(job.workload.title for job in record.jobs)) or "nothing"
    first, *others = answer(record)
    failures = [line for line in map(lines.failure_line, record.modes.values()) if line is not None]
    notes = [f"{result.mode}: {result.note}" for result in record.modes.values() if result.note]
    return [
        _title(titles, record),
        _incomplete(lines.incomplete_line(record)),
        f"**{plain(first)}** {' '.join(map(plain, others))}".rstrip(),
        _next(record),
        _modes_table(record) if was_reached(record) else "",
        "\n".join(f"- **{plain(line)}**" for line in failures),
        "\n".join(f"- {plain(note)}" for note in [*lines.not_shown_lines(record), *notes, *own_steps(record)]),
        _warnings(record.warnings),
        *(_layers(job.workload.title, job.layers, record.fabric.label) for job in record.jobs),
        _how(record, effort=lines.effort_line(record)),
    ]


def _modes_table(record: Comparison) -> str:
    ratio = Markup(f"ratio to {code(references(record))} [95 % CI]")
    jobs = ["jobs"] if paired_modes(record) else []
    headings = ["mode", *jobs, "time per sample [95 % CI]", ratio, "verdict", "step", "exposed",
                "predicted step (simulated)", "error", "same network", "label"]  # fmt: skip
    return table(headings, [_mode_row(record, result) for result in record.modes.values()])


def _mode_row(record: Comparison, result: ModeResult) -> list[str]:
    judged = verdict(record, result)
    fine = trusted(result)
    sample = result.seconds_per_sample if fine else None
    span = span_cell(sample, ", ")
    return [
        code(result.mode),
        *([str(jobs_of(record, result.mode))] if paired_modes(record) else []),
        f"{format_seconds(sample.median)} [{span}]" if sample else "–",
        ratio_cell(result),
        strong(judged) if judged in ("faster", "FAILED") else judged,
        format_seconds(result.step_s.median) if fine and result.step_s else "–",
        format_seconds(result.exposed_s) if fine else "–",
        format_seconds(result.predicted_step_s),
        format_signed_percent(result.prediction_error) if fine else "–",
        parity_cell(result),
        result.label,
    ]


def _profile(record: Profile) -> list[str]:
    step = record.step
    told = "**No step was measured.**"
    if step is not None:
        told = (
            f"**{lines.step_line(step, record.fabric.label)}** {lines.parts_line(step)} {lines.instruments_line(step)}"
        )
    plans = [
        [code(mode), str(len(plan.buckets)), format_seconds(plan.predicted_step_s),
         format_seconds(plan.predicted_exposed_s)]
        for mode, plan in record.plans.items()
    ]  # fmt: skip
    return [
        _title(record.workload.title, record),
        _incomplete(lines.incomplete_line(record)),
        _next(record),
        told,
        table(["plan (simulated)", "buckets", "predicted step", "exposed"], plans) if plans else "",
        _warnings(record.warnings),
        _layers(record.workload.title, record.layers, record.fabric.label),
        _how(record),
    ]


def _scaling(record: Scaling) -> list[str]:
    found = {(point.workers, point.mode): point for point in record.points}
    rows = []
    for workers in record.workers:
        points = [found.get((workers, mode)) for mode in record.modes]
        cells = [f"{format_seconds(p.step_s)} ({format_percent(p.efficiency, 0)})" if p else "–" for p in points]
        rows.append([str(workers), *cells])
    first, *others = record.findings or ["Nothing was found."]
    return [
        f"### {plain(record.workload.title)} by {code(record.topology)} (simulated)",
        f"**{plain(first)}** {' '.join(map(plain, others))}".rstrip(),
        table(["workers", *(code(mode) for mode in record.modes)], rows),
        f"Predicted step (scaling efficiency), all of it simulated. {plain(band_line(record))}",
        _warnings(record.warnings),
        details("What it rests on", facts([
            ("workload", lines.workload_line(record.workload)),
            ("measured", lines.fabric_line(record.fabric)),
            *(("assumed", sentence) for sentence in record.assumptions),
            ("from", f"{record.source.path}: {record.source.command}"),
        ])),
    ]  # fmt: skip


def _validation(record: Validation) -> list[str]:
    why = record.error or "it ended before everything was measured"
    return [
        "### Predictions (simulated) beside measured steps (real)",
        _incomplete(None if record.complete else f"INCOMPLETE: {why}"),
        validation_tables(record).strip(),
        _warnings(record.warnings),
        details("Environment", facts([("machine", lines.environment_line(record.environment))])),
    ]


def _convergence(record: Convergence) -> list[str]:
    rows = []
    for mode in record.modes.values():
        if mode.status != "ok" or mode.accuracy is None:
            rows.append([code(mode.mode), strong(without_accuracy(mode)), "–", "–", "–"])
            continue
        span = f" [{', '.join(format_percent(end, 2) for end in mode.accuracy.ci95)}]" if mode.accuracy.ci95 else ""
        rows.append([
            code(mode.mode),
            f"{format_percent(mode.accuracy.mean, 2)}{span}",
            f"{mode.test_loss.mean:.3f}" if mode.test_loss else "–",
            format_seconds(mode.step_s),
            format_bytes(mode.sent_bytes),
        ])  # fmt: skip
    first, *others = verdicts(record) or ["No mode was trained."]
    why = record.error or "the run ended early"
    return [
        _title(record.workload.title, record),
        _incomplete(None if record.complete else f"INCOMPLETE: {why}"),
        f"**{plain(first)}** {' '.join(map(plain, others))}".rstrip(),
        table(["mode", "accuracy [95 % CI]", "test loss", f"step ({record.label})", "sent a step and worker"], rows),
        _warnings(record.warnings),
        details("Environment", facts([
            ("data", f"{record.dataset.name}, {record.dataset.train} to train, {record.dataset.test} to test"),
            ("workload", lines.workload_line(record.workload)),
            ("fabric", lines.fabric_line(record.fabric)),
            ("machine", lines.environment_line(record.environment)),
        ])),
    ]  # fmt: skip


def _tuned(record: Tuned) -> list[str]:
    rows = []
    for mode, ratio in record.tried.items():
        low, high = ratio.ci95
        rows.append([code(mode), f"{ratio.value:.3f} [{low:.3f}, {high:.3f}]", ratio.verdict])
    heading = Markup(f"time per sample over {code(record.reference)} [95 % CI]")
    return [
        f"### {plain(record.workload.title)} on {code(record.fabric.spec)} ({record.label})",
        f"**{plain(kept_sentence(record))}**",
        _next(record),
        table(["tried", heading, "verdict"], rows) if rows else "",
        details("What it rests on", facts([
            ("workload", lines.workload_line(record.workload)),
            ("fabric", lines.fabric_line(record.fabric)),
            ("record", record.record),
        ])),
    ]  # fmt: skip


def _title(workload: str, record: Comparison | Profile | Convergence) -> str:
    return f"### {plain(workload)} on {code(record.fabric.spec)} ({record.fabric.label})"


def _next(record: Profile | Comparison | Tuned) -> str:
    """What to do next, a sentence a line, with its command."""
    found = advice(record)
    return "\n".join(f"- {plain(told)}{f' {code(command)}' if command else ''}" for told, command in found)


def _incomplete(note: str | None) -> str:
    return f"> **{plain(note)}**" if note else ""


def _warnings(warnings: Sequence[str]) -> str:
    """A few stand where they are seen; many are folded, and counted."""
    told = "\n".join(f"- warning: {plain(warning)}" for warning in warnings)
    return details(f"{len(warnings)} warnings", told) if len(warnings) > VISIBLE_WARNINGS else told


def _layers(title: str, layers: Sequence[Layer], label: str) -> str:
    """The layers that take longest, in gradient-ready order."""
    if not layers:
        return ""
    numbered = list(enumerate(layers, start=1))
    shown = sorted(sorted(numbered, key=lambda pair: -pair[1].share)[:TOP_LAYERS], key=lambda pair: pair[0])
    rows = [
        [str(number), code(layer.name), code(layer.kind), format_count(layer.parameters),
         format_bytes(layer.grad_bytes), format_seconds(layer.forward_s), format_seconds(layer.backward_s),
         format_seconds(layer.ready_s), format_percent(layer.share)]
        for number, layer in shown
    ]  # fmt: skip
    headings = ["ready", "layer", "kind", "parameters", "gradient", "forward", "backward", "ready at", "share"]
    rest = f"\n\n{len(layers) - len(shown)} shorter ones are left out." if len(shown) < len(layers) else ""
    count = f"{len(shown)} of {len(layers)} layers" if rest else f"{len(layers)} layers"
    return details(
        f"{count} of {title} in gradient-ready order ({label}, without communication)",
        table(headings, rows, left=3) + rest,
    )


def _how(record: Comparison | Profile, effort: str | None = None) -> str:
    """Workload, bounds, fabric, cost model, effort and machine."""
    jobs = record.jobs if isinstance(record, Comparison) else [record]
    told = [("workload", lines.workload_line(job.workload)) for job in jobs]
    if record.bounds is not None:
        told.append(("bounds", lines.bounds_line(record.bounds)))
    told.append(("fabric", lines.fabric_line(record.fabric)))
    told += [("fabric", note) for note in record.fabric.notes]
    tuning = lines.tuning_line(record.spec)
    if tuning is not None:
        told.append(("host tuning", tuning))
    if record.emulated is not None:
        told.append(("emulated", lines.emulated_line(record.emulated)))
    if record.cost_model is not None:
        told.append(("cost model", lines.cost_line(record.cost_model)))
    if effort is not None:
        told.append(("effort", effort))
    told.append(("machine", lines.environment_line(record.environment)))
    return details("Environment", facts(list(dict.fromkeys(told))))


def _command(record: AnyRecord) -> str:
    return details("Command", fenced(record.command, "sh"))
