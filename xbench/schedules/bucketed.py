"""Schedules that differ in their buckets alone: the engine fills and sends these, and the rest is the same.

docs/schedules.md says what each sends and when, and `xbench.planning.merge` chooses the buckets. **compute** sends
nothing: it is the control, each rank alone, and has no parity check. **single** sends everything after backward
(SyncEASGD), **wfbp** each tensor (Zhang et al., Poseidon, ATC 2017; Awan et al., S-Caffe, PPoPP 2017). Without a plan,
its ready order is learnt from the first step. **mgwfbp** follows its paper's greedy (Shi, Chu, Li; arXiv 1912.09268).
**optimal** has the exact best contiguous buckets if communication does not slow computation; where it does, the
report's prediction error shows it. **auto** has the best buckets of a search with measured contention
(`xbench.planning.auto`). It assumes that the machine behaves as it did in the measurement.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from xbench.schedules.base import AttachConfig, Handle, Overlapped, Schedule
from xbench.schedules.bucket import grad_dtype
from xbench.schedules.engine import Watch
from xbench.schedules.served_parameters import trainable


class ComputeHandle(Handle):
    """Handle of the bare model."""

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`: nothing is sent, so nothing is missed."""
        return True

    def no_sync(self) -> AbstractContextManager[None]:
        """See `Handle.no_sync`: nothing is ever sent."""
        return nullcontext()


class Compute(Schedule):
    """No communication at all."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; all settings except the model are ignored."""
        return ComputeHandle(setup.model)


class Single(Overlapped):
    """Everything of one dtype in one bucket, launched when backward has ended."""

    overlap = False

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; without a plan, buckets are made in reverse order of registration."""
        if setup.buckets is None:
            by_dtype: dict[object, list[str]] = {}
            for name, parameter in reversed(trainable(setup.model).items()):
                by_dtype.setdefault(grad_dtype(parameter), []).append(name)
            setup = replace(setup, buckets=list(by_dtype.values()))
        return super().attach(setup)


class Wfbp(Overlapped):
    """One bucket per tensor."""


class MgWfbp(Overlapped):
    """Buckets from the paper's greedy merging."""

    needs_plan = True


class Optimal(Overlapped):
    """Buckets from the exact plan."""

    needs_plan = True


class Auto(Overlapped):
    """Buckets from the search."""

    needs_plan = True
