"""A trace: the jobs that come to a cluster, in order, and every row of its source that made no job.

A row that makes no job is never dropped silently. It is kept as a `BadRow`: file, row (the header is row 1, as in a
spreadsheet) and reason. Under `rows=refuse`, the default, the first bad row refuses the whole trace and gives their
number. Under `rows=skip` all are left out, counted and listed in the trace. Well-formed rows that are not wanted
(another cluster's, a task without GPUs) are not bad rows: `notes` count them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from xbench.cluster.jobs import Job
from xbench.errors import SpecError

RowsPolicy = Literal["refuse", "skip"]


class BadRow(NamedTuple):
    """A row that makes no job."""

    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: row {self.row}: {self.reason}"


@dataclass(frozen=True)
class Trace:
    """Jobs by arrival. Raises SpecError for no jobs, duplicate names, and jobs out of order.

    `skipped` are the rows that `rows=skip` left out; `notes` describe other omissions and assumptions.
    """

    name: str
    jobs: tuple[Job, ...]
    skipped: tuple[BadRow, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.jobs:
            raise SpecError(f"{self.name} has no jobs")
        before = self.jobs[0]
        for job in self.jobs:
            if job.arrival_s < before.arrival_s:
                raise SpecError(
                    f"{self.name}: job {job.name!r} arrives at {job.arrival_s:g} s, after {before.name!r} in the list "
                    f"and before it in time ({before.arrival_s:g} s)",
                    hint="sort the jobs by arrival",
                )
            before = job
        if len({job.name for job in self.jobs}) < len(self.jobs):
            duplicate = next(name for name, count in Counter(job.name for job in self.jobs).items() if count > 1)
            raise SpecError(f"{self.name}: there are two jobs {duplicate!r}", hint="give every job its own name")

    @property
    def gpu_hours(self) -> float:
        """GPU hours of the jobs on the requested GPUs."""
        return math.fsum(job.service_s for job in self.jobs) / 3600.0

    @property
    def span_s(self) -> float:
        """Time [s] from the first arrival to the last."""
        return self.jobs[-1].arrival_s - self.jobs[0].arrival_s

    @property
    def elastic(self) -> bool:
        """True if every job has a known speed on other GPUs than it requests."""
        return not any(job.rigid for job in self.jobs)

    def first(self, count: int) -> Trace:
        """The first `count` jobs alone, with a note. Raises SpecError for less than one."""
        if count < 1:
            raise SpecError(f"the first {count} jobs of {self.name} do not make a trace")
        if count >= len(self.jobs):
            return self
        note = f"the first {count} of {len(self.jobs)} jobs"
        return replace(self, jobs=self.jobs[:count], notes=(*self.notes, note))


class Rows:
    """Collects the bad rows of one source, and refuses or skips them at its end."""

    def __init__(self, source: str, policy: RowsPolicy) -> None:
        self.source = source
        self.policy = policy
        self.bad: list[BadRow] = []

    def reject(self, file: str, row: int, reason: str) -> None:
        """Record that a row makes no job."""
        self.bad.append(BadRow(file, row, reason))

    def trace(self, jobs: Iterable[Job], notes: Iterable[str] = ()) -> Trace:
        """The trace of these jobs, by arrival. Raises SpecError for bad rows, unless they are to be skipped.

        The loader must have rejected the later row of two jobs with the same name.
        """
        if self.bad and self.policy == "refuse":
            count = len(self.bad)
            more = f" ({count} such rows)" if count > 1 else ""
            raise SpecError(f"{self.bad[0]}{more}", hint="rows=skip leaves such rows out and lists them")
        ordered = sorted(jobs, key=lambda job: job.arrival_s)
        if not ordered:
            raise SpecError(f"{self.source} has no jobs", hint=f"{len(self.bad)} rows were skipped")
        return Trace(self.source, tuple(ordered), tuple(self.bad), tuple(notes))
