"""How much of the communication that DDP leaves exposed a schedule removed, by the bound of what it may overlap."""

from __future__ import annotations

_NOTHING = 1e-3


def removed_share(
    mode_step_s: float, reference_step_s: float, bound_s: float, reference_low_s: float | None = None
) -> float | None:
    """Share of the removable communication that a schedule removed: (reference − mode) / (reference − bound).

    `bound_s` [s] is that of what the mode may overlap: `Bounds.of`. Below 0 for a schedule slower than the reference;
    above 1 only when the bound's model was wrong. None when nothing is shown to be removable: the reference is within
    a thousandth of the bound or under it, or its interval, from `reference_low_s` on, holds the bound.
    """
    removable_s = reference_step_s - bound_s
    if removable_s <= _NOTHING * reference_step_s:
        return None
    if reference_low_s is not None and reference_low_s <= bound_s:
        return None
    return (reference_step_s - mode_step_s) / removable_s
