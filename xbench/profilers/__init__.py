"""Measurements of one training step and the collectives that it needs.

`clock` marks points in a device's work. `layers` instruments a step. `collectives` times all-reduces on the real links.
`summary`, which imports no torch, turns the raw times of all ranks into the record's parts.

Most of a short run is its profile. A test that judges no prediction sets XBENCH_PROFILE_SHARE to a tenth; every rank
must have the same. The measurements are then as many, and rougher, and the record's environment names the share.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from xbench.errors import SpecError

VARIABLE = "XBENCH_PROFILE_SHARE"


def share(environ: Mapping[str, str] = os.environ) -> float:
    """Factor of every time budget: above 0, at most 1, and 1 if the variable is not set. Raises SpecError."""
    text = environ.get(VARIABLE) or "1"
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise SpecError(f"{VARIABLE} is {text[:60]!r}, and must be above 0 and at most 1", hint=f"unset {VARIABLE}")
    return value


SHARE = share()
"""Share of a profile's time budgets that this process takes: all of them, except in tests."""
