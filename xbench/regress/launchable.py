"""A tree to give orders to, and an order under way, as a measurement sees them."""

from __future__ import annotations

from typing import Protocol

from xbench.records import SideName
from xbench.regress.protocol import JobRequest, JobResult


class PendingJob(Protocol):
    """An order under way: `sides.Underway`."""

    @property
    def alive(self) -> bool:
        """See there."""

    def answer(self, longest_s: float) -> JobResult:
        """See there."""

    def __enter__(self) -> PendingJob: ...

    def __exit__(self, *_: object) -> None: ...


class Launchable(Protocol):
    """A tree to give orders to: `sides.Tree`."""

    @property
    def name(self) -> SideName:
        """base or head."""

    @property
    def title(self) -> str:
        """For people."""

    def carry_out(self, order: JobRequest, longest_s: float) -> JobResult:
        """See `sides.Tree`."""

    def begin(self, order: JobRequest) -> PendingJob:
        """See `sides.Tree`."""
