"""Session of one rank: its process group, device, clock, workload, journal, plans and training steps.

Phases are functions of a session. `rank.main` runs them in order.

A process that holds two jobs has a session for each (`sessions`). The first leads: it owns the device and the journal.
The second has its own workload and, for turns, its own process group: the gradients of both travel at the same time.
"""

from __future__ import annotations

import gc
import json
import math
import os
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from xbench import horovod, host_tuning
from xbench.emulation import emulate
from xbench.errors import UsageError, WorkloadError
from xbench.modes import MODES, mode_info
from xbench.planning.turns import best_pattern
from xbench.profilers.clock import clock_for
from xbench.profilers.layers import bare_step
from xbench.rank.events import BlockTimed, LinkCalibrated, ProfilePartBegan, RankStarted, Remarked, Warned
from xbench.rank.gpu import GpuWatch, device_of
from xbench.rank.journal import Journal, Take
from xbench.rank.parity_checker import Reference, compressed, gathered
from xbench.rank.program import JobPlan, Program, job_times
from xbench.rank.snapshot import RandomState, Snapshot
from xbench.rank.store import FileStore, KeyValueStore, TorchStore, marker, meet, put_everywhere, rank_store
from xbench.schedules.base import AttachConfig, Handle, Schedule, raised_alike
from xbench.schedules.served_parameters import without_ignored
from xbench.spec import ModeSpec
from xbench.stats.blocks import twins
from xbench.torch_compile import COMPILING, COMPILING_S, compilations
from xbench.workloads.build import build, check_alike
from xbench.workloads.training_step import FIRST_SCALE
from xbench.workloads.workload import Workload

EARLIER = 0.5
"""Factor of the losses of all micro-steps but the last, in the parity check alone. Every micro-step has the same batch.
Without the factor, a schedule that sends the last gradient in place of the sum would pass."""


MAX_STEPS = 10
"""Steps after which a mode that still compiles is timed all the same, with a warning."""

ONE_ORDER = ("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
"""Variable of NCCL 2.26 and newer, and its value. Collectives of two communicators then run in the order in which the
host launched them. That order is the same on all ranks, so two communicators never wait for each other."""


class Session:
    """State of one rank while it runs the program, and its training loop."""

    weights: Iterator[float] | None = None
    """Factors of the losses of the next steps in the parity check (`reference.WEIGHTS`)."""
    loss: torch.Tensor | None = None
    """Loss of the last step, before weighting."""
    random: RandomState
    """State of the generators of this job, of two in turns."""
    norm: torch.Tensor | None = None
    """Norm of the last step's gradients before they were clipped."""

    def __init__(
        self,
        program: Program,
        job: int,
        directory: Path,
        listener: Take | None = None,
        store: Any = None,
    ) -> None:
        self.program = program
        self.run = program.run
        self.job = job
        self.first_session: Session = self
        """Session of the first job of this process."""
        self.sessions: list[Any] = [self]
        """Sessions of this process, by job, of the class of this one: the second job's too if the process holds it."""
        self.acting = job
        """Job of this process that attached a mode, or computed, last."""
        self.turn_group: dist.ProcessGroup | None = None
        """Group of this job's turns, if another session of this process has turns too; None: that of other modes."""
        self.store = store
        """Store of the rendezvous of ranks that another launcher started; None under our own launcher."""
        self.board: KeyValueStore = FileStore(directory) if store is None else TorchStore(store)
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.host = int(os.environ.get("GROUP_RANK", "0"))
        self.journal = Journal(directory, job, self.rank, listener=listener)
        self.journal.write(RankStarted(rank=self.rank, job=job, host=self.host, pid=os.getpid()))
        self.plans: list[JobPlan] = list(program.plans)
        self.refused: dict[str, bool] = {}
        self.under: str | None = None
        """Mode that is, or was last, attached in this phase."""
        self.reference: Reference | None = None
        self.told_lost: set[str] = set()
        self.lost: tuple[int, float] | None = None
        """First step of the reference whose loss is infinite or NaN, and that loss."""
        self.said = False
        self.met = 0
        """Number of barriers so far."""

    def start(self) -> None:
        """Take our cores, join the process group, build the workload, meet the other jobs."""
        cores = json.loads(os.environ.get("XBENCH_CORES", "[]"))
        if self.run.device == "cpu" and self.local_rank < len(cores) and cores[self.local_rank]:
            os.sched_setaffinity(0, cores[self.local_rank])
            torch.set_num_threads(len(cores[self.local_rank]))
        self.device = device_of(self.run, self.local_rank, self.journal)
        if self.run.tunes_ranks and not host_tuning.keep_freed_memory() and self.rank == 0:
            name = host_tuning.allocator_variable()
            if name is not None:
                self.journal.write(Remarked(message=f"freed memory is returned as {name} in the environment says"))
        self.clock = clock_for(self.device)
        self.gpu = GpuWatch(self.device, self.journal)
        self._join()
        self._build()
        if self.job == 0 and self._jobs_here > 1:
            self.sessions = [self, *(self._of_job(job) for job in range(1, self._jobs_here))]
        gc.collect()
        gc.freeze()

    @property
    def holds_all_jobs(self) -> bool:
        """True if this process holds every job, for all its modes."""
        return self.run.processes == 1

    @property
    def _jobs_here(self) -> int:
        """Number of jobs that the first process on each device holds."""
        return self.program.jobs if self.holds_all_jobs or self._pairs else 1

    @property
    def _pairs(self) -> bool:
        """True if a mode has turns of two jobs in one process, so that the gradients of both travel at once."""
        return any(mode_info(mode.name).sharing == "in turns" for mode in self.run.modes)

    @property
    def _timeout(self) -> timedelta:
        """Limit of collectives. It exceeds the parent's, so that the parent can name the silent rank before that."""
        compiles = any(mode_info(mode.carrier).compiled for mode in self.run.modes)
        longest_s = max(self.run.timeout_s, COMPILING_S) if compiles else self.run.timeout_s
        return timedelta(seconds=2 * longest_s + 10)

    def _join(self) -> None:
        """Join the process group, and make the group of the schedules."""
        self.note("joining the process group")
        limit, backend = self._timeout, self.run.backend
        if backend == "nccl" and (self._pairs or any(mode_info(mode.carrier).own_groups for mode in self.run.modes)):
            self._remark(keep_order_of_launches(os.environ))
        if self.store is None:
            at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store: Any = rank_store(*at, limit, serves=self.rank == 0)
        else:
            store = dist.PrefixStore(f"job{self.job}", self.store)  # type: ignore[attr-defined]
        world_size = int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, timeout=limit, store=store, rank=self.rank, world_size=world_size)
        self.group = dist.group.WORLD
        if self.program.emulated is not None:
            self.note("calibrating the emulated link")
            self.group, points, remarks = emulate(self.program.emulated, self.device)
            self.journal.write(LinkCalibrated(points=points))
            for sentence in remarks:
                self.journal.write(Remarked(message=sentence))
        elif self.run.backend == "gloo":
            self._warm(self.group)
        if any(mode_info(mode.carrier).library == "Horovod" for mode in self.run.modes) and not horovod.obstacle():
            self._meet_horovod()

    def _remark(self, message: str | None) -> None:
        """Write a remark of all ranks for the record, once."""
        if message is not None and self.rank == 0 and self.job == 0:
            self.journal.write(Remarked(message=message))

    def _warm(self, group: dist.ProcessGroup | None) -> None:
        """Run a first collective, with which a group's communicator, or Gloo's threads, begin. Raise those threads."""
        dist.all_reduce(torch.zeros(1, device=self.device), group=group)
        if self.run.tunes_ranks:
            host_tuning.raise_gloo_threads()

    def _meet_horovod(self) -> None:
        """Raise the thread that runs Horovod's collectives above its Gloo's event loop, whenever Horovod starts."""
        from xbench.horovod.world import WORLD

        self._remark(f"Horovod {horovod.version()}, built against torch {horovod.built_against()}")
        if self.run.tunes_ranks:
            WORLD.at_start = raise_if_allowed

    def _build(self) -> None:
        """Build the workload of this job, and save its state."""
        self.note("building the workload")
        self.workload: Workload = build(self.run.workloads[self.job], self.device, rank=self.rank)
        check_alike(self.workload)
        ahead, bursts = zip(*gathered((self.workload.loads_ahead, self.workload.burst)), strict=True)
        self.workload.loads_ahead, self.workload.burst = all(ahead), max(bursts)
        self.snapshot = Snapshot(self.workload)
        if self.program.plans:
            self.adopt(list(self.program.plans))

    def adopt(self, plans: list[JobPlan]) -> None:
        """Follow these plans of all jobs."""
        self.plans = plans
        self.workload.first_scale = plans[self.job].scale or FIRST_SCALE
        self.workload.reset_scaler()

    def _of_job(self, job: int) -> Self:
        """Return the session of another job of this process. Collective over the ranks."""
        other = copy(self)
        other.job, other.said = job, True
        other.journal = self.journal.of_job(job)
        other.gpu = self.gpu.of_job(other.journal)
        other.clock = clock_for(self.device)
        other.refused, other.told_lost = {}, set()
        if self._pairs and self.program.emulated is None:
            made: Any = dist.new_group(timeout=self._timeout, backend=self.run.backend)
            other.turn_group = made
            self._warm(other.turn_group)
        other._build()
        return other

    def note(self, state: str) -> None:
        """Note this rank's current work, for the parent."""
        self.journal.note(state)

    def part(self, name: str) -> None:
        """Begin a part of the profile. The parent shows its name."""
        self.journal.write(ProfilePartBegan(name=name))

    def barrier(self, name: str) -> None:
        """Wait for the other set of ranks, if there is one, then for our own other ranks."""
        if self.run.processes > 1:
            self.note(f"waiting for the other job at {name!r}")
            self.met += 1
            meet(self.board, f"met{self.met}-rank{self.rank}", self.job, self.run.processes)
        # A small all-reduce instead of dist.barrier(): it is the same on every backend, and it warms the links.
        dist.all_reduce(torch.zeros(1, device=self.device))
        self.device_idle()

    def device_idle(self) -> None:
        """Wait until the device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def forward_backward(self, handle: Handle) -> None:
        """Zero the gradients, run forward and backward of every micro-step."""
        self.first_session.acting = self.job
        step = self.workload.under(handle.model, handle.no_sync, handle.synchronize)
        weight = next(self.weights) if self.weights is not None else None
        step.clear()
        step.accumulate(weight * EARLIER if weight is not None else 1.0)
        step.load()
        loss = step.forward_loss()
        self.loss = loss.detach()
        step.backward(loss, weight if weight is not None else 1.0)

    def update(self, handle: Handle) -> None:
        """Update the parameters."""
        self.first_session.acting = self.job
        self.norm = self.workload.under(handle.model, handle.no_sync, handle.synchronize).update()

    def train(self, handle: Handle, steps: int, what: str, mark: Callable[[], None]) -> None:
        """Run `steps` ordinary training steps, with `mark()` after each."""
        for step in range(steps):
            self.note(f"{what} step {step + 1}: computing")
            self.forward_backward(handle)
            self.update(handle)
            mark()

    def bare_step(self) -> None:
        """Run one training step under the attached schedule."""
        bare_step(self.workload)

    def attach(self, mode: ModeSpec, *, exact: bool = False, group: dist.ProcessGroup | None = None) -> Handle:
        """Attach a mode's carrier to our model. `optimizer.step()` waits for gradients, if the schedule allows it.

        `exact`: gradients are not compressed, even if the run compresses them. `group` replaces the process group of
        the mode. Raises UsageError if the schedule refuses the model.
        """
        self.first_session.under, self.first_session.acting = mode.text, self.job
        self.workload.reset_scaler()
        plan = self.plans[self.job]
        schedule: type[Schedule] = MODES.load(plan.carrier_of(mode))  # type: ignore[assignment]
        if schedule.needs_plan and mode.carrier not in plan.buckets:
            raise UsageError(f"{mode.carrier} is planned from a measured link, and a world of one has none")
        buckets = plan.buckets.get(mode.carrier)
        setup = AttachConfig(
            self.workload.model,
            self.workload.optimizer,
            buckets=without_ignored(self.workload.model, buckets) if buckets is not None else None,
            group=self.group_of(mode) if group is None else group,
            wait="step",
            unused_parameters=plan.unused_parameters,
            compress=None if exact else self.run.compress,
            parts=plan.parts.get(mode.carrier),
            options=dict(mode.options),
            units=plan.units.get(mode.text),
            backward_s=plan.backward_s or None,
        )
        handle = schedule().attach(setup)
        if self.workload.micro_steps > 1 and not handle.accumulates:
            handle.detach()
            raise UsageError(
                f"{mode.carrier} has no no_sync, so it would send gradients in every micro-step",
                hint="leave --accumulate or the mode out",
            )
        if handle.engine is not None:
            handle.engine.note = self.note
        if handle.meets_at_detach:
            handle.alike = lambda error: self._raised_alike(mode, error)
        if self.rank == 0 and not self.said and self.run.compress is not None:
            self.said = True
            self.journal.write(Remarked(message=compressed(self.run.compress)))
        return handle

    def _raised_alike(self, mode: ModeSpec, error: BaseException) -> bool:
        """True if every rank raises this error. Raises WorkloadError for a refusal that is this rank's alone."""
        if raised_alike(error) or not isinstance(error, UsageError) or isinstance(error, WorkloadError):
            return raised_alike(error)
        if put_everywhere(self.board, marker(f"refusal{self.job}", mode), self.rank, dist.get_world_size()):
            return True
        raise WorkloadError(str(error), hint=error.hint) from error

    def group_of(self, mode: ModeSpec) -> dist.ProcessGroup | None:
        """Return the process group that a mode uses."""
        if self.turn_group is not None and mode_info(mode.name).sharing == "in turns":
            return self.turn_group
        return self.group

    def on_ddp(self, mode: ModeSpec) -> bool:
        """True if DDP's reducer sends this mode's gradients, also where `auto` chose DDP itself."""
        return mode_info(self.plans[self.job].carrier_of(mode)).reducer == "ddp"

    def takes_part(self, mode: ModeSpec) -> bool:
        """True if this job runs a mode. Single-job modes of two equal jobs are timed once."""
        return mode.paired or self.job == 0 or not twins(self.run)

    def pattern(self, mode: ModeSpec) -> tuple[int, ...]:
        """Return the turn pattern with the best predicted throughput."""
        return best_pattern(job_times(self.plans, mode.carrier)).pattern

    def origin(self) -> tuple[float, Any]:
        """Return one instant on the machine's clock [s] and on ours, to align the jobs of a host."""
        self.device_idle()
        return time.monotonic(), self.clock.mark()

    def tell_block(
        self,
        mode: ModeSpec,
        place: tuple[int, int],
        warmup: int,
        origin: tuple[float, Any],
        stamps: Sequence[Any],
        pattern: tuple[int, ...] | None = None,
    ) -> None:
        """Write a block to the journal, and free its stamps.

        `place` is round and position. `origin` is one instant, on the machine's clock [s] and as a stamp. The first of
        `stamps` is the start of the block, each other one the end of a step. The first `warmup` steps do not count.
        """
        self.clock.flush()
        elapsed_s = self.clock.elapsed_s
        origin_s, began = origin
        stamps_s = [round(origin_s + elapsed_s(began, stamp), 7) for stamp in stamps]
        turn, position = place
        self.journal.write(
            BlockTimed(mode=mode.text, round=turn, position=position, warmup=warmup, stamps=stamps_s, pattern=pattern)
        )
        self.clock.reset()
        self.gpu.report(stamps_s[warmup], stamps_s[-1], mode=mode.text, round=turn)

    def tell_loss(self, mode: ModeSpec, what: str) -> None:
        """Write a warning if the block's last loss is infinite or NaN on this rank, once per mode."""
        loss = float(self.loss.sum()) if self.loss is not None else 0.0
        if not math.isfinite(loss) and mode.text not in self.told_lost:
            self.told_lost.add(mode.text)
            told = f"{what}: the loss of rank {self.rank} is {loss} at the end of the block"
            self.journal.write(Warned(message=told))


def raise_if_allowed(thread: int) -> None:
    """Raise a thread's priority (`host_tuning.raise_thread`), unless the system refuses it."""
    with suppress(OSError):
        host_tuning.raise_thread(thread)


def keep_order_of_launches(environ: MutableMapping[str, str]) -> str | None:
    """Let NCCL run collectives in the order of their launches. Returns a remark for the record, or None."""
    name, value = ONE_ORDER
    if environ.setdefault(name, value) != value:
        return None
    return (
        f"{name}={value} holds for every mode of this run, because one of them uses several communicators at once; "
        "a launch may take longer with it"
    )


# --- steps of a mode under torch.compile ---------------------------------------------------------------------------
#
# The first step of an attachment compiles the forward and the backward pass. A later one may compile again, as when
# gradients exist for the first time. So the warm-up of a block begins after a step in which no rank compiled anything.


def noted(mode: ModeSpec, what: str) -> str:
    """Return the note of steps of a mode, in which its code may be compiled."""
    return f"{what}: {COMPILING}" if mode_info(mode.carrier).compiled else what


def settle(session: Session, mode: ModeSpec, handle: Handle, what: str) -> None:
    """Take steps until no rank has compiled in one. Do nothing for a mode that is not compiled. Collective."""
    if not mode_info(mode.carrier).compiled:
        return
    for _ in range(MAX_STEPS):
        before = compilations()
        session.train(handle, 1, noted(mode, what), lambda: None)
        compiled = torch.tensor([float(compilations() > before)], device=session.device)
        dist.all_reduce(compiled, op=dist.ReduceOp.MAX)
        if not compiled.item():
            return
    session.journal.write(Warned(message=f"{mode.text}: torch.compile has not come to an end in {MAX_STEPS} steps"))


@contextmanager
def late_compilations(session: Session, mode: ModeSpec, what: str) -> Iterator[None]:
    """Context of the warm-up and the timed steps of a block. Write a warning if code of the mode is compiled in it."""
    before = compilations()
    yield
    late = compilations() - before if mode_info(mode.carrier).compiled else 0
    if late:
        session.journal.write(Warned(message=f"{what}: torch.compile ran again while it was timed ({late} times)"))
