"""single: one collective for all gradients, after the whole backward pass.

"No overlap", called SyncEASGD in the MG-WFBP paper: communication starts when the last gradient is ready, so a step
takes C + T(all bytes). It pays the latency once and hides nothing. One bucket a dtype.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from xbench.schedules.base import Buckets, Handle, Overlapped
from xbench.schedules.engine import Wait, trainable


class Single(Overlapped):
    """Everything of one dtype in one bucket, launched when backward has ended."""

    overlap = False

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
        """See `Schedule.attach`; without a plan, buckets are made in reverse order of registration."""
        if buckets is None:
            by_dtype: dict[object, list[str]] = {}
            for name, parameter in reversed(trainable(model).items()):
                by_dtype.setdefault(parameter.dtype, []).append(name)
            buckets = list(by_dtype.values())
        return super().attach(model, optimizer, buckets=buckets, group=group, wait=wait)
