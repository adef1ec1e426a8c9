"""What keeps the two sides of a case from being compared: a changed workload, or a field with both values.

The name of a check is its identity, and `workload_change` says whether both sides train the same thing under it. Times
compare only between machines and software that `environment.must_match` calls the same. Plans, counters and the model's
times do not depend on the machine. Peak memory depends on torch as well, whose allocator decides it.
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
"""Of a check. Its workload is compared as it was built, and further modes or metrics change nothing for this case."""

MODEL_FIELDS = {
    "parameters": "parameters", "tensors": "tensors", "grad_bytes": "of gradients", "buffer_bytes": "of buffers"
}  # fmt: skip
"""What is said after the amount of each."""

SPEC_FIELDS = tuple(name for name in WorkloadSpec.model_fields if name != "batch_size")
CHANGE_FIELDS = (*MODEL_FIELDS, "batch_size", "input", *SPEC_FIELDS)
"""What makes a workload another one, the most telling first. Its title follows from its name."""

_SHOWN = 60


class WorkloadChange(NamedTuple):
    """How head's workload differs from base's."""

    said: str
    """For people: 'the model changed: 3.16 M -> 3.69 M parameters'."""

    exact: str
    """Every field with both values, as `expect_change` has to say it: 'parameters 3159050 -> 3685130'."""


def workload_change(check: str, base: Side, head: Side) -> WorkloadChange | None:
    """How the workload of this check differs; None where it does not, or where a side could not build it."""
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
    """The first field that differs and matters to this case, as 'torch: 2.15.0 and 2.14.0'; None when they compare.

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
    """The name of a field in a sentence."""
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
    """'3.16 M -> 3.69 M parameters', 'batch size 8 -> 16'; exact numbers where rounding would hide the change."""
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
