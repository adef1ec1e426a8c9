"""Schedules that defer updates into the next forward pass, and the handle of one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.engine import Watch
from xbench.schedules.next_forward import NextForward


class NextForwardHandle(Handle):
    """An attached schedule with next-forward overlap."""

    engine: NextForward

    def finish(self) -> None:
        """See `Handle.finish`."""
        self.engine.finish()

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`."""
        if self.engine.communicate:
            self.engine.departures.watch = watch
        return True

    def watch_waits(self, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        """See `Handle.watch_waits`."""
        if self.engine.communicate:
            self.engine.departures.waiting = waiting


class DeferredUpdate(Schedule):
    """A schedule that defers updates into the next forward pass."""

    engine: type[NextForward]

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; `wait` is ignored."""
        return NextForwardHandle(setup.model, self.engine(setup))
