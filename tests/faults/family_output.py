"""H: closed, full and broken outputs, and a run under a terminal that is resized, interrupted or closed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .case import Case, case, compare, needs_of
from .faults import at
from .harness import Start, observe
from .observation import Observation
from .verdict import DONE, FAILED, INTERRUPTED, Expected

TERMINAL = str(Path(__file__).with_name("terminal.py"))
WELL = Expected(codes=(DONE,), silent=True)
"""Nobody reads a closed output, so that a sentence is not required; the measurement is as good."""
UNDELIVERED = Expected(codes=(DONE, FAILED), silent=True, complete=True)
"""A result that was asked for on stdout and could not be written there may be a failure; the record is whole."""

SHELL: dict[str, tuple[Expected, tuple[str, ...], str]] = {
    "both-closed": (WELL, (), 'exec "$@" >&- 2>&-'),
    "stderr-closed": (WELL, (), 'exec "$@" 2>&-'),
    "stdout-closed": (WELL, (), 'exec "$@" >&-'),
    "stdin-closed": (WELL, (), 'exec "$@" <&-'),
    "all-closed": (WELL, (), 'exec "$@" <&- >&- 2>&-'),
    "stderr-broken": (WELL, (), '"$@" 2> >(head -c 5 >/dev/null); exit $?'),
    "stderr-full": (WELL, (), 'exec "$@" 2>/dev/full'),
    "json-closed": (UNDELIVERED, ("--json", "-"), 'exec "$@" >&-'),
    "json-full": (UNDELIVERED, ("--json", "-"), 'exec "$@" >/dev/full'),
    "json-broken": (UNDELIVERED, ("--json", "-"), '"$@" | head -c 10 >/dev/null; exit ${PIPESTATUS[0]}'),
}
"""Expectation, more options, and the script by which bash runs the command."""

QUIT = 131
AT_TERMINAL = {
    "resize": Expected(codes=(DONE,)),
    "hangup": Expected(codes=(INTERRUPTED,), silent=True, at_least=1),
    "ctrl-c": Expected(codes=(INTERRUPTED,), at_least=1),
    "ctrl-c2": Expected(codes=(INTERRUPTED,), at_least=1),
    "ctrl-z": Expected(codes=(DONE,)),
    "ctrl-backslash": Expected(codes=(QUIT,), silent=True, leaves=True, at_least=1),
}


def cases() -> Iterator[Case]:
    for name, (expected, more, script) in SHELL.items():
        argv = ["bash", "-c", script, "bash", *compare("local", *more)]
        yield case(f"H-{name}", expected, argv=argv)
    for name, expected in AT_TERMINAL.items():
        for kind in ("local", "shaped"):
            yield _at_terminal(f"H-terminal-{name}-{kind}", name, expected, kind)


def _at_terminal(name: str, does: str, expected: Expected, kind: str) -> Case:
    def look(folder: Path) -> Observation:
        start = Start([sys.executable, TERMINAL, str(folder), *compare(kind)])
        return observe(start, folder, at("round", lambda live: live.steer(does)))

    return Case(name, replace(expected), look, needs_of(kind))
