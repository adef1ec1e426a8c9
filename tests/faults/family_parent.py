"""C: signals to the parent, at every phase from its first moments to its save."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .case import Case, after_signal, case, compare, needs_of
from .faults import after, at, to_parent, when
from .harness import Plant, Start, observe
from .observation import Observation
from .verdict import DONE, INTERRUPTED, Expected

SLOW_SAVE = str(Path(__file__).with_name("slow_save.py"))
SIGNALS = ("kill", "term", "hup", "int", "int2", "int5")
PROBE_S = 1.5
"""After so long the parent has begun to check the model, and no rank is there yet."""


def cases() -> Iterator[Case]:
    for kind in ("local", "shaped"):
        for name in SIGNALS:
            for phase in ("profile", "gate", "round"):
                if name == "int5" and phase != "round":
                    continue
                expected = replace(after_signal(name), at_least=1 if phase == "round" else 0)
                yield case(f"C-{kind}-{name}-{phase}", expected, kind=kind, plant=at(phase, to_parent(name)))
        for name in SIGNALS:
            yield case(f"C-{kind}-{name}-probe", before_ranks(name), kind=kind, plant=after(PROBE_S, to_parent(name)))
            yield at_save(f"C-{kind}-{name}-save", kind, name)
    for name in ("term", "int"):
        for delay_s in (0.3, 0.6, 1.0):
            plant = after(delay_s, to_parent(name))
            yield case(f"C-local-{name}-after-{delay_s}s", before_ranks(name), plant=plant)
    for name in ("kill", "term", "int", "int2", "int5"):
        yield case(
            f"C-crossover-{name}-round", after_signal(name), kind="crossover", plant=at("round", to_parent(name))
        )
        yield at_save(f"C-crossover-{name}-save", "crossover", name)
    for name in ("kill", "int"):
        expected = replace(after_signal(name), at_least=1)
        yield case(f"C-emulated-{name}-round", expected, kind="emulated", plant=at("round", to_parent(name)))


def before_ranks(name: str) -> Expected:
    """Before any rank is there SIGTERM and SIGHUP may end the run as they end any program."""
    number = {"term": -15, "hup": -1}.get(name)
    expected = after_signal(name)
    return replace(expected, codes=(*expected.codes, number), silent=True, says=None) if number else expected


def at_save(name: str, kind: str, signal_name: str) -> Case:
    """The signal while the record is written: the record is whole or was rebuilt, and nothing half-written stays.

    The run may count as done or as interrupted: it was asked to stop when it had nothing left to do.
    """
    expected = replace(after_signal(signal_name), at_least=1)
    if signal_name != "kill":
        expected = replace(expected, codes=(DONE, INTERRUPTED), says=None)
    plant = saving(to_parent(signal_name))

    def look(folder: Path) -> Observation:
        return observe(Start(slow_save(folder, compare(kind))), folder, plant)

    return Case(name, expected, look, needs_of(kind))


def saving(plant: Plant, delay_s: float = 0.3) -> Plant:
    """The fault while a run of slow_save.py saves."""
    return when(lambda live: (live.folder / "saving").exists(), "the save", plant, delay_s)


def slow_save(folder: Path, argv: list[str]) -> list[str]:
    """A command of xbench, so that its save is slow and makes the file `saving` in a folder."""
    return [sys.executable, SLOW_SAVE, str(folder / "saving"), *argv[3:]]
