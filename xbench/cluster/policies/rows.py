"""Active jobs of an elastic policy as rows of arrays, in the order of arrival.

An elastic plan depends on the remaining work of every running job, which changes all the time. So a plan has to look at
all jobs; a vector operation over hundreds of rows takes microseconds. Rows read an `Active` again when its version has
changed, so an engine that learns the progress of a real job only needs to update its version.
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
    """Arrays in which row i belongs to `jobs[i]`.

    `columns` are further arrays of the caller that move with the rows.
    """

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
        """An array of all rows, (rows) or (width, rows), as a view."""
        return self._arrays[name][..., : len(self.jobs)]

    @property
    def held(self) -> Whole:
        """GPUs that each job holds."""
        return self._arrays["held"][: len(self.jobs)]

    def append(self, job: Active) -> int:
        """Add a row at the end, with zeros in the caller's columns; returns its index."""
        index = len(self.jobs)
        if index == self._capacity:
            self._capacity *= 2
            for name, (width, kind) in self._widths.items():
                grown = self._empty(width, kind)
                grown[..., :index] = self._arrays[name]
                self._arrays[name] = grown
        self.jobs.append(job)
        self._versions.append(-1)
        for array in self._arrays.values():
            array[..., index] = 0
        return index

    def remove(self, job: Active) -> None:
        """Remove a job's row and close the gap."""
        index, last = self.jobs.index(job), len(self.jobs)
        del self.jobs[index], self._versions[index]
        for array in self._arrays.values():
            array[..., index : last - 1] = array[..., index + 1 : last].copy()

    def remaining(self, now_s: float) -> Vector:
        """Remaining work of each job."""
        versions = [job.version for job in self.jobs]
        left, from_s, rate, held = (self._arrays[name] for name in ("left", "from_s", "rate", "held"))
        for index in compress(range(len(versions)), map(ne, versions, self._versions)):
            job = self.jobs[index]
            left[index], from_s[index] = job.remaining(now_s), max(now_s, job.ready_s)
            rate[index], held[index] = job.speed, job.gpus
        self._versions = versions
        rows = len(self.jobs)
        computed_s = np.maximum(0.0, now_s - from_s[:rows])
        remaining: Vector = np.maximum(0.0, left[:rows] - rate[:rows] * computed_s)
        return remaining

    def changes(self, gpus: Whole) -> Iterator[Change]:
        """The grants that give each row that number of GPUs."""
        for index in np.nonzero(gpus != self.held)[0].tolist():
            yield self.jobs[index], Grant(int(gpus[index]))

    def _empty(self, width: int, kind: type) -> NDArray[Any]:
        return np.zeros((width, self._capacity) if width else self._capacity, dtype=kind)


def not_for_less(rows: Rows, gpus: Whole, left: Vector, restart_s: float) -> Whole:
    """A plan without the changes that gain less than a restart costs.

    A running job does not grow if its remaining time would fall by no more than the restart costs. The GPUs that this
    leaves let running jobs that were to shrink stay as they are, in the order of arrival, as long as they suffice.
    """
    held = rows.held
    kept = gpus.copy()
    spare = 0
    for index in np.nonzero((held > 0) & (gpus > held))[0].tolist():
        speed = rows.jobs[index].job.speed
        now, then = int(held[index]), int(gpus[index])
        if left[index] / speed(now) - left[index] / speed(then) <= restart_s:
            kept[index] = now
            spare += then - now
    if spare:
        for index in np.nonzero(gpus < held)[0].tolist():
            more = int(held[index] - gpus[index])
            if more <= spare:
                kept[index] = held[index]
                spare -= more
    return kept
