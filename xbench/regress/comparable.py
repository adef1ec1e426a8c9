"""What keeps the two sides of a case from being compared, as a field with both values.

Times compare only between machines and software that `environment.must_match` calls the same. Plans, counters and the
model's times do not know the machine: for them the workload and the check have to be the same, and for peak memory
torch as well, whose allocator decides it.
"""

from __future__ import annotations

from pydantic import BaseModel

from xbench import environment
from xbench.records import Case, Side
from xbench.regress.metrics import METRICS

CHECK_FIELDS = ("workload", "fabric", "plan_from", "workers")
"""Of a check. Its name is how it was found, and further modes or metrics change nothing for this one."""

_SHOWN = 60


def obstacle(case: Case, base: Side, head: Side) -> str | None:
    """The first field that differs and matters to this case, as 'torch: 2.15.0 and 2.14.0'; None when they compare.

    Both sides have the check; a workload that either side could not build is no obstacle but a missing measurement.
    """
    before, now = (next(check for check in side.checks if check.name == case.check) for side in (base, head))
    found = _difference(before, now, CHECK_FIELDS)
    built = [side.workloads.get(case.check) for side in (base, head)]
    if found is None and built[0] is not None and built[1] is not None:
        found = _difference(built[0], built[1], tuple(type(built[0]).model_fields))
    if found is not None:
        return found
    if METRICS[case.metric].layer == "wall":
        return next(iter(environment.differences(base.environment, head.environment)), None)
    if case.metric == "peak_memory":
        ours, theirs = (environment.must_match(side.environment)[1]["torch"] for side in (base, head))
        return f"torch: {ours} and {theirs}" if ours != theirs else None
    return None


def _difference(base: BaseModel, head: BaseModel, fields: tuple[str, ...]) -> str | None:
    """The first of these fields that differs, with both values; of a nested part the first field inside."""
    for field in fields:
        one, other = getattr(base, field), getattr(head, field)
        if one == other:
            continue
        if isinstance(one, BaseModel) and isinstance(other, BaseModel):
            return _difference(one, other, tuple(type(one).model_fields))
        return f"{field.replace('_', ' ')}: {_value(one)} and {_value(other)}"
    return None


def _value(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
