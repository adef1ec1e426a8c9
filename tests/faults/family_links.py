"""D: the link of a shaped fabric changes while the run goes on. The record must say so, and is not complete."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case, case
from .faults import AMID_STEPS_S, LINK_CHANGES, at
from .verdict import DONE, FAILED, Expected

CHANGED = r"links changed|link of host|links? .*(down|gone)|switch"
STOOD_STILL = r"stood still"
"""Pattern of what a record says of a step that took far longer than its neighbours."""


def after_change(name: str) -> Expected:
    """Expectation after a change that lasts. A link that is up again is as it was asked for; only steps can tell.

    The deletion of a namespace leaves its hosts file, which `xbench clean` takes.
    """
    if name == "down-up":
        return Expected(codes=(DONE, FAILED), tells=f"{CHANGED}|{STOOD_STILL}")
    # Without an address the ranks fall silent, and the error may name them in place of their link.
    tells = "." if name == "flush-address" else CHANGED
    return Expected(codes=(DONE, FAILED), complete=False, tells=tells, leaves=name == "delete-namespace")


def cases() -> Iterator[Case]:
    for name, plant in LINK_CHANGES.items():
        for phase in ("profile", "gate", "round"):
            if name == "down-up" and phase != "round":
                continue  # a link that is whole again before anything is timed changes no number
            delay_s = AMID_STEPS_S if phase == "round" else 0.1
            yield case(f"D-{name}-{phase}", after_change(name), kind="shaped", plant=at(phase, plant, delay_s))
