"""Two launches that are alive at once take turns, so that what the machine does in a moment it does to both.

    FOLDER/base/at-3      every rank of base is idle, and base would have its turn 3
    FOLDER/base/go-3      it has it
    FOLDER/base/done-3    every rank of base is idle again

A core's speed changes by a tenth and more from one second to the next, where others use the machine too; a turn is
a fraction of a second, and both sides have had theirs before much has changed. Turn k is given when both sides are at
it, so nothing of one side runs during a turn of the other, and the order changes from turn to turn: A-B-B-A. A side
that has ended is not waited for.

Files, because the sides share nothing else: each is started by its own revision, perhaps in network namespaces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

POLL_S = 0.004
SAY_S = 5.0
"""A rank that waits says so as often, so that it is not taken for one that hangs."""


class Turns:
    """One rank's view of its side's turns. `leads`: whether it is the one that speaks for all of its side."""

    def __init__(self, folder: Path, *, leads: bool, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._leads = leads
        self._say = say
        self._number = 0

    def take(self) -> None:
        """Return when it is this side's turn. Call it when every rank of the side is idle."""
        self._told("at")
        said_s = time.monotonic()
        while not self._file("go").exists():
            if time.monotonic() - said_s > SAY_S:
                self._say("waiting for its turn")
                said_s = time.monotonic()
            time.sleep(POLL_S)

    def give(self) -> None:
        """The turn is over. Call it when every rank of the side is idle again."""
        self._told("done")
        self._number += 1

    def _told(self, what: str) -> None:
        if self._leads:
            self._file(what).touch()

    def _file(self, what: str) -> Path:
        return self._folder / f"{what}-{self._number}"


def lead(folders: Sequence[Path], alive: Mapping[Path, Callable[[], bool]]) -> None:
    """Give turns until no side is alive: turn k to all, in the order of `folders` if k is even, else the other way."""
    for number in count():
        for folder in folders:
            _await(folder / f"at-{number}", alive[folder])
        if not any(alive[folder]() for folder in folders):
            return
        for folder in folders if number % 2 == 0 else reversed(folders):
            (folder / f"go-{number}").touch()
            _await(folder / f"done-{number}", alive[folder])


def _await(path: Path, alive: Callable[[], bool]) -> None:
    while not path.exists() and alive():
        time.sleep(POLL_S)
