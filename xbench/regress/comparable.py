"""Comparability of the two sides of a case: a changed workload, or a field with different values.

The name of a check is its identity, and `workload_change` compares its workload on both sides. Times are comparable
only between machines and software that `environment.must_match` treats as the same. Plans, counters and the model's
times do not depend on the machine. Peak memory also depends on torch, whose allocator determines it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xbench import environment
from xbench.records import Case, Check, Side, WorkloadRecord
from xbench.regress.metrics import METRICS
from xbench.spec import WorkloadSpec
from xbench.text import cut, one_line
from xbench.units import format_bytes, format_count

CHECK_FIELDS = ("fabric", "plan_from", "workers")
"""Fields of a check that must match. Its workload is compared as built; other modes or metrics do not affect a case."""

MODEL_FIELDS = {
    "parameters": "parameters", "tensors": "tensors", "grad_bytes": "of gradients", "buffer_bytes": "of buffers"
}  # fmt: skip
"""Phrase after the amount of each field."""

SPEC_FIELDS = tuple(name for name in WorkloadSpec.model_fields if name != "batch_size")
CHANGE_FIELDS = (*MODEL_FIELDS, "batch_size", "input", *SPEC_FIELDS)
"""Fields that define a workload, the most significant first. Its title follows from its name."""

_SHOWN = 60


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
    values = {field: (_field(before, field), _field(now, field)) for field in CHANGE_FIELDS}
    changed = [field for field, (one, other) in values.items() if one != other]
    if not changed:
        return None
    model = [field for field in changed if field in MODEL_FIELDS]
    said = [_amount(field, *values[field]) for field in changed if field not in model[1:]]
    exact = [f"{spoken(field)} {_exact(values[field][0])} -> {_exact(values[field][1])}" for field in changed]
    return WorkloadChange(f"the {'model' if model else 'workload'} changed: {', '.join(said)}", ", ".join(exact))


def obstacle(case: Case, base: Side, head: Side) -> str | None:
    """Return the first relevant field that differs, as 'torch: 2.15.0 and 2.14.0'; None if the sides are comparable.

    Both sides have the check.
    """
    before, now = (next(check for check in side.checks if check.name == case.check) for side in (base, head))
    found = _difference(before, now)
    if found is not None:
        return found
    if METRICS[case.metric].layer == "wall":
        return next(iter(environment.differences(base.environment, head.environment)), None)
    if case.metric == "peak_memory":
        ours, theirs = (environment.must_match(side.environment)[1]["torch"] for side in (base, head))
        return f"torch: {ours} and {theirs}" if ours != theirs else None
    return None


def spoken(field: str) -> str:
    """Return the name of a field in a sentence."""
    return field.replace("_", " ")


def _difference(base: Check, head: Check) -> str | None:
    for field in CHECK_FIELDS:
        one, other = getattr(base, field), getattr(head, field)
        if one != other:
            return f"{spoken(field)}: {_short(one)} and {_short(other)}"
    return None


def _field(workload: WorkloadRecord, field: str) -> Any:
    return getattr(workload.spec if field in SPEC_FIELDS else workload, field)


def _amount(field: str, base: Any, head: Any) -> str:
    """Return '3.16 M -> 3.69 M parameters', 'batch size 8 -> 16'; exact numbers if rounding would hide the change."""
    if field not in MODEL_FIELDS:
        return f"{spoken(field)} {_short(base)} -> {_short(head)}"
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
    return cut(_exact(value), _SHOWN)
