"""A trace: the jobs that come to a cluster, in order, and every row of its source that is not among them.

A row that makes no job is never dropped silently. It is kept as a `BadRow`: file, row (the header is row 1, as in a
spreadsheet) and reason. Under `rows=refuse`, the default, the first of them refuses the whole trace and says how many
there are; under `rows=skip` all are left out, counted and listed in the trace. Rows that are well formed and not
wanted (another cluster's, a task without GPUs) are no bad rows: they are counted in `notes`.
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
    """Jobs by arrival. Raises SpecError for none, for two of one name, and for one that comes before the last.

    `skipped` are the rows that `rows=skip` left out; `notes` say in words what else was left out or assumed.
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
            twice = next(name for name, count in Counter(job.name for job in self.jobs).items() if count > 1)
            raise SpecError(f"{self.name}: there are two jobs {twice!r}", hint="give every job its own name")

    @property
    def gpu_hours(self) -> float:
        """What the jobs take on the GPUs that they ask for."""
        return math.fsum(job.service_s for job in self.jobs) / 3600.0

    @property
    def span_s(self) -> float:
        """From the first arrival to the last [s]."""
        return self.jobs[-1].arrival_s - self.jobs[0].arrival_s

    @property
    def elastic(self) -> bool:
        """Whether the speed of every job is known for other GPUs than those that it asks for."""
        return not any(job.rigid for job in self.jobs)

    def first(self, count: int) -> Trace:
        """The first jobs alone, with a note. Raises SpecError for less than one."""
        if count < 1:
            raise SpecError(f"the first {count} jobs of {self.name} are no trace")
        if count >= len(self.jobs):
            return self
        note = f"the first {count} of {len(self.jobs)} jobs"
        return replace(self, jobs=self.jobs[:count], notes=(*self.notes, note))


class Rows:
    """Collects the bad rows of one source and decides, at its end, what becomes of them."""

    def __init__(self, source: str, policy: RowsPolicy) -> None:
        self.source = source
        self.policy = policy
        self.bad: list[BadRow] = []

    def reject(self, file: str, row: int, reason: str) -> None:
        """That row makes no job."""
        self.bad.append(BadRow(file, row, reason))

    def trace(self, jobs: Iterable[Job], notes: Iterable[str] = ()) -> Trace:
        """The trace of these jobs, in order of arrival. Raises SpecError for bad rows, unless they are to be skipped.

        Two jobs of one name: the later row is a bad one, which the loader has to have rejected.
        """
        if self.bad and self.policy == "refuse":
            count = len(self.bad)
            more = f" ({count} such rows)" if count > 1 else ""
            raise SpecError(f"{self.bad[0]}{more}", hint="rows=skip leaves such rows out and lists them")
        ordered = sorted(jobs, key=lambda job: job.arrival_s)
        if not ordered:
            raise SpecError(f"{self.source} has no jobs", hint=f"{len(self.bad)} rows were skipped")
        return Trace(self.source, tuple(ordered), tuple(self.bad), tuple(notes))
