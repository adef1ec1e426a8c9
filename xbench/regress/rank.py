"""One rank of a launch of `xbench regress`: blocks timed with given plans, or one count of a step's operations.

It is a `rank.main` rank without profile, parity checks and timelines, so that a launch is as short as its blocks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from xbench.emulation.group import EmulatedGroup
from xbench.modes import mode_info
from xbench.rank.events import ModeFailed, StepCounted
from xbench.rank.job_plans import complete
from xbench.rank.main import Rank, main, tell_block
from xbench.rank.parity_checker import gathered
from xbench.rank.program import JobPlan, Phase, Program, whole_cycles
from xbench.regress.alternation import Turns
from xbench.regress.counters import Counter
from xbench.schedules import cycle_of
from xbench.schedules.base import Handle
from xbench.schedules.engine import trainable
from xbench.spec import ModeSpec
from xbench.torch_compile import cut_by_ddp

WARMUP_STEPS = 3
"""Steps before the counted one. DDP rebuilds its buckets after the first, and our engine learns an order in it."""


class LaunchProgram(Program):
    """Argument of every rank. `counted` are modes to count. `slowed` explains `slow_step`, `timed` the rest."""

    counted: tuple[str, ...] = ()
    slow_step: float = 1.0
    turn_folder: str | None = None
    turns: int = 1


class LaunchRank(Rank):
    """State of one rank."""

    program: LaunchProgram

    def start(self) -> None:
        """Start as every rank does, then complete the plans with the parameters that they lack."""
        self.counter = Counter(torch.device(self.run.device)) if self.program.counted else None
        super().start()
        named = {name: p.numel() * p.element_size() for name, p in trainable(self.workload.model).items()}
        self.plans = [_covering(plan, named) for plan in self.plans]
        del self.snapshot  # only parity checks need it, and it is as large as the model
        folder = self.program.turn_folder
        self.shared: Turns | None = None
        if folder is not None:
            self.shared = Turns(Path(folder), leads=self.rank == 0, say=self.note)

    def go(self) -> None:
        """Count, then time."""
        if self.counter is not None:
            self.count(self.counter)
        super().go()

    def count(self, counter: Counter) -> None:
        """Count, over a cycle of steps, the bytes that each mode passes to collectives, and its memory."""
        cycles = {}
        if isinstance(self.group, EmulatedGroup):
            counter.overhear(self.group)
        for name in self.program.counted:
            mode = self.program.mode(name)
            library = mode_info(mode.carrier).library
            if library is not None:
                self.journal.write(ModeFailed(mode=name, message=f"{library}'s own collectives cannot be counted"))
            elif not self.refuses(mode):
                cycles[name] = self._count(counter, mode)
        found = counter.read()
        for name, cycle in cycles.items():
            seen = found[name]
            peaks = gathered(seen.peak_bytes)
            known = [peak for peak in peaks if peak is not None]
            if self.rank == 0:
                counted = StepCounted(
                    mode=name,
                    collectives=seen.collectives / cycle,
                    wire_bytes=seen.wire_bytes / cycle,
                    peak_bytes=max(known) if len(known) == len(peaks) else None,
                )
                self.journal.write(counted)

    def _count(self, counter: Counter, mode: ModeSpec) -> int:
        """Count one mode. Return the number of steps in its window."""
        what, cycle = f"counting {mode.text}", cycle_of(mode)
        self.barrier(what)
        with cut_by_ddp(self.workload.model, mode_info(mode.carrier).reducer == "ddp"), self.attach(mode) as handle:
            super().train(handle, whole_cycles(WARMUP_STEPS, cycle), what, _nothing)
            handle.finish()  # the window then holds the traffic of its own steps, and none of the step before
            self.device_idle()
            with counter.window(mode.text):
                super().train(handle, cycle, what, _nothing)
                handle.finish()
                self.device_idle()
        self.workload.optimizer.zero_grad(set_to_none=True)
        return cycle

    def block(self, phase: Phase, number: int) -> None:
        """Run one block, attaching its mode included, in turns with the other launch if there is one."""
        if self.shared is None:
            super().block(phase, number)
            return
        self.barrier(f"turns of block {number}")
        self.shared.take()
        super().block(phase, number)
        self.shared.give()

    def timed(self, phase: Phase, mode: ModeSpec, number: int) -> None:
        """Attach and warm up in one turn. Then use one turn for each timed part of the block."""
        if self.shared is None:
            super().timed(phase, mode, number)
            return
        cycle = cycle_of(mode)
        effort = self.run.effort
        assert effort.steps is not None  # a job always sets it
        steps, warmup = whole_cycles(effort.steps, cycle), whole_cycles(effort.warmup_steps, cycle)
        what = f"round {phase.round + 1} {mode.text}"
        with cut_by_ddp(self.workload.model, mode_info(mode.carrier).reducer == "ddp"), self.attach(mode) as handle:
            super().train(handle, warmup, what, _nothing)
            handle.finish()
            self.barrier(what)
            for turn in range(self.program.turns):
                self.shared.give()
                self.shared.take()
                stamps: list[Any] = []
                origin = self.origin()
                dist.all_reduce(torch.zeros(1, device=self.device))  # all ranks begin the turn together
                self._stamp(stamps)
                # A cycle that does not count, because the caches hold the other launch's data.
                self.train(handle, cycle + steps, what, partial(self._stamp, stamps))
                handle.finish()
                self.barrier(what)
                place = (phase.round * self.program.turns + turn, phase.position)
                tell_block(self, mode, place, cycle, origin, stamps)
        self.workload.optimizer.zero_grad(set_to_none=True)

    def _stamp(self, stamps: list[Any]) -> None:
        stamps.append(self.clock.mark())

    def train(self, handle: Handle, steps: int, what: str, mark: Callable[[], None]) -> None:
        """Run `steps` ordinary training steps, with `mark()` after each; slowed if requested."""
        if self.program.slow_step > 1.0:
            mark = self.slowed(mark)
        super().train(handle, steps, what, mark)

    def slowed(self, mark: Callable[[], None]) -> Callable[[], None]:
        """Return `mark` preceded by busy waiting, so that a step takes `slow_step` times as long.

        A testing aid. The core is really busy and unavailable to other work.
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
    """Return the plan with a bucket for each trainable parameter (name: bytes) without a gradient in the record."""
    known = {name for buckets in plan.buckets.values() for bucket in buckets or () for name in bucket}
    missing = {name: nbytes for name, nbytes in named.items() if name not in known}
    return complete(plan, missing) if known and missing else plan


if __name__ == "__main__":
    main(sys.argv[1:], LaunchProgram, LaunchRank)
