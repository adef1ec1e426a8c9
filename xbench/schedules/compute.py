"""compute: no communication at all, the control.

The bare training loop, each rank on its own. What any schedule takes beyond it is exposed communication. Ranks drift
apart (they see different batches), so this mode is never a training schedule and has no parity gate.
"""

from __future__ import annotations

from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.engine import Watch


class ComputeHandle(Handle):
    """The bare model."""

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`: nothing travels, so nothing escapes."""
        return True


class Compute(Schedule):
    """Attach nothing."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; everything but the model is ignored."""
        return ComputeHandle(setup.model)
