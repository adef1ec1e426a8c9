"""single: one collective for all gradients, after the whole backward pass.

The MG-WFBP paper calls it SyncEASGD, without overlap. Communication starts when the last gradient is ready, so a step
takes C + T(all bytes). It pays the latency once and hides nothing. One bucket per dtype.
"""

from __future__ import annotations

from dataclasses import replace

from xbench.schedules.base import AttachConfig, Handle, Overlapped
from xbench.schedules.engine import trainable


class Single(Overlapped):
    """Everything of one dtype in one bucket, launched when backward has ended."""

    overlap = False

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; without a plan, buckets are made in reverse order of registration."""
        if setup.buckets is None:
            by_dtype: dict[object, list[str]] = {}
            for name, parameter in reversed(trainable(setup.model).items()):
                by_dtype.setdefault(parameter.dtype, []).append(name)
            setup = replace(setup, buckets=list(by_dtype.values()))
        return super().attach(setup)
