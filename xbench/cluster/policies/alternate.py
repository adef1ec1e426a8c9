"""One job that has its least and its most GPUs in turn, which measures what restarts cost (`cluster run --restarts N`).

The job's work is divided into `times` + 1 parts of equal length, and the number of GPUs changes after each. A change
that comes late does not shorten the next part by more than half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xbench.cluster.jobs import Job
from xbench.cluster.policy import Active, Change, Cluster, Grant, Policy
from xbench.errors import SpecError

LOOK_S = 0.5
"""Longest time [s] between two looks at the job: the speed that is known of it may be a guess."""

ROUNDING = 1e-9
"""Share of a part that is only rounding."""


class Alternate(Policy):
    """The policy. `times`: number of changes."""

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
        """When the next part ends, if the job's speed is what it is thought to be; soon in any case."""
        job = self._job
        if job is None or not job.gpus or self._changes == self.times:
            return None
        left = self._due - (job.job.work - job.remaining(now_s))
        ready_s = max(now_s, job.ready_s)
        return max(ready_s + min(left / job.speed, LOOK_S), now_s + 1e-6)
