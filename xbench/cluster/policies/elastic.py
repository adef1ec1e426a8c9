"""Elastic policies: the base of those that plan the GPUs of all jobs anew at every event, and the simpler ones.

A plan depends on the remaining work of every running job, which changes all the time. So active jobs are rows of
arrays, in the order of arrival, and a vector operation over hundreds of rows takes microseconds. Rows read an `Active`
again when its version has changed, so an engine that learns the progress of a real job only updates its version.
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


_NONE = np.iinfo(np.int64).max


class EqualShare(Elastic):
    """Max-min fairness: every job has the same number of GPUs, as far as its sizes and whole GPUs allow.

    A new plan uses the largest share s with which all jobs fit, where a job gets its largest allowed number up to s.
    Remaining GPUs raise jobs to their next number, in the order of arrival, round after round, as long as they suffice.
    """

    name = "equal-share"

    def __init__(self) -> None:
        super().__init__()
        self._restricted = False
        """True if some jobs allow only certain numbers of GPUs."""

    def columns(self, jobs: Sequence[Job]) -> Columns:
        """The `least` and the `most` GPUs, and the `sizes` of jobs that allow only certain numbers."""
        known = [len(job.speed.sizes) for job in jobs if job.speed.sizes is not None]
        self._restricted = bool(known)
        return {"least": (0, int), "most": (0, int), "sizes": (max(known, default=1), int)}

    def arrived(self, job: Active, now_s: float) -> None:
        """Add a job."""
        row = self._rows.append(job)
        sizes = job.job.sizes_on(self.cluster.gpus)
        self._rows["least"][row] = sizes[0]
        self._rows["most"][row] = job.job.most_on(self.cluster.gpus)
        if not isinstance(sizes, range):
            self._rows["sizes"][: len(sizes), row] = sizes

    def plan(self, now_s: float) -> Whole:
        """See `Elastic`."""
        left = self._rows.remaining(now_s)
        gpus = np.zeros(len(left), dtype=np.int64)
        served = self.served(self._rows["least"])
        gpus[:served] = self._shares(served)
        return self.without_small_gains(gpus, left)

    def _shares(self, served: int) -> Whole:
        """GPUs of the first `served` rows."""
        low, high = 0, self.cluster.gpus + 1
        while high - low > 1:
            share = (low + high) // 2
            low, high = (share, high) if self._up_to(share, served).sum() <= self.cluster.gpus else (low, share)
        gpus = self._up_to(low, served)
        spare = self.cluster.gpus - int(gpus.sum())
        while spare:
            more = self._next(gpus, served) - gpus
            growing = np.nonzero((more > 0) & (more <= spare))[0]
            if not len(growing):
                break
            for row, by in zip(growing.tolist(), more[growing].tolist(), strict=True):
                if by <= spare:
                    gpus[row] += by
                    spare -= by
        return gpus

    def _up_to(self, share: int, served: int) -> Whole:
        """The largest allowed number of each row up to a share, or its least."""
        least, most = self._rows["least"][:served], self._rows["most"][:served]
        any_size: Whole = np.clip(share, least, most)
        if not self._restricted:
            return any_size
        sizes = self._rows["sizes"][:, :served]
        known = np.where(sizes <= share, sizes, 0).max(axis=0)
        return np.where(sizes[0] > 0, np.maximum(least, known), any_size)

    def _next(self, gpus: Whole, served: int) -> Whole:
        """The next allowed number of each row, or the same if there is none."""
        one_more: Whole = np.minimum(gpus + 1, self._rows["most"][:served])
        if not self._restricted:
            return one_more
        sizes = self._rows["sizes"][:, :served]
        above = np.where(sizes > gpus, sizes, _NONE).min(axis=0)
        return np.where(sizes[0] > 0, np.where(above == _NONE, gpus, above), one_more)


TIE = 1.0 + 1e-9
"""Gains within this factor are equal. They differ by rounding, and moving a GPU to and fro would never end."""


class Optimus(Elastic):
    """Optimus (Peng et al., EuroSys 2018): greedy growth by marginal gain.

    Every job has its least number of GPUs. While GPUs remain and help, the job whose remaining time falls most per
    added GPU, (t(w) − t(w')) / (w' − w) for its next allowed number w', grows.

    The plan starts from the last one: GPUs move from where they help least to where they help most, until no move pays.
    If each further GPU helps less than the one before (t convex over sizes, all of them allowed), that is the greedy
    result from scratch. Otherwise no move improves it from the job that loses least to the one that gains most a GPU.
    """

    name = "optimus"

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[int, int] = {}
        """Index of each job's planned size, by number; -1: it waits."""
        self._free = 0

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        self._free = cluster.gpus

    def columns(self, jobs: Sequence[Job]) -> Columns:
        """`up`: time that the next step saves per unit of work and GPU; `down`: that of the last step taken."""
        return dict.fromkeys(("planned", "least", "up_by", "down_by"), (0, int)) | dict.fromkeys(
            ("up", "down"), (0, float)
        )

    def arrived(self, job: Active, now_s: float) -> None:
        """Add the job without a plan."""
        row = self._rows.append(job)
        self._rows["least"][row] = job.job.sizes_on(self.cluster.gpus)[0]
        self._steps[job.number] = -1

    def finished(self, job: Active, now_s: float) -> None:
        """Free the planned GPUs."""
        self._free += int(self._rows["planned"][self._rows.jobs.index(job)])
        del self._steps[job.number]
        super().finished(job, now_s)

    def plan(self, now_s: float) -> Whole:
        """See `Elastic`. Updates the last plan."""
        left = self._rows.remaining(now_s)
        self._serve(left)
        self._balance(left)
        return self.without_small_gains(self._rows["planned"].copy(), left)

    def _serve(self, left: Vector) -> None:
        """Give every job its least, in the order of arrival, from the jobs that it helps least."""
        planned, leasts = self._rows["planned"], self._rows["least"]
        reserve = int((planned - leasts)[planned > 0].sum())
        for row in np.nonzero(planned == 0)[0].tolist():
            least = int(leasts[row])
            if least > self._free + reserve:
                return
            while least > self._free:
                before = self._free
                self._step(self._cheapest(left), -1)
                reserve -= self._free - before
            self._step(row, 1)

    def _balance(self, left: Vector) -> None:
        """Give out free GPUs, then move those that help more elsewhere."""
        up, down, up_by, down_by = (self._rows[name] for name in ("up", "down", "up_by", "down_by"))
        while True:
            gains = left * up
            fitting = np.where(up_by > self._free, 0.0, gains)
            best = int(np.argmax(fitting))
            if fitting[best] > 0:
                self._step(best, 1)
                continue
            best = int(np.argmax(gains))
            worst = self._cheapest(left, but=best)
            if gains[best] <= 0 or worst < 0:
                return
            loss = float(left[worst] * down[worst]) * int(down_by[worst])
            fits = self._free + int(down_by[worst]) >= int(up_by[best])
            if not fits or float(gains[best]) * int(up_by[best]) <= loss * TIE:
                return
            self._step(worst, -1)
            self._step(best, 1)

    def _cheapest(self, left: Vector, but: int = -1) -> int:
        """The row whose last step helps least; -1 if none has taken one."""
        losses = np.where(self._rows["down_by"] > 0, left * self._rows["down"], np.inf)
        if but >= 0:
            losses[but] = np.inf
        row = int(np.argmin(losses))
        return row if np.isfinite(losses[row]) else -1

    def _step(self, row: int, by: int) -> None:
        """Plan one size more or less for a row."""
        rows = self._rows
        job = rows.jobs[row]
        sizes = job.job.sizes_on(self.cluster.gpus)
        at = self._steps[job.number] = self._steps[job.number] + by
        size, speed = int(sizes[at]), job.job.speed
        self._free -= size - int(rows["planned"][row])
        rows["planned"][row] = size
        rows["up_by"][row] = rows["down_by"][row] = 0
        rows["up"][row] = rows["down"][row] = 0.0
        if at + 1 < len(sizes):
            more = int(sizes[at + 1])
            rows["up_by"][row] = more - size
            rows["up"][row] = (1 / speed(size) - 1 / speed(more)) / (more - size)
        if at:
            less = int(sizes[at - 1])
            rows["down_by"][row] = size - less
            rows["down"][row] = (1 / speed(less) - 1 / speed(size)) / (size - less)


LOOK_S = 0.5
"""Longest time [s] between two looks at the job: the speed that is known of it may be a guess."""

ROUNDING = 1e-9
"""Share of a part that is only rounding."""


class Alternate(Policy):
    """One job that has its least and its most GPUs in turn, which measures what restarts cost. `times`: their number.

    The job's work is divided into `times` + 1 parts of equal length, and the number of GPUs changes after each. A
    change that comes late does not shorten the next part by more than half.
    """

    elastic = True

    def __init__(self, times: int = 6) -> None:
        self.times = times
        self._job: Active | None = None
        self._changes = 0
        self._due = 0.0
        """Work after which the number of GPUs changes."""

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """See `Policy`. Raises SpecError for several jobs, and for a job that can have only one number of GPUs."""
        super().begin(cluster, jobs)
        if len(jobs) != 1:
            raise SpecError(f"restarts are measured of one job, and there are {len(jobs)}", hint="leave one job")
        sizes = jobs[0].sizes_on(cluster.gpus)
        if sizes[0] == sizes[-1]:
            raise SpecError(
                f"job {jobs[0].name!r} can have {sizes[0]} of {cluster.gpus} GPUs and no other number",
                hint="give it least = 1 and most = 2, and the cluster two slots",
            )

    def arrived(self, job: Active, now_s: float) -> None:
        """See `Policy`."""
        self._job = job
        self._due = job.job.work / (self.times + 1)

    def finished(self, job: Active, now_s: float) -> None:
        """See `Policy`."""
        self._job = None

    def decide(self, now_s: float) -> Iterator[Change]:
        """Start the job, or change its number of GPUs if that is due."""
        job = self._job
        if job is None:
            return
        part = job.job.work / (self.times + 1)
        done = job.job.work - job.remaining(now_s)
        if job.gpus and self._changes < self.times and done >= self._due - ROUNDING * part:
            self._changes += 1
            self._due = max((self._changes + 1) * part, done + part / 2)
        sizes = job.job.sizes_on(self.cluster.gpus)
        wanted = sizes[-1 if self._changes % 2 else 0]
        if job.gpus != wanted:
            yield job, Grant(wanted)

    def look_again_s(self, now_s: float) -> float | None:
        """The end of the next part at the speed that is assumed of the job; soon in any case."""
        job = self._job
        if job is None or not job.gpus or self._changes == self.times:
            return None
        left = self._due - (job.job.work - job.remaining(now_s))
        ready_s = max(now_s, job.ready_s)
        return max(ready_s + min(left / job.speed, LOOK_S), now_s + 1e-6)
