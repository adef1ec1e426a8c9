"""D: the link of a shaped fabric changes while the run goes on. The record must say so, and is not complete."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case, case
from .faults import LINK_CHANGES, at
from .verdict import DONE, FAILED, Expected

TELLS = r"(?i)link|host 1|host 0|namespace|address|queue|qdisc|rate|switch|bridge"


def after_change(name: str) -> Expected:
    """A changed link is told. Who deletes a namespace leaves its hosts file, which `xbench fabric clean` takes."""
    return Expected(codes=(DONE, FAILED), complete=False, tells=TELLS, leaves=name == "delete-namespace")


def cases() -> Iterator[Case]:
    for name, plant in LINK_CHANGES.items():
        for phase in ("profile", "gate", "round"):
            if name == "down-up" and phase != "round":
                continue  # a link that is whole again before anything is timed changes no number
            yield case(f"D-{name}-{phase}", after_change(name), kind="shaped", plant=at(phase, plant))
