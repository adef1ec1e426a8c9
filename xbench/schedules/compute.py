"""compute: no communication at all, the control.

The bare training loop, each rank on its own. What any schedule takes beyond it is exposed communication. Ranks drift
apart (they see different batches), so this mode is never a training schedule and has no parity gate.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from xbench.schedules.base import Buckets, Handle, Schedule
from xbench.schedules.engine import Wait


class Compute(Schedule):
    """Attach nothing."""

    def attach(
        self,
        model: Module,
        optimizer: Optimizer | None,
        *,
        buckets: Buckets | None,
        group: dist.ProcessGroup | None,
        wait: Wait = "backward",
        unused_parameters: bool = False,
    ) -> Handle:
        """See `Schedule.attach`; every argument but the model is ignored."""
        return Handle(model)
