"""Steps that are too short to predict, and the sentence that marks predictions of them.

The limit comes from stored predictions and the steps that were then measured: docs/validate.md, "Short steps".
"""

from __future__ import annotations

from collections.abc import Iterable

from xbench.units import format_seconds

MIN_PREDICTABLE_S = 0.03


def is_predictable(predicted_s: float) -> bool:
    """True if a predicted step [s] is long enough to rely on."""
    return predicted_s >= MIN_PREDICTABLE_S


def short_step_caution(predicted_s: Iterable[float | None]) -> list[str]:
    """One sentence to show beside predicted steps [s] of which any is too short, else none."""
    if all(step_s is None or is_predictable(step_s) for step_s in predicted_s):
        return []
    return [f"Predictions of steps below {format_seconds(MIN_PREDICTABLE_S, 2)} are not reliable here."]
