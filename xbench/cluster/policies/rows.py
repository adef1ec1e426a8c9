"""The active jobs of an elastic policy as rows of arrays, in the order of arrival: a plan is a few vector operations.

An elastic plan depends on the remaining work of every running job, which changes all the time, so a plan has to look
at all of them; a vector operation over hundreds of rows takes microseconds. Rows read an `Active` again when its
version has changed, so an engine that learns how far a real job has come needs only to touch it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from operator import ne
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.cluster.policy import Active, Change, Grant

Vector = NDArray[np.float64]
Whole = NDArray[np.int64]


class Rows:
    """Row i of every array is `jobs[i]`. `columns` more arrays of the caller's own move with the rows."""

    def __init__(self, columns: dict[str, tuple[int, type]] | None = None) -> None:
        self.jobs: list[Active] = []
        self._capacity = 64
        self._widths: dict[str, tuple[int, type]] = {
            "left": (0, float),
            "from_s": (0, float),
            "rate": (0, float),
            "held": (0, np.int64),
        }
        self._widths |= columns or {}
        self._arrays = {name: self._empty(width, kind) for name, (width, kind) in self._widths.items()}
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """An array of all rows: (rows) or (width, rows). A view."""
        return self._arrays[name][..., : len(self.jobs)]

    @property
    def held(self) -> Whole:
        """GPUs that each holds."""
        return self._arrays["held"][: len(self.jobs)]

    def append(self, job: Active) -> int:
        """A row at the end, its own columns empty; returns its place."""
        place = len(self.jobs)
        if place == self._capacity:
            self._capacity *= 2
            for name, (width, kind) in self._widths.items():
                grown = self._empty(width, kind)
                grown[..., :place] = self._arrays[name]
                self._arrays[name] = grown
        self.jobs.append(job)
        self._versions.append(-1)
        for array in self._arrays.values():
            array[..., place] = 0
        return place

    def remove(self, job: Active) -> None:
        """Its row closes up."""
        place, last = self.jobs.index(job), len(self.jobs)
        del self.jobs[place], self._versions[place]
        for array in self._arrays.values():
            array[..., place : last - 1] = array[..., place + 1 : last].copy()

    def remaining(self, now_s: float) -> Vector:
        """Work that is left of each."""
        versions = [job.version for job in self.jobs]
        left, from_s, rate, held = (self._arrays[name] for name in ("left", "from_s", "rate", "held"))
        for place in compress(range(len(versions)), map(ne, versions, self._versions)):
            job = self.jobs[place]
            left[place], from_s[place] = job.remaining(now_s), max(now_s, job.ready_s)
            rate[place], held[place] = job.speed, job.gpus
        self._versions = versions
        rows = len(self.jobs)
        computed_s = np.maximum(0.0, now_s - from_s[:rows])
        remaining: Vector = np.maximum(0.0, left[:rows] - rate[:rows] * computed_s)
        return remaining

    def changes(self, gpus: Whole) -> Iterator[Change]:
        """The grants that make each row hold so many."""
        for place in np.nonzero(gpus != self.held)[0].tolist():
            yield self.jobs[place], Grant(int(gpus[place]))

    def _empty(self, width: int, kind: type) -> NDArray[Any]:
        return np.zeros((width, self._capacity) if width else self._capacity, dtype=kind)


def not_for_less(rows: Rows, gpus: Whole, left: Vector, restart_s: float) -> Whole:
    """A plan without the moves that are worth less than a restart.

    A running job that is to grow stays as it is if its remaining time would fall by no more than the restart costs.
    What that leaves goes to running jobs that were to shrink: in the order of arrival they stay as they are, as long as
    there is enough.
    """
    held = rows.held
    kept = gpus.copy()
    spare = 0
    for place in np.nonzero((held > 0) & (gpus > held))[0].tolist():
        speed = rows.jobs[place].job.speed
        now, then = int(held[place]), int(gpus[place])
        if left[place] / speed(now) - left[place] / speed(then) <= restart_s:
            kept[place] = now
            spare += then - now
    if spare:
        for place in np.nonzero(gpus < held)[0].tolist():
            more = int(held[place] - gpus[place])
            if more <= spare:
                kept[place] = held[place]
                spare -= more
    return kept
