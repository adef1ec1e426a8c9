"""Options of `ddp+compile:reducer=python`. Nothing here imports torch."""

from __future__ import annotations

from xbench.errors import SpecError
from xbench.spec import known_options

REDUCER, PYTHON = "reducer", "python"
"""The option that puts DDP's all-reduces into the compiled graph, and its one value."""


def checked(text: str, options: dict[str, str]) -> dict[str, str]:
    """Return the options of the mode `text`. Raises SpecError with what is allowed."""
    known_options(text, options, (REDUCER,))
    if options.get(REDUCER, PYTHON) != PYTHON:
        raise SpecError(f"{text!r}: {REDUCER}={options[REDUCER]} is not allowed", hint=f"{REDUCER}={PYTHON}")
    return options
