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
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any, get_args

from xbench import environment
from xbench.cluster.live.engine import OVER, LiveJob
from xbench.errors import Interrupted, RunError, SpecError, XbenchError
from xbench.interrupts import interrupts_held
from xbench.record_files import RECORD
from xbench.records import LossCheck, Restart, RestartPart, RestartResult, RestartTimes
from xbench.runtime.assemble import now
from xbench.runtime.cluster.checkpoints import candidates
from xbench.runtime.cluster.incarnation import events_of, incarnation_of, losses
from xbench.runtime.cluster.local import LocalEngine, LocalRunning, opened
from xbench.runtime.run_folder import keep, new_run_folder
from xbench.spec import DeviceType
from xbench.stats.summary import median_estimate
from xbench.units import format_seconds
from xbench.workloads import family_of, parse_workload
from xbench.workloads.probe import Preflight, probe

TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2}
"""Of a loss, by the workload's dtype. In fp32 another order of additions does some 1e-7, and a forgotten momentum, the
least of what may go wrong, some 1e-2 (tests/unit/runtime/test_job_losses.py)."""

POLL_S = 0.005
ENDLESS = 10**9
"""Steps of a job that ends when it is asked to."""

SILENCE_S = 600.0
RESTARTS, WORK = "restarts.jsonl", "work"
"""In the run's folder: a line of `RestartTimes` for each restart so far, and what the incarnations need."""


@dataclass(frozen=True)
class RestartRequest:
    """What a user asked for. `repeats`: there and back; `steps`: of an incarnation before it is stopped."""

    workload: str
    start: int = 1
    to: int = 2
    repeats: int = 3
    batch_size: int | None = None
    steps: int = 20
    seed: int = 0
    device: str = "auto"
    command: str = field(default_factory=lambda: shlex.join(["xbench", *sys.argv[1:]]))


def measure(
    request: RestartRequest, say: Callable[[str], None], output: Path = Path("results/runs")
) -> tuple[Restart, Path, Interrupted | None]:
    """Do it all: the record, its file in a new folder of `output`, and the interruption that waited for the save.

    Every restart is in `restarts.jsonl` there as soon as it was timed. Raises SpecError and WorkloadError before
    anything is launched, RunError when an incarnation fails, Interrupted; these two say where the restarts are.
    """
    job, found, device = _checked(request)
    folder = new_run_folder(output, "restart").absolute()
    with interrupts_held() as held:
        try:
            with held.let_through():
                record = _measured(request, job, found, device, folder, say)
        except KeyboardInterrupt:
            raise _with_restarts(Interrupted("interrupted"), folder) from None
        except XbenchError as failed:
            raise _with_restarts(failed, folder) from None
        finally:
            shutil.rmtree(folder / WORK, ignore_errors=True)
            with suppress(OSError):
                folder.rmdir()  # where nothing was timed
        path = keep(record, folder / RECORD)
        return record, path, held.interrupted()


def _with_restarts(error: XbenchError, folder: Path) -> XbenchError:
    """The error, with a hint on what had been timed."""
    if (kept := folder / RESTARTS).exists():
        error.hint = error.hint or f"{kept} has the restarts that were timed"
    return error


def _measured(
    request: RestartRequest,
    job: LiveJob,
    found: Preflight,
    device: DeviceType,
    folder: Path,
    say: Callable[[str], None],
) -> Restart:
    most, work = max(request.start, request.to), folder / WORK
    with opened(LocalEngine(_slots(request, device), device)) as engine:
        run = _Run(engine, job, request.steps, say)
        workers = list(islice(cycle((request.start, request.to)), 2 * request.repeats + 1))
        times = run.restarts(work / "restarted", workers, folder / RESTARTS)
        cut = losses(work / "restarted")
        kept = candidates(work / "restarted", incarnation_of(job, (0,), device).key)[0]
        depends = _depends(work / "restarted" / "incarnation-0001")
        compared, of, stops = cut, workers, times
        if depends:
            of = [request.start, request.start]
            say(f"once more with {_workers(request.start)} before and after: {'; '.join(depends)}")
            stops = run.restarts(work / "checked", of)
            compared = losses(work / "checked")
        say(f"{len(compared)} steps without a stop on {_workers(request.start)}")
        run.whole(work / "whole", len(compared), request.start)
        uncut = losses(work / "whole")
        cores = [list(one) for one in engine.cores]
        warnings = list(engine.warnings)
    size = kept[0].path.stat().st_size if kept else 0
    check = compare_losses(compared, uncut, TOLERANCE[found.specs[0].dtype], of, depends)
    check = check.model_copy(update={"stops": [one.steps for one in stops]})
    results = results_of(times)
    return Restart(
        created=now(),
        command=request.command,
        xbench=metadata.version("xbench"),
        environment=environment.capture(found.environment_facts()),
        workload=found.workloads[0].record,
        batch_size=job.batch_size,
        slots=cores[:most],
        backend="nccl" if device == "cuda" else "gloo",
        from_workers=request.start,
        to_workers=request.to,
        checkpoint_bytes=size,
        findings=findings(results, check),
        warnings=warnings,
        restarts=times,
        results=results,
        check=check,
        losses=[_number(one) for one in compared.values()],
        uncut_losses=[_number(one) for one in uncut.values()],
    )


def _checked(request: RestartRequest) -> tuple[LiveJob, Preflight, DeviceType]:
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
    if spec.batch_size is not None:
        raise SpecError(
            f"{request.workload!r} has a batch size of its own, and a job's is that of all its workers",
            hint=f"leave it out, and give --batch-size {spec.batch_size}",
        )
    most, fewest = max(request.start, request.to), min(request.start, request.to)
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
    each = found.workloads[0].record.batch_size
    batch_size = request.batch_size or (each * most if drawn else each)
    if not drawn and batch_size > each:
        raise SpecError(
            f"{spec.title}: its factory made {each} samples, and --batch-size {batch_size} wants more",
            hint=f"at most --batch-size {each}",
        )
    if batch_size < most:
        raise SpecError(f"a batch of {batch_size} cannot be shared by {most} workers", hint=f"at most {batch_size}")
    job = LiveJob(
        spec.title, request.workload, ENDLESS, batch_size, seed=request.seed, checkpoint_steps=ENDLESS
    )  # fmt: skip
    incarnation_of(job, range(most), found.device)
    return job, found, found.device


def _slots(request: RestartRequest, device: DeviceType) -> int:
    """As many as the larger number of workers, each with a core of its own."""
    most = max(request.start, request.to)
    if device == "cpu" and (there := environment.usable_cores()) < most:
        raise SpecError(
            f"{most} workers want a core each, and this machine has {there}", hint=f"at most {there} workers"
        )
    return most


class _Run:
    """Incarnations of one job, one after the other."""

    def __init__(self, engine: LocalEngine, job: LiveJob, steps: int, say: Callable[[str], None]) -> None:
        self.engine, self.job, self.steps, self.say = engine, job, steps, say

    def restarts(self, folder: Path, workers: Sequence[int], kept: Path | None = None) -> list[RestartTimes]:
        """Train `steps` steps with each number of workers in turn: what the changes took, a line of each in `kept`."""
        found = []
        running = self._start(folder, workers[0])
        self._train(running)
        for number, (before, after) in enumerate(pairwise(workers), start=1):
            self.say(f"restart {number} of {len(workers) - 1}: {before} to {_workers(after)}")
            asked_s = time.monotonic()
            running.stop()
            self._until_over(running)
            gone_s = time.monotonic()
            stopped = running.directory
            running = self._start(folder, after)
            self._train(running)
            found.append(times_of(events_of(stopped), events_of(running.directory), asked_s, gone_s, before, after))
            if kept is not None:
                with kept.open("a", encoding="utf-8") as stream:
                    stream.write(found[-1].model_dump_json() + "\n")
        running.stop()
        self._until_over(running)
        return found

    def whole(self, folder: Path, steps: int, workers: int) -> None:
        """Train so many steps without a stop."""
        running = self.engine.start(replace(self.job, steps=steps), folder, tuple(range(workers)))
        self._until_over(running)

    def _start(self, folder: Path, workers: int) -> LocalRunning:
        return self.engine.start(self.job, folder, tuple(range(workers)))

    def _train(self, running: LocalRunning) -> None:
        """Until it has trained its steps."""
        look = running.look()
        begin = look.steps
        heard_s, last = time.monotonic(), look
        while look.steps < begin + self.steps:
            if look != last:
                heard_s, last = time.monotonic(), look
            self._alive(running, heard_s)
            time.sleep(POLL_S)
            look = running.look()

    def _until_over(self, running: LocalRunning) -> None:
        heard_s, last = time.monotonic(), running.look()
        while (look := running.look()).state not in OVER:
            if look != last:
                heard_s, last = time.monotonic(), look
            self._alive(running, heard_s)
            time.sleep(POLL_S)
        if look.state == "failed":
            raise RunError(f"{self.job.name}: {look.reason}")

    def _alive(self, running: LocalRunning, heard_s: float) -> None:
        look = running.look()
        if look.state == "failed":
            raise RunError(f"{self.job.name}: {look.reason}")
        if time.monotonic() - heard_s > SILENCE_S:
            raise RunError(f"{self.job.name}: nothing was heard of its workers for {SILENCE_S:.0f} s")


def times_of(
    stopped: Sequence[dict[str, Any]],
    started: Sequence[dict[str, Any]],
    asked_s: float,
    gone_s: float,
    from_workers: int,
    to_workers: int,
) -> RestartTimes:
    """The parts of one restart, from the two journals of rank 0 and from when the stop was asked for and done."""
    first = {event["event"]: event for event in reversed(started)}
    steps = [event for event in started if event["event"] == "step"]
    last = [event for event in stopped if event["event"] == "step"][-1]
    kept = [event for event in stopped if event["event"] == "kept"][-1]
    hello = first["hello"]
    ends = [
        asked_s,
        last["t"],
        kept["t"],
        gone_s,
        hello["started_s"],
        hello["t"],
        first["joined"]["t"],
        first["built"]["t"],
        first["ready"]["t"],
        first["step"]["t"],
    ]
    # The last step may have ended in the instant in which the stop was asked for.
    for place in range(1, len(ends)):
        ends[place] = max(ends[place], ends[place - 1])
    parts = [later - earlier for earlier, later in pairwise(ends)]
    ordinary = [later["t"] - earlier["t"] for earlier, later in pairwise(steps)]
    return RestartTimes(
        from_workers=from_workers,
        to_workers=to_workers,
        steps=last["step"],
        last_step_s=parts[0],
        checkpoint_s=parts[1],
        teardown_s=parts[2],
        start_s=parts[3],
        imports_s=parts[4],
        join_s=parts[5],
        build_s=parts[6],
        load_s=parts[7],
        first_step_s=parts[8],
        step_s=statistics.median(ordinary) if ordinary else parts[8],
    )


def compare_losses(
    cut: dict[int, float], uncut: dict[int, float], tolerance: float, workers: Sequence[int], depends: Sequence[str]
) -> LossCheck:
    """Whether two loss curves are one: they have the same steps, and no loss differs by more than `tolerance`."""
    steps = sorted(cut.keys() | uncut.keys())
    worst, worst_step = 0.0, steps[0]
    for step in steps:
        one, other = cut.get(step, math.nan), uncut.get(step, math.nan)
        off = abs(one - other) / abs(other) if other else abs(one - other)
        if not off <= worst:  # a missing loss, or one that is no number, is the worst of all
            worst, worst_step = off, step
            if not math.isfinite(off):
                break
    return LossCheck(
        held=worst <= tolerance,
        steps=len(steps),
        worst=_number(worst),
        worst_step=worst_step,
        tolerance=tolerance,
        workers=list(workers),
        depends=list(depends),
    )


def findings(results: Sequence[RestartResult], check: LossCheck) -> list[str]:
    """The answer in sentences."""
    medians = {one.part: one.seconds.median for one in results if one.from_workers is None}
    total, lost = medians["total"], medians["lost"]
    parts = {name: medians[name] for name in ("checkpoint", "tear-down", "launch", "first step")}
    longest = max(parts, key=lambda name: parts[name])
    return [
        f"A restart takes {format_seconds(total)} from the stop being asked for to the first step applied, and "
        f"{format_seconds(lost)} of that are lost to training.",
        f"The longest part is {longest}: {format_seconds(parts[longest])}.",
        loss_sentence(check),
    ]


def loss_sentence(check: LossCheck) -> str:
    """Whether the loss curve goes on."""
    against = f"{check.steps} steps against a run without a stop"
    if check.worst == 0:
        return f"The loss curve goes on: {against}, every loss the same to the last bit."
    told = f"{'no number' if check.worst is None else f'{check.worst:.1e}'} at step {check.worst_step}"
    against += f", largest relative difference {told}"
    if not check.held:
        return f"The loss curve does NOT go on: {against}, allowed {check.tolerance:g}."
    return f"The loss curve goes on: {against}, allowed {check.tolerance:g}."


def results_of(times: Sequence[RestartTimes]) -> list[RestartResult]:
    """Each part, over all restarts and each way by itself."""
    ways = list(dict.fromkeys((one.from_workers, one.to_workers) for one in times))
    found = []
    for way in [None, *ways]:
        here = [one for one in times if way is None or (one.from_workers, one.to_workers) == way]
        for part in get_args(RestartPart):
            seconds = median_estimate([one.part_s(part) for one in here])
            start, to = way or (None, None)
            found.append(RestartResult(part=part, from_workers=start, to_workers=to, seconds=seconds))
    return found


def _depends(incarnation: Path) -> list[str]:
    return next((list(event["on"]) for event in events_of(incarnation) if event["event"] == "depends"), [])


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
