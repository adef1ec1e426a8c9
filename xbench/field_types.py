"""Types of fields in records: text that is safe to show, and numbers within the range of a field.

A record may come from a stranger. `Text` turns every character that a terminal, a log or a reader would interpret into
a visible mark, so renderers need no further protection. Bounds of numbers are far from any measurement: they exclude
values that would overflow in a formula or on an axis.

Each is an `Annotated` type for a pydantic field. A field of a record is never a bare `str`: a test checks all of them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from xbench.text import visible

MAX_S = 1e12
"""Longest time [s]: 30,000 years."""

MAX_SIMULATED_S = 1e30
"""Longest simulated time [s]: a million jobs of a trace, each with the most work and the least speed accepted."""

MIN_S = 1e-12
"""Shortest time [s]: a picosecond, below the resolution of any clock here."""

MAX_COUNT = 2**53
"""Largest count: beyond it a float no longer holds every integer."""


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_shown)]
"""One line of text. Control characters, line ends and marks of writing direction become visible (`visible`)."""

Seconds = Annotated[float, Field(ge=-MAX_S, le=MAX_S)]
"""A point in time or a difference [s], which may be negative."""

Duration = Annotated[float, Field(ge=0, le=MAX_S)]
"""A duration [s], zero included."""

PositiveSeconds = Annotated[float, Field(ge=MIN_S, le=MAX_S)]
"""A duration above zero [s], such as a training step."""

SimulatedSeconds = Annotated[float, Field(ge=-MAX_SIMULATED_S, le=MAX_SIMULATED_S)]
"""Seconds of a simulation, whose jobs may be absurdly long."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""A number of things, or of bytes."""

PositiveCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
"""A number of things, at least one. (`Count = Field(ge=1)` would keep the bound of `Count`.)"""

Rate = Annotated[float, Field(ge=0, le=1e18)]
"""Rate in bits per second."""
