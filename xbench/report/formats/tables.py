"""A record as tidy tables: one row an observation, one column a variable, base units in the columns' names.

Every row carries its label (real, emulated, simulated) and, of what was measured on one fabric, what it is of
(workload, fabric, ranks), so tables of several records can be laid on top of each other. What a kind of record has, its
main table first:

| kind | tables |
| --- | --- |
| comparison | `samples` (one row a block; a mode without any has one that says failed), `steps`, `modes`, `layers` |
| profile | `layers`, `samples` (one row a step), `plans` |
| scaling | `points` |
| validation | `points` |
| convergence | `steps`, `epochs`, `modes` |
| tuned | `tried` |
| regression | `cases`, `launches` (one row a case, side and pair) |
| baseline | `launches` |
| noise | `floors`, `launches` |
| cluster | `runs` (one row a policy, restart cost and seed), `results`, `curves` |
| live | `jobs`, `speeds` (one row a job and number of workers), `spans` (one row an incarnation) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from xbench.records import (
    AnyRecord,
    Baseline,
    ClusterComparison,
    Comparison,
    Convergence,
    Job,
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
from xbench.report.answer import jobs_of, reference_of, trusted
from xbench.report.cell_format import parity_cell, verdict
from xbench.report.kinds.cluster_tables import cluster_tables
from xbench.report.kinds.live import live_tables
from xbench.report.kinds.regression_tables import regression_tables
from xbench.report.kinds.restart import restart_tables

Row = dict[str, Any]
Table = list[Row]


def tables(record: AnyRecord) -> dict[str, Table]:
    """The tables by name, the main one first. Rows of one table have the same columns; None is a missing value."""
    if isinstance(record, Comparison):
        return _comparison(record)
    if isinstance(record, Profile):
        return _profile(record)
    if isinstance(record, Scaling):
        return {"points": list(_scaling(record))}
    if isinstance(record, Validation):
        return {"points": list(_validation(record))}
    if isinstance(record, Convergence):
        return _convergence(record)
    if isinstance(record, (Regression, Baseline, Noise)):
        return regression_tables(record)
    if isinstance(record, ClusterComparison):
        return cluster_tables(record)
    if isinstance(record, LiveRun):
        return live_tables(record)
    if isinstance(record, Restart):
        return restart_tables(record)
    return {"tried": list(_tuned(record))}


def tables_with_rows(record: AnyRecord) -> dict[str, Table]:
    """The tables that have rows; the main one comes first and is there even without any."""
    found = tables(record)
    main = next(iter(found))
    return {name: table for name, table in found.items() if table or name == main}


def _of(record: Comparison | Profile, label: str) -> Row:
    """What every row of a measured record begins with."""
    return {
        "label": label,
        "created": record.created,
        "complete": record.complete,
        "fabric": record.fabric.spec,
        "backend": record.fabric.backend,
        "ranks": record.fabric.world_size,
    }


def _comparison(record: Comparison) -> dict[str, Table]:
    made: dict[str, Callable[[Comparison], Iterator[Row]]] = {
        "samples": _samples,
        "steps": _steps,
        "modes": _modes,
        "layers": _comparison_layers,
    }
    return {name: list(rows(record)) for name, rows in made.items()}


def _samples(record: Comparison) -> Iterator[Row]:
    """Blocks as they were timed; those of a mode that failed say so, and a failed mode without any has one bare row."""
    seen: set[str] = set()
    for sample in record.samples:
        seen.add(sample.mode)
        yield {
            **_block(record, record.modes.get(sample.mode), sample.mode, sample.job),
            "launch": sample.launch,
            "round": sample.round,
            "position": sample.position,
            "started_s": sample.started_s,
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
            yield {**_block(record, result, name, None), **empty}


def _steps(record: Comparison) -> Iterator[Row]:
    """Every step of every block, warm-up included and marked."""
    for sample in record.samples:
        timed = [("warm-up", took_s) for took_s in sample.warmup_s] + [("timed", took_s) for took_s in sample.steps_s]
        for number, (phase, took_s) in enumerate(timed):
            yield {
                **_block(record, record.modes.get(sample.mode), sample.mode, sample.job),
                "launch": sample.launch,
                "round": sample.round,
                "position": sample.position,
                "step": number,
                "phase": phase,
                "step_s": took_s,
                "outlier": sample.outlier,
            }


def _block(record: Comparison, result: ModeResult | None, mode: str, job: int | None) -> Row:
    label = result.label if result is not None else record.fabric.label
    return {
        **_of(record, label),
        "mode": mode,
        "status": _status(result),
        "job": job,
        "workload": _title(record, job),
    }


def _title(record: Comparison, job: int | None) -> str:
    if job is not None and job < len(record.jobs):
        return record.jobs[job].workload.title
    return " + ".join(dict.fromkeys(one.workload.title for one in record.jobs))


def _modes(record: Comparison) -> Iterator[Row]:
    """What was concluded of each mode; one that failed has its reason, and no time."""
    for name, result in record.modes.items():
        fine = trusted(result)
        step, sample, ratio = result.step_s, result.seconds_per_sample, result.ratio
        yield {
            **_of(record, result.label),
            "workload": _title(record, None),
            "jobs": jobs_of(record, name),
            "mode": name,
            "status": _status(result),
            "verdict": verdict(record, result),
            "error": result.error,
            "blocks": result.blocks,
            "step_s": step.median if fine and step else None,
            "step_low_s": step.interval[0] if fine and step and step.interval else None,
            "step_high_s": step.interval[1] if fine and step and step.interval else None,
            "s_per_sample": sample.median if fine and sample else None,
            "s_per_sample_low": sample.interval[0] if fine and sample and sample.interval else None,
            "s_per_sample_high": sample.interval[1] if fine and sample and sample.interval else None,
            "reference": reference_of(record, result),
            "ratio": ratio.value if fine and ratio else None,
            "ratio_low": ratio.interval[0] if fine and ratio and ratio.interval else None,
            "ratio_high": ratio.interval[1] if fine and ratio and ratio.interval else None,
            "exposed_s": result.exposed_s if fine else None,
            "removed_share": result.removed_share if fine else None,
            "predicted_step_s_simulated": result.predicted_step_s,
            "prediction_error": result.prediction_error if fine else None,
            "buckets": len(result.plan.buckets) if result.plan else None,
            "largest_bucket_bytes": max(result.plan.bucket_bytes, default=None) if result.plan else None,
            "same_network": _same_network(result),
            "same_network_why": result.parity.message if result.parity else None,
            "pattern": result.pattern,
        }


def _status(result: ModeResult | None) -> str:
    """ok, failed (what passed no gate included), or not measured."""
    if result is not None and trusted(result):
        return "ok"
    return "not measured" if result is not None and result.status == "not measured" else "failed"


def _same_network(result: ModeResult) -> str | None:
    """yes, not shown or FAILED; 'no (ranks agree)' of modes that train another network on purpose."""
    return parity_cell(result).partition(" (±")[0] if result.parity is not None else None


def _comparison_layers(record: Comparison) -> Iterator[Row]:
    for number, job in enumerate(record.jobs):
        yield from _layers(record, job, job.layers, number)


def _layers(record: Comparison | Profile, job: Job | Profile, layers: list[Layer], number: int) -> Iterator[Row]:
    """In gradient-ready order, 1 nearest the loss."""
    for place, layer in enumerate(layers, start=1):
        yield {
            **_of(record, record.fabric.label),
            "job": number,
            "workload": job.workload.title,
            "ready_order": place,
            "layer": layer.name,
            "kind": layer.kind,
            "tensors": len(layer.tensors),
            "parameters": layer.parameters,
            "grad_bytes": layer.grad_bytes,
            "forward_s": layer.forward_s,
            "backward_s": layer.backward_s,
            "ready_s": layer.ready_s,
            "share_of_step": layer.share,
        }


def _profile(record: Profile) -> dict[str, Table]:
    of = {**_of(record, record.fabric.label), "workload": record.workload.title}
    samples = [
        {**of, "series": name, "step": number, "step_s": took_s}
        for name, series in record.samples.items()
        for number, took_s in enumerate(series)
    ]
    plans = [
        {
            **of,
            "label": "simulated",
            "mode": mode,
            "predicted_step_s": plan.predicted_step_s,
            "predicted_exposed_s": plan.predicted_exposed_s,
            "buckets": len(plan.buckets),
            "largest_bucket_bytes": max(plan.bucket_bytes, default=None),
        }
        for mode, plan in record.plans.items()
    ]
    return {"layers": list(_layers(record, record, record.layers, 0)), "samples": samples, "plans": plans}


def _scaling(record: Scaling) -> Iterator[Row]:
    for point in record.points:
        low_s, high_s = point.step_band_s or (None, None)
        yield {
            "label": record.label,
            "workload": record.workload.title,
            "topology": record.topology,
            "mode": point.mode,
            "workers": point.workers,
            "step_s": point.step_s,
            "step_low_s": low_s,
            "step_high_s": high_s,
            "exposed_s": point.exposed_s,
            "samples_per_s": point.samples_per_s,
            "efficiency": point.efficiency,
            "buckets": point.buckets,
            "largest_bucket_bytes": point.largest_bucket_bytes,
        }


def _validation(record: Validation) -> Iterator[Row]:
    """One row a mode of a cell; a cell that could not be measured has one row with its error."""
    for cell in record.cells:
        of = {
            "label": cell.fabric.label,
            "created": record.created,
            "complete": record.complete,
            "workload": cell.workload.title,
            "fabric": cell.fabric.spec,
            "ranks": cell.fabric.world_size,
            "predicted_on_ranks": cell.predicted_on,
            "status": "failed" if cell.error is not None else "ok",
            "error": cell.error,
        }
        empty = dict.fromkeys(("mode", "step_s", "step_low_s", "step_high_s", "predicted_step_s_simulated",
                               "prediction_error", "prediction_error_at_speed", "ratio_to_ddp"))  # fmt: skip
        if not cell.points:
            yield {**of, **empty}
        for point in cell.points:
            took = point.measured_step_s
            yield {
                **of,
                "mode": point.mode,
                "step_s": took.median,
                "step_low_s": took.interval[0] if took.interval else None,
                "step_high_s": took.interval[1] if took.interval else None,
                "predicted_step_s_simulated": point.predicted_step_s,
                "prediction_error": point.error,
                "prediction_error_at_speed": point.error_at_speed,
                "ratio_to_ddp": point.ratio_to_ddp,
            }


def _convergence(record: Convergence) -> dict[str, Table]:
    of = {
        "label": record.label,
        "created": record.created,
        "complete": record.complete,
        "workload": record.workload.title,
        "fabric": record.fabric.spec,
        "ranks": record.fabric.world_size,
    }
    steps, epochs = [], []
    for curve in record.curves:
        which = {**of, "mode": curve.mode, "seed": curve.seed}
        for number, loss in enumerate(curve.train_loss):
            took_s = curve.steps_s[number] if number < len(curve.steps_s) else None
            steps.append({**which, "step": number, "train_loss": loss, "step_s": took_s})
        for number, (loss, accuracy) in enumerate(zip(curve.test_loss, curve.test_accuracy, strict=False), start=1):
            epochs.append({**which, "epoch": number, "test_loss": loss, "test_accuracy": accuracy})
    modes = [
        {
            **of,
            "mode": mode.mode,
            "status": mode.status,
            "error": mode.error,
            "verdict": mode.verdict,
            "accuracy": mode.accuracy.mean if mode.accuracy else None,
            "accuracy_low": mode.accuracy.ci95[0] if mode.accuracy and mode.accuracy.ci95 else None,
            "accuracy_high": mode.accuracy.ci95[1] if mode.accuracy and mode.accuracy.ci95 else None,
            "test_loss": mode.test_loss.mean if mode.test_loss else None,
            "step_s": mode.step_s,
            "sent_bytes": mode.sent_bytes,
            "activation_bytes": mode.activation_bytes,
            "backward_flops": mode.backward_flops,
        }
        for mode in record.modes.values()
    ]
    return {"steps": steps, "epochs": epochs, "modes": modes}


def _tuned(record: Tuned) -> Iterator[Row]:
    for mode, ratio in {record.reference: None, **record.tried}.items():
        yield {
            "label": record.label,
            "created": record.created,
            "workload": record.workload.title,
            "fabric": record.fabric.spec,
            "ranks": record.fabric.world_size,
            "mode": mode,
            "chosen": mode == record.schedule,
            "reference": record.reference,
            "ratio": ratio.value if ratio else 1.0,
            "ratio_low": ratio.ci95[0] if ratio else None,
            "ratio_high": ratio.ci95[1] if ratio else None,
            "verdict": ratio.verdict if ratio else "reference",
        }
