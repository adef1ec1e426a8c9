"""Share of DDP's exposed communication that a schedule removed, against the bound of what it may overlap."""

from __future__ import annotations

_NOTHING = 1e-3


def removed_share(
    mode_step_s: float, reference_step_s: float, bound_s: float, reference_low_s: float | None = None
) -> float | None:
    """Share of the removable communication that a schedule removed: (reference − mode) / (reference − bound).

    `bound_s` [s] belongs to what the mode may overlap: `Bounds.of`. The share is below 0 for a schedule slower than the
    reference, and above 1 only if the bound's model was wrong. None if nothing is shown to be removable: the reference
    is within a thousandth of the bound or under it, or its interval, from `reference_low_s` on, contains the bound.
    """
    removable_s = reference_step_s - bound_s
    if removable_s <= _NOTHING * reference_step_s:
        return None
    if reference_low_s is not None and reference_low_s <= bound_s:
        return None
    return (reference_step_s - mode_step_s) / removable_s
