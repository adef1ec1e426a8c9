"""One rank of a launch of `xbench regress`: timed blocks by plans that it is given, or one look at what a step does.

It is a `runtime.worker` rank without profile, gates and timelines: a launch is to be as short as its blocks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from xbench.compiled import cut_by_ddp
from xbench.planning.plans import DDP_REDUCER
from xbench.runtime.job_plans import complete
from xbench.runtime.measure import gathered
from xbench.runtime.program import JobPlan, Program, whole_cycles
from xbench.runtime.regress.counting import Counter
from xbench.runtime.worker import Rank, main
from xbench.schedules import cycle_of
from xbench.schedules.base import Handle
from xbench.schedules.engine import trainable
from xbench.spec import ModeSpec

WARMUP_STEPS = 3
"""Before the step that is counted: DDP rebuilds its buckets after the first, and our engine learns an order in it."""


class LaunchProgram(Program):
    """The argument of every rank. `counted`: modes to count; `slow_step`: see `slowed`."""

    counted: tuple[str, ...] = ()
    slow_step: float = 1.0


class LaunchRank(Rank):
    """The state of one rank."""

    program: LaunchProgram

    def start(self) -> None:
        """As every rank, then complete the plans with the parameters that they do not know."""
        super().start()
        named = {name: p.numel() * p.element_size() for name, p in trainable(self.workload.model).items()}
        self.plans = [_covering(plan, named) for plan in self.plans]

    def go(self) -> None:
        """Count, then time."""
        for name in self.program.counted:
            mode = self.program.mode(name)
            self.note(f"counting {name}")
            if not self.refuses(mode):
                self.count(mode)
        super().go()

    def count(self, mode: ModeSpec) -> None:
        """What one step of this mode hands to collectives, and what it holds: the mean over a cycle of steps."""
        self.barrier(f"count {mode.text}")
        cycle = cycle_of(mode)
        with cut_by_ddp(self.workload.model, mode.carrier in DDP_REDUCER), self.attach(mode) as handle:
            super().train(handle, whole_cycles(WARMUP_STEPS, cycle), f"counting {mode.text}", _nothing)
            self.device_idle()
            with Counter(self.device) as counter:
                super().train(handle, cycle, f"counting {mode.text}", _nothing)
                self.device_idle()
            held = counter.peak_bytes(self.workload)
        self.workload.optimizer.zero_grad(set_to_none=True)
        peaks = gathered(held)
        if self.rank == 0:
            self.journal.write(
                "counts",
                mode=mode.text,
                collectives=counter.collectives / cycle,
                wire_bytes=counter.wire_bytes / cycle,
                peak_bytes=None if None in peaks else max(peaks),
            )

    def train(self, handle: Handle, steps: int, what: str, mark: Callable[[], None]) -> None:
        """`steps` ordinary training steps, `mark()` after each; slowed where that was asked for."""
        if self.program.slow_step > 1.0:
            mark = self.slowed(mark)
        super().train(handle, steps, what, mark)

    def slowed(self, mark: Callable[[], None]) -> Callable[[], None]:
        """`mark`, after this rank has been busy for so long that its step takes `slow_step` times what it took.

        A testing aid: the core computes nothing of use, and really is not there for anything else meanwhile.
        """
        began_s = time.perf_counter()

        def later() -> None:
            nonlocal began_s
            self.device_idle()
            until_s = began_s + self.program.slow_step * (time.perf_counter() - began_s)
            while time.perf_counter() < until_s:
                pass
            mark()
            began_s = time.perf_counter()

        return later


def _nothing() -> None:
    pass


def _covering(plan: JobPlan, named: dict[str, int]) -> JobPlan:
    """The plan, with a bucket for each trainable parameter (name: bytes) that the record saw no gradient of."""
    known = {name for buckets in plan.buckets.values() for bucket in buckets or () for name in bucket}
    missing = {name: nbytes for name, nbytes in named.items() if name not in known}
    return complete(plan, missing) if known and missing else plan


if __name__ == "__main__":
    main(sys.argv[1:], LaunchProgram, LaunchRank)
