"""A record as JUnit XML: one case a mode, so that a CI system lists what was compared and what went wrong.

A mode that did not pass the correctness gate is a failure, one that crashed an error, one that this machine cannot run
skipped. The time of a case is the mode's median step [s]; what the number is (real, emulated, simulated) stands in its
text and in the suite's name. A run that ended early has a case of its own, an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from xbench.modes import mode_info
from xbench.records import (
    AnyRecord,
    Baseline,
    ClusterComparison,
    Comparison,
    Convergence,
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
from xbench.report.answer import answer, jobs_of, paired_modes, reference_of, trusted
from xbench.report.cells import parity_cell, ratio_cell, span_cell, verdict
from xbench.report.cluster import costing
from xbench.report.convergence import failed
from xbench.report.junit import Case, Status, junit_xml
from xbench.report.regression_junit import regression_cases, stored_cases
from xbench.report.regression_lines import sides
from xbench.report.restart import ROWS, heading, seconds_of
from xbench.stats.validation import name_of
from xbench.units import format_duration, format_percent, format_seconds, format_signed_percent

THE_RUN = "the whole run"


def render(record: AnyRecord, strict: bool = False) -> str:
    """JUnit XML of any kind of record. `strict`: what a check could not judge is a failure."""
    properties = {"command": record.command, "created": record.created, "kind": record.kind}
    if isinstance(record, Comparison):
        properties["answer"] = " ".join(answer(record))
    if isinstance(record, Regression):
        properties |= dict(sides(record))
    elif isinstance(record, (Baseline, Noise)):
        properties["machine"] = lines.environment_line(record.side.environment)
    elif not isinstance(record, (ClusterComparison, Scaling, Tuned)):
        properties["machine"] = lines.environment_line(record.environment)
    return junit_xml(cases(record, strict), suite=f"xbench {record.kind}", properties=properties)


def cases(record: AnyRecord, strict: bool = False) -> list[Case]:
    """The cases of any kind of record, modes in their order; `strict` as in `render`."""
    if isinstance(record, Comparison):
        found = list(_comparison(record))
    elif isinstance(record, Profile):
        found = list(_profile(record))
    elif isinstance(record, Scaling):
        found = list(_scaling(record))
    elif isinstance(record, Validation):
        found = list(_validation(record))
    elif isinstance(record, Convergence):
        found = list(_convergence(record))
    elif isinstance(record, Regression):
        found = regression_cases(record, strict)
    elif isinstance(record, (Baseline, Noise)):
        found = stored_cases(record)
    elif isinstance(record, ClusterComparison):
        found = list(_cluster(record))
    elif isinstance(record, LiveRun):
        found = list(_live(record))
    elif isinstance(record, Restart):
        found = list(_restart(record))
    else:
        found = list(_tuned(record))
    if not record.complete:
        why = getattr(record, "error", None) or "it ended before everything was measured"
        group = found[0].group if found else record.kind
        found.append(Case(group, THE_RUN, status="error", message=f"INCOMPLETE: {why}"))
    return found


def _comparison(record: Comparison) -> Iterator[Case]:
    titles = " + ".join(job.workload.title for job in record.jobs) or "nothing"
    group = f"{titles} on {record.fabric.spec} ({record.fabric.label})"
    for result in record.modes.values():
        status = _status(result)
        if status == "passed":
            assert result.step_s is not None  # it is trusted
            yield Case(group, result.mode, result.step_s.median, message=_told(record, result))
        else:
            yield Case(group, result.mode, None, status, lines.failure_line(result) or "not measured")


def _status(result: ModeResult) -> Status:
    if result.parity is not None and not result.parity.ok:
        return "failed"
    if result.status == "ok":
        return "passed" if trusted(result) and result.step_s is not None else "error"
    return "skipped" if result.status == "not measured" or _is_missing(result) else "error"


def _is_missing(result: ModeResult) -> bool:
    """Whether the mode failed because what carries it is not on that machine: the error then names the remedy."""
    name = result.mode.partition("@")[0].partition(":")[0]
    remedy = mode_info(name).remedy
    return remedy is not None and f"{remedy} builds it" in (result.error or "")


def _told(record: Comparison, result: ModeResult) -> str:
    assert result.step_s is not None
    assert result.seconds_per_sample is not None
    parts = [
        *([f"{jobs_of(record, result.mode)} jobs"] if result.mode in paired_modes(record) else []),
        f"step {format_seconds(result.step_s.median)} [{span_cell(result.step_s, ', ')}] ({result.label})",
        f"{format_seconds(result.seconds_per_sample.median)} a sample",
    ]
    if result.ratio is not None:
        parts.append(f"ratio to {reference_of(record, result)} {ratio_cell(result)}: {verdict(record, result)}")
    if result.predicted_step_s is not None:
        error = (
            f", error {format_signed_percent(result.prediction_error)}" if result.prediction_error is not None else ""
        )
        parts.append(f"predicted {format_seconds(result.predicted_step_s)} (simulated){error}")
    if result.parity is not None:
        why = f" ({result.parity.message})" if not result.parity.shown else ""
        parts.append(f"same network: {parity_cell(result)}{why}")
    return "; ".join(parts)


def _profile(record: Profile) -> Iterator[Case]:
    group = f"{record.workload.title} on {record.fabric.spec} ({record.fabric.label})"
    if record.step is None:
        yield Case(group, "profile", status="error", message=record.error or "no step was measured")
        return
    told = lines.step_line(record.step, record.fabric.label)
    yield Case(group, "profile", record.step.uninstrumented_step_s, message=told[0].lower() + told[1:].rstrip("."))
    for mode, plan in record.plans.items():
        told = f"predicted step {format_seconds(plan.predicted_step_s)} (simulated)"
        yield Case(group, f"plan of {mode}", plan.predicted_step_s, message=told)


def _scaling(record: Scaling) -> Iterator[Case]:
    group = f"{record.workload.title} by {record.topology} (simulated)"
    for point in record.points:
        told = f"step {format_seconds(point.step_s)}, efficiency {format_percent(point.efficiency)} (simulated)"
        yield Case(group, f"{point.mode} on {point.workers} workers", point.step_s, message=told)


def _cluster(record: ClusterComparison) -> Iterator[Case]:
    group = f"{record.trace.name} on {record.gpus} GPUs (simulated)"
    for result in record.results:
        placed = f", {result.placement}" if result.placement else ""
        name = f"{result.policy}, {costing(result.restart_s)}{placed}"
        told = f"mean job completion time {format_duration(result.jct_mean_s)} (simulated)"
        yield Case(group, name, result.jct_mean_s, message=told)


def _live(record: LiveRun) -> Iterator[Case]:
    group = f"{record.policy} on {record.slots} slots (real)"
    for job in record.jobs:
        if job.jct_s is None:
            yield Case(group, job.name, None, "error", job.reason or "it had not finished when the run ended")
            continue
        told = f"job completion time {format_duration(job.jct_s)} (real)"
        if job.forecast_jct_s is not None:
            told += f", {format_duration(job.forecast_jct_s)} (forecast): {format_signed_percent(job.forecast_error)}"
        if job.simulated_jct_s is not None:
            told += f", {format_duration(job.simulated_jct_s)} (fitted): {format_signed_percent(job.error)}"
        yield Case(group, job.name, job.jct_s, message=told)


def _restart(record: Restart) -> Iterator[Case]:
    for row in ROWS:
        seconds = seconds_of(record, row.part, None)
        if seconds is None:
            continue
        told = f"{row.told}: {format_seconds(seconds.median)} ({record.label})"
        yield Case(heading(record), row.part, seconds.median, message=told)
    if record.check is None:
        return
    status: Status = "passed" if record.check.held else "failed"
    yield Case(heading(record), "loss curve", status=status, message=(record.findings or [""])[-1])


def _validation(record: Validation) -> Iterator[Case]:
    for goal in record.goals:
        yield Case("goals", goal.claim, status="passed" if goal.held else "failed", message=goal.found)
    for cell in record.cells:
        group = f"{name_of(cell)} ({cell.fabric.label})"
        if cell.error is not None:
            yield Case(group, "the cell", status="error", message=cell.error)
        for point in cell.points:
            took = point.measured_step_s
            told = (
                f"step {format_seconds(took.median)} [{span_cell(took, ', ')}] "
                f"({cell.fabric.label}), predicted {format_seconds(point.predicted_step_s)} (simulated): "
                f"{format_signed_percent(point.error)}"
            )
            yield Case(group, point.mode, took.median, message=told)


def _convergence(record: Convergence) -> Iterator[Case]:
    group = f"{record.workload.title} on {record.fabric.spec} ({record.label})"
    for mode in record.modes.values():
        if mode.status != "ok" or mode.accuracy is None:
            yield Case(group, mode.mode, None, "skipped" if mode.status == "not trained" else "error", failed(mode))
            continue
        told = f"accuracy {format_percent(mode.accuracy.mean, 2)} ({record.label}): {mode.verdict or 'not judged'}"
        yield Case(group, mode.mode, mode.step_s, message=told)


def _tuned(record: Tuned) -> Iterator[Case]:
    group = f"{record.workload.title} on {record.fabric.spec} ({record.label})"
    for mode, ratio in {record.reference: None, **record.tried}.items():
        chosen = ": chosen" if mode == record.schedule else ""
        if ratio is None:
            yield Case(group, mode, message=f"the reference{chosen}")
            continue
        low, high = ratio.ci95
        told = f"{ratio.value:.3f} [{low:.3f}, {high:.3f}] of {record.reference}'s time per sample ({record.label})"
        yield Case(group, mode, message=f"{told}: {ratio.verdict}{chosen}")
