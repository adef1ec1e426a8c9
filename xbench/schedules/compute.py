"""compute: no communication at all, the control.

It is the bare training loop, each rank alone. The extra time of any other schedule is exposed communication. Ranks
drift apart because they see different batches. So this mode is never a training schedule and has no parity check.
"""

from __future__ import annotations

from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.engine import Watch


class ComputeHandle(Handle):
    """Handle of the bare model."""

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`: nothing is sent, so nothing is missed."""
        return True


class Compute(Schedule):
    """Attach nothing."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; all settings except the model are ignored."""
        return ComputeHandle(setup.model)
