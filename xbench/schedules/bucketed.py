"""Schedules that differ in their buckets alone: the engine fills and sends these, and the rest is the same.

**compute** sends nothing: it is the control, the bare training loop with each rank alone. The extra time of any other
schedule is exposed communication. Ranks drift apart because they see different batches. So it never is a training
schedule and has no parity check.

**single** sends one bucket per dtype after the whole backward pass. The MG-WFBP paper calls it SyncEASGD, without
overlap. A step takes C + T(all bytes): it pays the latency once and hides nothing.

**wfbp** is wait-free backpropagation (Zhang et al., Poseidon, ATC 2017; Awan et al., S-Caffe, PPoPP 2017). One
collective per tensor is launched as soon as its gradient is ready, in ready order on one link: start[j] = max(ready[j],
end[j-1]), end[j] = start[j] + T(bytes[j]). It hides the most when latency is zero. With hundreds of small tensors it
pays the latency hundreds of times. Without a plan, the ready order is learnt from the first step.

**mgwfbp** is merged-gradient wait-free backpropagation, the paper's greedy (Shi, Chu, Li; arXiv 1912.09268). Under T(M)
= a + bM, a layer is merged into the next one to become ready when the wait for it costs less than the latency of a
separate collective: see `xbench.planning.merge.mgwfbp`. It follows the paper, as a peer for comparisons. It is not
optimal under its own model.

**optimal** has the exact best contiguous buckets. Gradients are cut, in ready order, into consecutive buckets. Dynamic
programming under any measured T finds the cut whose last collective ends first: see `xbench.planning.merge.optimal`.
Assumption: communication does not slow computation. Where it does, the report's prediction error shows it.

**auto** has the best buckets of a search. Where collectives cost the computing processor time, the model of `optimal`
does not hold. `auto` searches in a simulator with measured contention (`xbench.planning.auto`). The buckets of every
other schedule and of DDP are among its candidates. Before a comparison, the best candidates and DDP itself run for a
few steps, and the fastest is taken. Assumption: the machine behaves as it did in the measurement.
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
