"""Turns of two launches that run at once, so that changes of the machine's speed affect both alike.

    FOLDER/base/at-3      every rank of base is idle and ready for its turn 3
    FOLDER/base/go-3      base has the turn
    FOLDER/base/done-3    every rank of base is idle again

If other programs use the machine too, a core's speed changes by a tenth and more from one second to the next. A turn is
a fraction of a second, so both sides have theirs before much has changed. Turn k is given when both sides are ready for
it, so one side is idle during the other's turn. The order changes from turn to turn: A-B-B-A. A side that has ended is
not waited for.

The signals are files, because the sides share nothing else. Each is started by its own revision, perhaps in network
namespaces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

POLL_S = 0.004
SAY_S = 5.0
"""Interval at which a rank that waits reports it, so that it does not count as hung [s]."""


class Turns:
    """Turns of one side, as one rank sees them. `leads`: whether this rank signals for its side."""

    def __init__(self, folder: Path, *, leads: bool, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._leads = leads
        self._say = say
        self._number = 0

    def take(self) -> None:
        """Wait for this side's turn. Call it when every rank of the side is idle."""
        self._told("at")
        said_s = time.monotonic()
        while not self._file("go").exists():
            if time.monotonic() - said_s > SAY_S:
                self._say("waiting for its turn")
                said_s = time.monotonic()
            time.sleep(POLL_S)

    def give(self) -> None:
        """End the turn. Call it when every rank of the side is idle again."""
        self._told("done")
        self._number += 1

    def _told(self, what: str) -> None:
        if self._leads:
            self._file(what).touch()

    def _file(self, what: str) -> Path:
        return self._folder / f"{what}-{self._number}"


def give_turns(folders: Sequence[Path], alive: Mapping[Path, Callable[[], bool]], longest_s: float) -> None:
    """Give turns until no side is alive, or one has let the other wait for `longest_s` [s].

    Turn k goes in the order of `folders` if k is even, else reversed.
    """
    for number in count():
        if not all(_came(folder / f"at-{number}", alive[folder], longest_s) for folder in folders):
            return
        if not any(alive[folder]() for folder in folders):
            return
        for folder in folders if number % 2 == 0 else reversed(folders):
            (folder / f"go-{number}").touch()
            if not _came(folder / f"done-{number}", alive[folder], longest_s):
                return


def _came(path: Path, alive: Callable[[], bool], longest_s: float) -> bool:
    """Wait for a file of a side that is alive. False if it takes longer than `longest_s` [s]."""
    until_s = time.monotonic() + longest_s
    while not path.exists() and alive():
        if time.monotonic() > until_s:
            return False
        time.sleep(POLL_S)
    return True
