"""`xbench cluster restart`: a real job is stopped and started anew with another number of workers, again and again.

    asked ── last step ── checkpoint ── tear-down ── start, imports, join, build, load ── first step applied
             the step     on disk       no process    (launch)
             under way                  is left

Each instant is told by who sees it: the stop and the last process's end by us, everything else by rank 0's journal, all
by the machine's one monotonic clock. The step under way and one ordinary step are training, not cost; what remains is
`lost_s`, and that is what `xbench cluster compare --restart-cost FILE` charges.

**The loss curve goes on.** An uninterrupted run of the same seed is trained too, with `from` workers throughout, and
no loss of the interrupted one may differ by more than `TOLERANCE` of it, at any step. What may differ is the order in
which floats are added, which other shares bring along; a lost step, a sample taken twice or an optimizer that forgot
its momentum differ by far more. Where the model depends on how a batch is shared (batch normalisation, dropout), the
curve with other numbers of workers is another one by right: then a run of its own, stopped and started anew with as
many workers as before, is held to the uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, pairwise
from pathlib import Path

from xbench import environment
from xbench.cluster.live.attempt import OVER, LiveJob, attempt_of, events_of, losses
from xbench.cluster.live.checkpoints import candidates
from xbench.cluster.live.local_engine import LocalEngine, LocalRunning
from xbench.cluster.live.restart_result import RESTARTS, compare_losses, record_of, times_of
from xbench.errors import RunError, SpecError, XbenchError
from xbench.interrupts import interrupts_held
from xbench.rank.events import ShareDependent
from xbench.record_files import FRAME, RECORD, command_line, now
from xbench.records import Restart, RestartTimes
from xbench.runs.frames import RestartFrame, write_frame
from xbench.runs.run_folder import Kept, measure_and_keep, new_run_folder
from xbench.scratch import Scratch
from xbench.spec import DeviceType
from xbench.text import counted
from xbench.version import __version__
from xbench.workloads import check_one_batch, check_plain_step, family_of, parse_workload
from xbench.workloads.probe import Preflight, probe

TOLERANCE = {"fp64": 1e-4, "fp32": 1e-4, "bf16": 5e-2}
"""Tolerance of a loss by dtype of the parameters; other dtypes have that of bf16. In fp32, another order of additions
changes a loss by about 1e-7; a forgotten momentum, the smallest mistake, by about 1e-2
(tests/unit/cluster/live/test_job_losses.py).
"""

POLL_S = 0.005
ENDLESS = 10**9
"""Steps of a job that ends when it is asked to."""

SILENCE_S = 600.0


@dataclass(frozen=True)
class RestartRequest:
    """What a user asked for. `repeats`: there and back; `steps`: of an attempt before it is stopped."""

    workload: str
    start: int = 1
    to: int = 2
    repeats: int = 3
    batch_size: int | None = None
    steps: int = 20
    seed: int = 0
    device: str = "auto"
    command: str = field(default_factory=command_line)

    @property
    def most(self) -> int:
        """The larger number of workers."""
        return max(self.start, self.to)


def measure(request: RestartRequest, say: Callable[[str], None], output: Path = Path("results/runs")) -> Kept[Restart]:
    """Do it all: the record, its file in a new folder of `output`, and the error that ended the study early, if any.

    Every restart is in `restarts.jsonl` there as soon as it was timed. Raises SpecError and WorkloadError before
    anything is launched, and where no restart was timed RunError when an attempt fails, or Interrupted.
    """
    job, found = _checked(request)
    folder = new_run_folder(output, "restart").absolute()
    times: list[RestartTimes] = []
    study: _Study | None = None
    whole: Restart | None = None

    def study_all() -> None:
        nonlocal study, whole
        study = _Study(request, job, found, folder, times, say)
        whole = study.measured()

    def record(error: XbenchError | None) -> Restart:
        if whole is not None:
            return whole
        if study is None or not times:
            (folder / FRAME).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
            assert error is not None
            raise error
        return record_of(study.frame(), times, error=str(error))

    return measure_and_keep(study_all, record, lambda _: folder / RECORD)


class _Study:
    """One study under way. `times`: each restart, as soon as it was timed."""

    def __init__(
        self,
        request: RestartRequest,
        job: LiveJob,
        found: Preflight,
        folder: Path,
        times: list[RestartTimes],
        say: Callable[[str], None],
    ) -> None:
        self.request, self.job, self.found = request, job, found
        self.folder, self.times, self.say = folder, times, say
        self._created = now()
        self._environment = environment.capture(found.environment_facts())
        self._engine = LocalEngine(_slots(request, found.device), found.device)

    def frame(self) -> RestartFrame:
        """Everything in the record that is not measured, as it stands."""
        return RestartFrame(
            created=self._created,
            command=self.request.command,
            xbench=__version__,
            environment=self._environment,
            workload=self.found.workloads[0].record,
            batch_size=self.job.batch_size,
            slots=[list(one) for one in self._engine.cores][: self.request.most],
            backend="nccl" if self.found.device == "cuda" else "gloo",
            from_workers=self.request.start,
            to_workers=self.request.to,
            warnings=list(self._engine.warnings),
        )

    def measured(self) -> Restart:
        """Time the restarts, and hold the loss curve to that of a run without a stop. Raises RunError."""
        write_frame(self.frame(), self.folder)
        with Scratch("xb-", str(self.folder)) as made:
            try:
                return self._measured(Path(made))
            finally:
                with interrupts_held():
                    self._engine.close()

    def _measured(self, work: Path) -> Restart:
        request = self.request
        workers = list(islice(cycle((request.start, request.to)), 2 * request.repeats + 1))
        for one in self._restarts(work / "restarted", workers):
            self.times.append(one)
            with (self.folder / RESTARTS).open("a", encoding="utf-8") as stream:
                stream.write(one.model_dump_json() + "\n")
        cut = losses(work / "restarted")
        kept = candidates(work / "restarted", attempt_of(self.job, (0,), self.found.device).key)[0]
        told = events_of(work / "restarted" / "incarnation-0001")
        depends = next((event.on for event in told if isinstance(event, ShareDependent)), [])
        compared, of, stops = cut, workers, self.times
        if depends:
            of = [request.start, request.start]
            self.say(f"once more with {counted(request.start, 'worker')} before and after: {'; '.join(depends)}")
            stops = list(self._restarts(work / "checked", of))
            compared = losses(work / "checked")
        self.say(f"{len(compared)} steps without a stop on {counted(request.start, 'worker')}")
        uncut_job = replace(self.job, steps=len(compared))
        self._follow(self._engine.start(uncut_job, work / "whole", tuple(range(request.start))))
        uncut = losses(work / "whole")
        tolerance = TOLERANCE.get(self.found.workloads[0].record.dtype, TOLERANCE["bf16"])
        check = compare_losses(compared, uncut, tolerance, of, depends)
        return record_of(
            self.frame(),
            self.times,
            checkpoint_bytes=kept[0].path.stat().st_size if kept else 0,
            check=check.model_copy(update={"stops": [one.steps for one in stops]}),
            losses=compared.values(),
            uncut_losses=uncut.values(),
        )

    def _restarts(self, folder: Path, workers: Sequence[int]) -> Iterator[RestartTimes]:
        """Train the job's steps with each number of workers in turn: what each change took."""
        running = self._trained(folder, workers[0])
        for number, (before, after) in enumerate(pairwise(workers), start=1):
            self.say(f"restart {number} of {len(workers) - 1}: {before} to {counted(after, 'worker')}")
            asked_s = time.monotonic()
            running.stop()
            self._follow(running)
            gone_s = time.monotonic()
            stopped = running.directory
            running = self._trained(folder, after)
            yield times_of(events_of(stopped), events_of(running.directory), asked_s, gone_s, before, after)
        running.stop()
        self._follow(running)

    def _trained(self, folder: Path, workers: int) -> LocalRunning:
        """A new attempt, after the steps that were asked for."""
        running = self._engine.start(self.job, folder, tuple(range(workers)))
        self._follow(running, running.look().steps + self.request.steps)
        return running

    def _follow(self, running: LocalRunning, steps: float = math.inf) -> None:
        """Look until it has done so many steps, or is over. Raises RunError if it fails, or says nothing for long."""
        heard_s, last = time.monotonic(), running.look()
        while True:
            look = running.look()
            if look.state == "failed":
                raise RunError(f"{self.job.name}: {look.reason}")
            if look.steps >= steps or look.state in OVER:
                return
            if look != last:
                heard_s, last = time.monotonic(), look
            if time.monotonic() - heard_s > SILENCE_S:
                raise RunError(f"{self.job.name}: nothing was heard of its workers for {SILENCE_S:.0f} s")
            time.sleep(POLL_S)


def _checked(request: RestartRequest) -> tuple[LiveJob, Preflight]:
    """The job, once it is known that it can be trained here."""
    for what, count in (("--from", request.start), ("--to", request.to)):
        if count < 1:
            raise SpecError(f"{what} {count}: a job has at least one worker")
    if request.start == request.to:
        raise SpecError(
            f"--from {request.start} --to {request.to} restarts with as many workers",
            hint=f"try --to {2 * request.start}",
        )
    spec = parse_workload(request.workload, seed=request.seed)
    check_plain_step(spec, "a live job")
    if spec.batch_size is not None:
        raise SpecError(
            f"{request.workload!r} has a batch size of its own, and a job's is that of all its workers",
            hint=f"leave it out, and give --batch-size {spec.batch_size}",
        )
    most, fewest = request.most, min(request.start, request.to)
    if request.batch_size is not None and request.batch_size < most:
        raise SpecError(
            f"--batch-size {request.batch_size} cannot be shared by {most} workers", hint=f"try --batch-size {most}"
        )
    drawn = family_of(spec.name) != "factory"
    if drawn and request.batch_size is not None:
        spec = spec.model_copy(update={"batch_size": math.ceil(request.batch_size / fewest)})
    if request.device == "cpu":
        _slots(request, "cpu")
    found = probe([spec], request.device, most)
    LocalEngine(_slots(request, found.device), found.device)
    check_one_batch(found.workloads[0].record, "a live job")
    each = found.workloads[0].record.batch_size
    batch_size = request.batch_size or (each * most if drawn else each)
    if not drawn and batch_size > each:
        raise SpecError(
            f"{spec.title}: its factory made {each} samples, and --batch-size {batch_size} wants more",
            hint=f"at most --batch-size {each}",
        )
    if batch_size < most:
        raise SpecError(f"a batch of {batch_size} cannot be shared by {most} workers", hint=f"at most {batch_size}")
    job = LiveJob(spec.title, request.workload, ENDLESS, batch_size, seed=request.seed, checkpoint_steps=ENDLESS)
    attempt_of(job, range(most), found.device)
    return job, found


def _slots(request: RestartRequest, device: DeviceType) -> int:
    """As many as the larger number of workers, each with a core of its own."""
    if device == "cpu" and (there := environment.usable_cores()) < request.most:
        raise SpecError(
            f"{request.most} workers want a core each, and this machine has {there}", hint=f"at most {there} workers"
        )
    return request.most
