"""Active jobs of an elastic policy as rows of arrays, in the order of arrival, and the base of such policies.

An elastic plan depends on the remaining work of every running job, which changes all the time. So a plan has to look at
all jobs; a vector operation over hundreds of rows takes microseconds. Rows read an `Active` again when its version has
changed, so an engine that learns the progress of a real job only needs to update its version.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from operator import ne
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.cluster.jobs import Job, first_of
from xbench.cluster.policy import Active, Change, Cluster, Grant, Policy
from xbench.errors import SpecError

Vector = NDArray[np.float64]
Whole = NDArray[np.int64]
Columns = Mapping[str, tuple[int, type]]
"""Width (0: one value a row) and type of each array, by name."""

_OWN: dict[str, tuple[int, type]] = {"left": (0, float), "from_s": (0, float), "rate": (0, float), "held": (0, int)}


class Rows:
    """Arrays in which row i belongs to `jobs[i]`. `columns` are further arrays of the caller, which move along."""

    def __init__(self, columns: Columns) -> None:
        self.jobs: list[Active] = []
        self._capacity = 64
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.zeros((width, self._capacity) if width else self._capacity, dtype=kind)
            for name, (width, kind) in (_OWN | dict(columns)).items()
        }
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """An array of all rows, (rows) or (width, rows), as a view."""
        return self._arrays[name][..., : len(self.jobs)]

    def append(self, job: Active) -> int:
        """Add a row at the end, with zeros in the caller's columns; returns its index."""
        index = len(self.jobs)
        if index == self._capacity:
            self._capacity *= 2
            self._arrays = {
                name: np.concatenate([array, np.zeros_like(array)], axis=-1) for name, array in self._arrays.items()
            }
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
        left, from_s, rate, held = (self[name] for name in _OWN)
        for index in compress(range(len(versions)), map(ne, versions, self._versions)):
            job = self.jobs[index]
            left[index], from_s[index] = job.remaining(now_s), max(now_s, job.ready_s)
            rate[index], held[index] = job.speed, job.gpus
        self._versions = versions
        remaining: Vector = np.maximum(0.0, left - rate * np.maximum(0.0, now_s - from_s))
        return remaining


class Elastic(Policy):
    """Base of policies that make a new plan at every event. `begin` raises SpecError for jobs without speeds.

    If not even the first sizes of all jobs fit, the last arrivals wait.
    """

    elastic = True
    name: str

    def __init__(self) -> None:
        self._rows = Rows({})

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        require_speeds(self.name, cluster, jobs)
        self._rows = Rows(self.columns(jobs))

    def finished(self, job: Active, now_s: float) -> None:
        """Forget the job."""
        self._rows.remove(job)

    def decide(self, now_s: float) -> Iterator[Change]:
        """The grants that give each row its number of GPUs of a new plan."""
        if len(self._rows):
            gpus = self.plan(now_s)
            for index in np.nonzero(gpus != self._rows["held"])[0].tolist():
                yield self._rows.jobs[index], Grant(int(gpus[index]))

    @abstractmethod
    def columns(self, jobs: Sequence[Job]) -> Columns:
        """The policy's own columns for these jobs."""

    @abstractmethod
    def plan(self, now_s: float) -> Whole:
        """GPUs of each row."""

    def served(self, first: Whole) -> int:
        """Number of rows whose first sizes fit the cluster together, in the order of arrival."""
        return int(np.searchsorted(np.cumsum(first), self.cluster.gpus, side="right"))

    def without_small_gains(self, gpus: Whole, left: Vector) -> Whole:
        """A plan without the changes that gain less than a restart costs.

        A running job does not grow if its remaining time would fall by no more than the restart costs. The GPUs that
        this leaves let running jobs that were to shrink stay as they are, in the order of arrival, while they suffice.
        """
        restart_s = self.cluster.restart_s
        if not restart_s:
            return gpus
        held = self._rows["held"]
        kept = gpus.copy()
        spare = 0
        for index in np.nonzero((held > 0) & (gpus > held))[0].tolist():
            speed = self._rows.jobs[index].job.speed
            now, then = int(held[index]), int(gpus[index])
            if left[index] / speed(now) - left[index] / speed(then) <= restart_s:
                kept[index] = now
                spare += then - now
        for index in np.nonzero(gpus < held)[0].tolist() if spare else ():
            more = int(held[index] - gpus[index])
            if more <= spare:
                kept[index] = held[index]
                spare -= more
        return kept


def require_speeds(policy: str, cluster: Cluster, jobs: Sequence[Job]) -> None:
    """Refuse a trace in which a job has a known speed on no other GPUs than it requests, or on no allowed number.

    Raises SpecError with the first such job and their number. A job that allows no other number needs no further
    speeds.
    """
    gpus = cluster.gpus
    lacking = [job for job in jobs if job.rigid and (job.least, job.most_on(gpus)) != (job.gpus, job.gpus)]
    if lacking:
        raise SpecError(
            f"policy {policy!r} needs speeds on several numbers of GPUs, and the trace knows that of job "
            f"{first_of(lacking)} on the {lacking[0].gpus} that it asked for alone",
            hint="give the trace speeds, or take a rigid policy such as srtf",
        )
    impossible = [job for job in jobs if not job.sizes_on(gpus)]
    if impossible:
        job = impossible[0]
        raise SpecError(
            f"policy {policy!r}: job {job.name!r} takes {job.least} to {job.most_on(gpus)} GPUs, and its speed is "
            f"known on none of these ({len(impossible)} such jobs)"
        )
