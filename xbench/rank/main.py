"""One rank: `python -m xbench.rank.main PROGRAM --job J --directory DIR`, started by an agent.

It reads the program, builds the workload, and runs the phases: profile, parity check, timed blocks, timelines. It
writes each measurement to its journal at once. It computes no statistics: the parent does that from the journal.

Two jobs that share the devices are in this process, each with a session. Jobs at once need a second set of ranks, of
which each holds the second job. The first set then holds the second job too, for modes in turns (`sessions_of`). The
two sets meet at a barrier between blocks, and one sleeps while the other has the devices.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from xbench.interpreter import end_children, uncollected

with uncollected(program=__name__ == "__main__"):
    import torch
    import torch._dynamo  # all optimizers and DDP import it when they are made
    import torch.distributed as dist

from xbench import host_tuning
from xbench.modes import mode_info
from xbench.rank import pair, parity, rank_errors, reference
from xbench.rank.events import PhaseBegan, RankEnded
from xbench.rank.memory_phase import measure_memory
from xbench.rank.profile_phase import profile_job
from xbench.rank.program import JobPlan, Phase, Program, steps_in_block, whole_cycles
from xbench.rank.session import Session, late_compilations, settle
from xbench.rank.timeline_phase import record_timeline
from xbench.schedules import cycle_of
from xbench.spec import ModeSpec
from xbench.stats.blocks import twins
from xbench.torch_compile import cut_by_ddp


class Rank(Session):
    """One rank that runs the phases of its program."""

    def run_all(self) -> None:
        """Run all phases."""
        last_gate = max((n for n, phase in enumerate(self.program.phases) if phase.kind == "parity"), default=None)
        for number, phase in enumerate(self.program.phases):
            name = {
                "profile": "profile",
                "parity": f"gate {phase.mode}",
                "block": f"round {phase.round + 1} {phase.mode}",
                "timeline": f"timeline {phase.mode}",
            }
            self.under = None
            self.journal.write(PhaseBegan(name=name[phase.kind], number=number))
            self.note(name[phase.kind])
            if phase.kind == "profile":
                self.profile()
            elif phase.kind == "parity":
                self.gate(phase)
                if number == last_gate:
                    self.release_references()
            elif phase.kind == "block":
                self.block(phase, number)
            elif phase.kind == "timeline":
                self.timeline(phase, number)
        self.finish()

    def finish(self) -> None:
        """Leave together with the other ranks, after all phases."""
        self.barrier("end")
        self.gpu.stop()
        self.journal.write(RankEnded())

    def alone(self, job: int) -> Self | None:
        """Return this process's session of a job that has the devices to itself; None if another process runs it."""
        own = self.sessions if self.holds_all_jobs else [self]
        return next((session for session in own if session.job == job), None)

    def sessions_of(self, mode: ModeSpec) -> list[Self]:
        """Return the sessions of this process that run a mode, by job."""
        if self.holds_all_jobs:
            return self.sessions
        if pair.in_pair(mode):
            return self.sessions if self.job == 0 else []
        return [self]

    # --- profile ---------------------------------------------------------------------------------------------------

    def profile(self) -> None:
        """Measure this job alone, plan, and share the plans with the other jobs."""
        for job in range(self.program.jobs):
            self.barrier(f"profile {job}")
            session = self.alone(job)
            if session is None or (job > 0 and twins(self.run)):
                continue
            begin_s = time.monotonic()
            plan = profile_job(session)
            session.gpu.report(begin_s, time.monotonic(), mode=None)
            if self.rank == 0:
                self.board.put(f"plan{job}.json", plan.model_dump_json())
            dist.all_reduce(torch.zeros(1, device=self.device))
        self.barrier("profiles read")
        known = 1 if twins(self.run) else self.program.jobs
        read = [JobPlan.model_validate_json(self.board.get(f"plan{job}.json")) for job in range(known)]
        for session in self.sessions:
            session.adopt(read * self.program.jobs if twins(self.run) else read)
            session.snapshot.restore(session.workload)

    # --- parity check --------------------------------------------------------------------------------------------

    def gate(self, phase: Phase) -> None:
        """Run the parity check (`parity.gate`) of a mode, after making the reference.

        The reference comes first, because all modes on DDP's reducer fail if DDP refuses the model.
        """
        mode = self.program.mode(phase.mode)
        sessions = [session for session in self.sessions_of(mode) if session.takes_part(mode)]
        for session in sessions:
            if session.reference is None and not parity.is_partial(mode):
                session.reference = reference.make(session)
        if not self.refuses(mode) and sessions:
            if pair.in_pair(mode):
                rank_errors.attempt(self, mode, lambda: pair.gate(sessions, mode))
            else:
                for session in sessions:
                    rank_errors.attempt(session, mode, partial(parity.gate, session, mode))
            host_tuning.return_freed_memory()  # it held several states of the network
        rank_errors.settle(self, mode)

    def release_references(self) -> None:
        """Free the references' states after the last check: blocks of other launches do not hold them either."""
        for session in self.sessions:
            if session.reference is not None:
                session.reference.release()
        host_tuning.return_freed_memory()

    def refuses(self, mode: ModeSpec) -> bool:
        """True if a mode is left out (`rank_errors.refuses`)."""
        return rank_errors.refuses(self, mode, self.sessions_of(mode))

    # --- timed blocks ----------------------------------------------------------------------------------------------

    def block(self, phase: Phase, number: int) -> None:
        """Time one block of one mode."""
        mode = self.program.mode(phase.mode)
        if self.refuses(mode):
            return
        if mode_info(mode.name).together:
            self.barrier(f"block {number}")
            if not pair.in_pair(mode):
                rank_errors.attempt(self, mode, lambda: self.timed(phase, mode, number))
            elif sessions := self.sessions_of(mode):
                rank_errors.attempt(self, mode, lambda: pair.time_block(sessions, phase, mode, *self.steps_of(mode)))
        else:
            for job in range(self.program.jobs):
                self.barrier(f"block {number} job {job}")
                session = self.alone(job)
                if session is not None and session.takes_part(mode):
                    rank_errors.attempt(session, mode, partial(session.timed, phase, mode, number))
        rank_errors.settle(self, mode)

    def steps_of(self, mode: ModeSpec) -> tuple[int, int]:
        """Return the timed steps of a block, and those of its warm-up, in whole cycles: a block begins with a cycle."""
        carriers = {m.carrier for m in self.run.modes}
        steps = steps_in_block(self.run, max(p.step_s.get(c, p.compute_s) for p in self.plans for c in carriers))
        cycle = cycle_of(mode)
        return whole_cycles(steps, cycle), whole_cycles(self.run.effort.warmup_steps, cycle)

    def timed(self, phase: Phase, mode: ModeSpec, number: int) -> None:
        """Attach, warm up, time, detach, report."""
        plan = self.plans[self.job]
        steps, warmup = self.steps_of(mode)
        what = f"round {phase.round + 1} {mode.text}"
        stamps: list[Any] = []

        def mark() -> None:
            stamps.append(self.clock.mark())

        cut = cut_by_ddp(self.workload.model, self.on_ddp(mode))
        with cut, self.attach(mode) as handle:
            settle(self, mode, handle, what)
            origin = self.origin()
            dist.all_reduce(torch.zeros(1, device=self.device))
            mark()
            if mode_info(mode.name).sharing == "at once":
                slowest = max(p.step_s.get(mode.carrier, p.compute_s) for p in self.plans)
                own = plan.step_s.get(mode.carrier, plan.compute_s)
                steps = max(steps, round(steps * slowest / own)) if own > 0 else steps
            with late_compilations(self, mode, what):
                self.train(handle, warmup + steps, what, mark)
            self.device_idle()
        self.workload.optimizer.zero_grad(set_to_none=True)
        self.tell_loss(mode, what)
        self.tell_block(mode, (phase.round, phase.position), warmup, origin, stamps)

    def timeline(self, phase: Phase, number: int) -> None:
        """Record a few steps of a mode of one job, in the first job; for crossover, some turns of all jobs."""
        mode = self.program.mode(phase.mode)
        if self.refuses(mode):
            return
        self.barrier(f"timeline {number}")
        if pair.in_pair(mode):
            if sessions := self.sessions_of(mode):
                pair.record_turns(sessions, mode)
            return
        with cut_by_ddp(self.workload.model, self.on_ddp(mode)):
            if self.job == 0:
                if not mode_info(mode.carrier).compiled:  # its layers are inside graphs, and hooks would be too
                    record_timeline(self, mode)
                rank_errors.attempt(self, mode, partial(measure_memory, self, mode))


def main(argv: list[str], program_kind: type[Program] = Program, rank_kind: type[Rank] = Rank) -> NoReturn:
    """Run one rank of the given kind. Write any exception to the journal, then end the process with exit code 1."""
    path, *rest = argv
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    program = program_kind.model_validate_json(Path(path).read_text())
    rank = rank_kind(program, int(options["--job"]), Path(options["--directory"]))
    try:
        rank.start()
        rank.run_all()
    except BaseException as error:
        with suppress(OSError):
            rank.journal.write(rank_errors.failure_of(rank.run, rank.acting, error, rank.under))
        print(traceback.format_exc(), file=sys.stderr, flush=True)
        end_children()
        # sys.exit could block for ever: background threads of a backend whose peer is gone can keep the interpreter
        # alive.
        os._exit(1)
    end_children()
    with suppress(RuntimeError):
        dist.destroy_process_group()
    # As above: threads of the backend that still run would abort an interpreter that ends slowly.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
