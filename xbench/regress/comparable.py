"""What keeps the two sides of a case from being compared, as a field with both values."""

from __future__ import annotations

from xbench.records import Case, Side


def obstacle(case: Case, base: Side, head: Side) -> str | None:
    """The first field that differs and matters to this case, as 'torch: 2.15.0 and 2.14.0'; None when they compare.

    Wall-clock cases need machine and software of `environment.must_match`; deterministic ones only the workload and
    the check, and torch as well for peak_memory.
    """
    raise NotImplementedError
