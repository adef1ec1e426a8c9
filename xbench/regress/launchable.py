"""Interface of a tree that takes jobs, and of a job in progress, as `session` uses them."""

from __future__ import annotations

from typing import Protocol

from xbench.records import SideName
from xbench.regress.protocol import JobRequest, JobResult


class PendingJob(Protocol):
    """A job in progress, such as `revision_runner.RunningJob`."""

    @property
    def alive(self) -> bool:
        """True if the job still runs."""

    def answer(self, longest_s: float) -> JobResult:
        """Wait for the result, for at most `longest_s` [s]."""

    def __enter__(self) -> PendingJob: ...

    def __exit__(self, *_: object) -> None: ...


class Launchable(Protocol):
    """A tree that takes jobs, such as `revision_runner.Checkout`."""

    @property
    def name(self) -> SideName:
        """Side of the tree: base or head."""

    @property
    def title(self) -> str:
        """Name of the tree in messages."""

    def carry_out(self, order: JobRequest, longest_s: float) -> JobResult:
        """Carry out a job and return its result."""

    def begin(self, order: JobRequest) -> PendingJob:
        """Start a job and return it."""
