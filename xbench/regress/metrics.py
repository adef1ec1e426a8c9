"""Metrics that a suite may name: their facts, their values in a job's result, and whether two values can be compared.

*Deterministic* metrics come from plans, counters and the model. The same code gives the same value, so one look at each
side is enough, and counts are compared exactly. *Wall-clock* metrics come from the clock and need repeated launches.

The name of a check is its identity, and `workload_change` compares its workload on both sides. Times are comparable
only between machines and software that `environment.must_match` treats as the same. Plans, counters and the model's
times do not depend on the machine. Peak memory also depends on torch, whose allocator determines it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from xbench import environment
from xbench.records import Case, Check, Failure, Label, Measurement, MetricName, MetricUnit, Side, SideName, Suite
from xbench.regress.protocol import Block, JobResult
from xbench.spec import WorkloadSpec
from xbench.stats.regression import pairs_needed
from xbench.text import cut, one_line
from xbench.units import format_bytes, format_count

EXACT = 0.0
SMALL = 0.01
"""Threshold of deterministic times and memory. Rounding and allocators change them by less."""

SLOWER = 0.05
CONTROL = "compute"


class MetricFacts(NamedTuple):
    """Properties of a metric that are known before a measurement."""

    layer: Literal["deterministic", "wall"]
    unit: MetricUnit
    threshold: float
    """Default threshold, as a share. 0: any change counts, in either direction."""
    meaning: str
    label: Label | None = None
    """Label of its values. None: that of the fabric."""


METRICS: dict[MetricName, MetricFacts] = {
    "buckets": MetricFacts("deterministic", "count", EXACT, "buckets of the plan", "simulated"),
    "wire_bytes": MetricFacts("deterministic", "B", EXACT, "bytes a rank hands to collectives in a step"),
    "collectives": MetricFacts("deterministic", "count", EXACT, "collectives that a rank launches in a step"),
    "planned_step": MetricFacts("deterministic", "s", SMALL, "step that the plan predicts", "simulated"),
    "simulated_step": MetricFacts("deterministic", "s", SMALL, "step on more workers, by the model", "simulated"),
    "peak_memory": MetricFacts("deterministic", "B", SMALL, "most memory that a step holds, of the worst rank"),
    "step_time": MetricFacts("wall", "s", SLOWER, "one step, until the last rank is done"),
    "time_per_sample": MetricFacts("wall", "s", SLOWER, "step over the samples of all ranks"),
    "exposed": MetricFacts("wall", "s", SLOWER, "step beyond the compute-only step of the same launch"),
}
"""Every metric, by its name in xbench.toml. Lower is better for all."""

PLANNED: dict[MetricName, str] = {
    "buckets": "buckets", "planned_step": "planned_step_s", "simulated_step": "simulated_step_s"
}  # fmt: skip
"""Metrics that are computed from a record, in any mode, and their fields of `PlannedFigures`."""

COUNTED: dict[MetricName, str] = {
    "wire_bytes": "wire_bytes", "collectives": "collectives", "peak_memory": "peak_bytes"
}  # fmt: skip
"""Metrics that are counted in a step, and their fields of `Counts`. Horovod's own collectives cannot be counted."""


def wall_clock(cases: Sequence[Case]) -> list[Case]:
    """Return the cases that only launches can decide. One look at each side decides the others."""
    return [case for case in cases if METRICS[case.metric].layer == "wall"]


def pairs_for(suite: Suite) -> int:
    """Return the smallest number of launch pairs with which a check can find anything; 0 without wall-clock cases.

    With fewer pairs every wall-clock case would be inconclusive. The command reports this before it launches anything.
    """
    walls = wall_clock(suite.cases())
    return pairs_needed(suite.alpha, len(walls)) if walls else 0


def modes_of(check: Check, *, wall: bool) -> tuple[str, ...]:
    """Return the modes that a launch of this check runs: its own, and the control if exposed time is a metric."""
    needed = wall and "exposed" in check.metrics and CONTROL not in check.modes
    return (CONTROL, *check.modes) if needed else check.modes


def layer_of(check: Check, layer: str) -> list[MetricName]:
    """Return the check's metrics of a layer, in the check's order."""
    return [name for name in check.metrics if METRICS[name].layer == layer]


# --- values in a job's result -------------------------------------------------------------------------------------


def deterministic_layer(check: Check, answer: JobResult) -> tuple[list[Measurement], list[str]]:
    """Return the deterministic layer of one side, and the modes with a missing value."""
    found: list[Measurement] = []
    missing: list[str] = []
    for mode in check.modes:
        for metric in layer_of(check, "deterministic"):
            figures = answer.planned.get(mode) if metric in PLANNED else answer.counted.get(mode)
            value = getattr(figures, {**PLANNED, **COUNTED}[metric], None)
            if value is None:
                missing.append(mode)
            else:
                found.append(_measurement(Case(check.name, mode, metric), value, answer.label))
    return found, list(dict.fromkeys(missing))


def timed(check: Check, answer: JobResult, turn_steps: int | None = None) -> list[Measurement]:
    """Return the wall-clock layer of one launch, without modes that have no timed step. `turn_steps` is per turn."""
    steps = {mode: _steps_s(answer.blocks, mode) for mode in modes_of(check, wall=True)}
    compute_s = statistics.median(steps[CONTROL]) if steps.get(CONTROL) else None
    found = []
    for mode in check.modes:
        cycle = next((block.cycle for block in answer.blocks if block.mode == mode), 1)
        for metric in layer_of(check, "wall"):
            samples = steps[mode]
            if metric == "time_per_sample":
                samples = [step_s / answer.samples_per_step for step_s in samples]
            elif metric == "exposed":
                samples = [] if compute_s is None else [step_s - compute_s for step_s in samples]
            if samples:
                made = _measurement(Case(check.name, mode, metric), statistics.median(samples), answer.label)
                in_turn = turn_steps // cycle if turn_steps is not None else None
                found.append(made.model_copy(update={"samples": samples, "turn_steps": in_turn}))
    return found


def _steps_s(blocks: Iterable[Block], mode: str) -> list[float]:
    """Return every timed step of a mode in order of time; if steps differ in cycles, the mean step of each cycle."""
    return [
        statistics.fmean(block.steps_s[at : at + block.cycle])
        for block in blocks
        if block.mode == mode
        for at in range(0, len(block.steps_s) - block.cycle + 1, block.cycle)
    ]


def _measurement(case: Case, value: float, label: Label) -> Measurement:
    facts = METRICS[case.metric]
    return Measurement(**case._asdict(), value=value, unit=facts.unit, label=facts.label or label)


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


# --- comparability of two sides -----------------------------------------------------------------------------------

CHECK_FIELDS = ("fabric", "plan_from", "workers")
"""Fields of a check that must match. Its workload is compared as built; other modes or metrics do not affect a case."""

MODEL_FIELDS = {
    "parameters": "parameters", "tensors": "tensors", "grad_bytes": "of gradients", "buffer_bytes": "of buffers"
}  # fmt: skip
"""Phrase after the amount of each field."""

SPEC_FIELDS = tuple(name for name in WorkloadSpec.model_fields if name != "batch_size")
CHANGE_FIELDS = (*MODEL_FIELDS, "batch_size", "input", *SPEC_FIELDS)
"""Fields that define a workload, the most significant first. Its title follows from its name."""


class WorkloadChange(NamedTuple):
    """Difference between head's workload and base's."""

    said: str
    """Summary: 'the model changed: 3.16 M -> 3.69 M parameters'."""
    exact: str
    """Every field with both values, as `expect_change` must state it: 'parameters 3159050 -> 3685130'."""


def workload_change(check: str, base: Side, head: Side) -> WorkloadChange | None:
    """Return the change of this check's workload; None if there is none, or if a side could not build it."""
    before, now = base.workloads.get(check), head.workloads.get(check)
    if before is None or now is None:
        return None
    changed: dict[str, tuple[Any, Any]] = {}
    for field in CHANGE_FIELDS:
        one, other = (getattr(side.spec if field in SPEC_FIELDS else side, field) for side in (before, now))
        if one != other:
            changed[field] = one, other
    if not changed:
        return None
    model = [field for field in changed if field in MODEL_FIELDS]
    said = [_amount(field, *values) for field, values in changed.items() if field not in model[1:]]
    exact = [f"{field_title(field)} {_exact(one)} -> {_exact(other)}" for field, (one, other) in changed.items()]
    return WorkloadChange(f"the {'model' if model else 'workload'} changed: {', '.join(said)}", ", ".join(exact))


def obstacle(case: Case, base: Side, head: Side) -> str | None:
    """Return the first relevant field that differs, as 'torch: 2.15.0 and 2.14.0'; None if the sides are comparable.

    Both sides have the check.
    """
    before, now = (next(check for check in side.checks if check.name == case.check) for side in (base, head))
    for field in CHECK_FIELDS:
        one, other = getattr(before, field), getattr(now, field)
        if one != other:
            return f"{field_title(field)}: {_short(one)} and {_short(other)}"
    if METRICS[case.metric].layer == "wall":
        return next(iter(environment.differences(base.environment, head.environment)), None)
    if case.metric == "peak_memory":
        ours, theirs = (environment.must_match(side.environment)[1]["torch"] for side in (base, head))
        return f"torch: {ours} and {theirs}" if ours != theirs else None
    return None


def field_title(field: str) -> str:
    """Return the name of a field in a sentence."""
    return field.replace("_", " ")


def _amount(field: str, base: Any, head: Any) -> str:
    """Return '3.16 M -> 3.69 M parameters', 'batch size 8 -> 16'; exact numbers if rounding would hide the change."""
    if field not in MODEL_FIELDS:
        return f"{field_title(field)} {_short(base)} -> {_short(head)}"
    if field.endswith("_bytes"):
        one, other = (format_bytes(sum(value) if isinstance(value, list) else value) for value in (base, head))
    else:
        one, other = format_count(base), format_count(head)
    if one == other:
        one, other = _exact(base), _exact(head)
    return f"{one} -> {other} {MODEL_FIELDS[field]}"


def _exact(value: Any) -> str:
    if value is None or value == []:
        return "none"
    return one_line(" + ".join(map(str, value)) if isinstance(value, list) else str(value))


def _short(value: object) -> str:
    return cut(_exact(value), 60)
