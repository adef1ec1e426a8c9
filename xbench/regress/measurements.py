"""Conversion of a job's result to measurements of the suite's cases, with a reason for each missing one."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from xbench.records import Check, Failure, Label, Measurement, MetricName, SideName
from xbench.regress.metrics import METRICS
from xbench.regress.protocol import Block, JobResult

CONTROL = "compute"


def modes_of(check: Check, *, wall: bool) -> tuple[str, ...]:
    """Return the modes that a launch of this check runs: its own, and the control if exposed time is a metric."""
    needed = wall and "exposed" in check.metrics and CONTROL not in check.modes
    return (CONTROL, *check.modes) if needed else check.modes


def layer_of(check: Check, layer: str) -> list[MetricName]:
    """Return the check's metrics of a layer, in the check's order."""
    return [name for name in check.metrics if METRICS[name].layer == layer]


def looked(check: Check, answer: JobResult) -> tuple[list[Measurement], list[str]]:
    """Return the deterministic layer of one side, and the modes with a missing value."""
    found: list[Measurement] = []
    missing: list[str] = []
    for mode in check.modes:
        for metric in layer_of(check, "deterministic"):
            value = _deterministic(answer, mode, metric)
            if value is None:
                missing.append(mode)
            else:
                found.append(_measurement(check, mode, metric, value, answer.label))
    return found, list(dict.fromkeys(missing))


def _deterministic(answer: JobResult, mode: str, metric: MetricName) -> float | None:
    planned, counted = answer.planned.get(mode), answer.counted.get(mode)
    if metric in ("collectives", "wire_bytes", "peak_memory"):
        if counted is None:
            return None
        return {
            "collectives": counted.collectives, "wire_bytes": counted.wire_bytes, "peak_memory": counted.peak_bytes
        }[metric]  # fmt: skip
    if planned is None:
        return None
    return {
        "buckets": planned.buckets, "planned_step": planned.planned_step_s, "simulated_step": planned.simulated_step_s
    }[metric]  # fmt: skip


def timed(check: Check, answer: JobResult, turn_steps: int | None = None) -> list[Measurement]:
    """Return the wall-clock layer of one launch, without modes that have no timed step. `turn_steps` is per turn."""
    steps = {mode: _steps_s(answer.blocks, mode) for mode in modes_of(check, wall=True)}
    compute_s = statistics.median(steps[CONTROL]) if steps.get(CONTROL) else None
    found = []
    for mode in check.modes:
        for metric in layer_of(check, "wall"):
            samples = _samples(metric, steps[mode], answer.samples_per_step, compute_s)
            if samples:
                value = statistics.median(samples)
                cycle = next(block.cycle for block in answer.blocks if block.mode == mode)
                in_turn = turn_steps // cycle if turn_steps is not None else None
                found.append(_measurement(check, mode, metric, value, answer.label, samples, in_turn))
    return found


def _samples(metric: MetricName, steps_s: Sequence[float], batch: int, compute_s: float | None) -> list[float]:
    if metric == "time_per_sample":
        return [step_s / batch for step_s in steps_s]
    if metric == "exposed":
        return [] if compute_s is None else [step_s - compute_s for step_s in steps_s]
    return list(steps_s)


def _steps_s(blocks: Iterable[Block], mode: str) -> list[float]:
    """Return every timed step of a mode in order of time; if steps differ in cycles, the mean step of each cycle."""
    return [
        statistics.fmean(block.steps_s[at : at + block.cycle])
        for block in blocks
        if block.mode == mode
        for at in range(0, len(block.steps_s) - block.cycle + 1, block.cycle)
    ]


def failures(
    check: Check, answer: JobResult, side: SideName, pair: int | None, missing: Iterable[str] = ()
) -> list[Failure]:
    """Return the reasons why this answer has no value for the check, or for one of its modes."""
    if answer.error is not None:
        reason = answer.error if answer.hint is None else f"{answer.error} ({answer.hint})"
        return [Failure(check=check.name, side=side, pair=pair, reason=reason)]
    reasons = {mode: why for mode, why in answer.failed.items() if mode in check.modes}
    reasons |= {mode: "it was not measured" for mode in missing if mode not in reasons}
    return [Failure(check=check.name, mode=mode, side=side, pair=pair, reason=why) for mode, why in reasons.items()]


def _measurement(
    check: Check,
    mode: str,
    metric: MetricName,
    value: float,
    label: Label,
    samples: Sequence[float] = (),
    turn_steps: int | None = None,
) -> Measurement:
    facts = METRICS[metric]
    return Measurement(
        check=check.name,
        mode=mode,
        metric=metric,
        value=value,
        unit=facts.unit,
        label=facts.label or label,
        samples=list(samples),
        turn_steps=turn_steps,
    )
