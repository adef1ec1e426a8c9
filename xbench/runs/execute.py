"""A whole run: resolve the request, set up the fabric, launch the ranks, keep measurements, build the record.

    RunConfig → prepare → RunSpec → fabric → launches → Collector → record.json

After the first rank has started, a record is always written: complete, or marked incomplete with the reason. If this
process is killed, the run's folder holds the sources of that record: its frame and its journals (`runs.rebuild`). A
signal that asks to stop ends the measurement at once, and is held while the record is built.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from xbench import environment
from xbench.config import RunConfig
from xbench.errors import Interrupted, RunError, SpecError, XbenchError
from xbench.fabrics import open_fabric
from xbench.fabrics.fabric import Fabric
from xbench.interrupts import interrupts_held
from xbench.launch.launcher import AuxiliaryCommand, Outcome, launch
from xbench.rank.journal import Journals, kept_by
from xbench.rank.program import JobPlan, Program
from xbench.record_files import RECORD
from xbench.records import Comparison, Profile
from xbench.runs.build_records import RunMetadata, comparison_record, profile_record
from xbench.runs.event_collector import Collector
from xbench.runs.external_launch import excused, our_rank, run_inside
from xbench.runs.frames import RunFrame, write_frame
from xbench.runs.launch_policy import FixedLaunches, LaunchPolicy
from xbench.runs.oom import OomTracker
from xbench.runs.prepare import prepare
from xbench.runs.progress import Progress
from xbench.runs.run_folder import keep, new_run_folder
from xbench.runs.unavailable import backend_of
from xbench.scratch import socket_folder
from xbench.spec import RunSpec

WORKER = "xbench.rank.main"


@dataclass(frozen=True)
class Result:
    """A record, its path, and the error that ended the run early, if any."""

    record: Profile | Comparison
    path: Path
    error: XbenchError | None
    speaks: bool = True
    """False on all ranks but the first if another launcher started xbench itself. They print and save nothing."""
    plans: tuple[JobPlan, ...] = ()
    """Buckets that the launches ran, by job, each with every trainable parameter. Empty if ranks were given."""


def check_output(output: Path) -> None:
    """Raise SpecError if the folder of the results is not writable."""
    there = next(folder for folder in (output.absolute(), *output.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise SpecError(f"--output: {str(there)!r} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SpecError(f"--output: nothing may be written to {str(there)!r}", hint="try --output /tmp/xbench")


def execute(config: RunConfig, console: Console, course: LaunchPolicy | None = None) -> Result:
    """Run, and return the result. Errors before any measurement are raised; later ones are in the result.

    `course` decides on each launch; None: the effort does.
    """
    starts_ranks = config.fabric.name not in ("auto", "cluster")  # surrounding ranks, if any, then take no part
    speaks = starts_ranks or our_rank() == 0
    if not speaks:
        console = Console(quiet=True)
    if speaks:
        check_output(config.output)
    try:
        run, found, notes = prepare(config)
    except XbenchError as refused:
        if not speaks:
            excused(refused)
        raise
    course = course or FixedLaunches(run)
    notes += course.check(run)
    progress = Progress(console, launches=course.launches, run=run)
    records = [item.record for item in found.workloads]
    for workload in records:
        progress.say(
            f"{workload.title}: {workload.input}, batch {workload.batch_size} a rank, {workload.dtype}, {run.device}"
        )
        if len(set(run.workloads)) == 1:
            break
    for note in notes:
        progress.say(note)
    name = "-".join(dict.fromkeys(_safe(spec.title) for spec in run.workloads))
    folder = new_run_folder(config.output, f"{config.title or config.kind}-{name}") if speaks else config.output
    collector = Collector(run, [item.record.batch_size for item in found.workloads])
    error: XbenchError | None = None
    command = shlex.join(["xbench", *sys.argv[1:]]).encode(errors="replace").decode()
    warnings = [*found.warnings, *environment.noise_warnings()]
    plans: list[JobPlan] = []
    path = folder / RECORD
    make = profile_record if run.kind == "profile" else comparison_record
    with interrupts_held() as held:
        with ExitStack() as stack:
            stack.enter_context(progress)
            with held.let_through():
                facts = environment.capture(found.environment_facts())
                fabric = stack.enter_context(open_fabric(run.fabric, device=run.device))
            frame = RunMetadata(command, facts, fabric.describe(backend_of(run)), records)

            def update() -> RunMetadata:
                """Update the frame with the state of the fabric and of the policy."""
                frame.fabric, frame.emulated = fabric.describe(backend_of(run)), fabric.emulated
                frame.warnings = [*warnings, *fabric.warnings, *course.warnings]
                return frame

            def write() -> None:
                with suppress(OSError):  # the launch reports a full disk, and the record has other places
                    write_frame(RunFrame.of(course.ran(run), update(), collector), folder)

            def abandon(error: XbenchError) -> NoReturn:
                """Save the measurements and end the process, if it is itself stuck in a collective."""
                try:
                    record = make(run, update(), collector, complete=False, error=str(error))
                    progress.say(f"\nrecord: {keep(record, path)}")
                    progress.say(f"error: {error}" + (f"\n  hint: {error.hint}" if error.hint else ""))
                finally:
                    sys.stderr.flush()
                    os._exit(error.exit_code)

            try:
                with held.let_through():
                    progress.say(f"fabric {run.fabric}")
                    fabric.measure_bandwidth()
                    if run.fabric.name == "cluster":
                        if speaks:
                            write()
                        take = kept_by(Journals(folder / "launch0"), collector.take) if speaks else collector.take
                        run_inside(run, collector, progress, abandon, take)
                    else:
                        _launches(course, run, fabric, folder, collector, progress, warnings, plans, write)
            except XbenchError as caught:
                error = caught
            except OSError as failed:  # a launch could not make a folder, file or process
                error = RunError(f"the launches could not go on: {failed}")
            except KeyboardInterrupt:
                error = Interrupted("interrupted")
            update()
        run = course.ran(run)
        record = make(run, frame, collector, complete=error is None, error=str(error) if error is not None else None)
        if speaks:
            path = keep(record, path)
        interrupted = held.interrupted()
    return Result(record, path, error or interrupted, speaks, tuple(plans))


def _launches(
    course: LaunchPolicy,
    run: RunSpec,
    fabric: Fabric,
    folder: Path,
    collector: Collector,
    progress: Progress,
    warnings: list[str],
    plans: list[JobPlan],
    write: Callable[[], None],
) -> None:
    """Run all launches in turn. `plans` gets the first one's plans. Raises the error of the first that fails.

    `write` saves the frame, before the first launch and after each change. A mode that runs out of memory fails without
    ending the run (`runs.oom`).
    """
    shortages = OomTracker([mode.text for mode in run.modes])
    for number in itertools.count():
        leg = course.leg(number, collector, plans)
        if leg is None:
            return
        for sentence in leg.says:
            progress.say(sentence)
        write()
        collector.begin_launch(number)
        left = shortages.without(leg.phases)
        for start in itertools.count(1):
            left = tuple(phase for phase in left if phase.mode not in collector.failed)
            directory = folder / (f"launch{number}" if start == 1 else f"launch{number}-{start}")
            directory.mkdir()
            jobs = len(run.workloads)
            program = Program(
                run=leg.run, launch=number, phases=left, jobs=jobs, plans=tuple(plans), emulated=fabric.emulated
            )
            outcome = _launch(program, fabric, directory, collector, progress, shortages)
            warnings += outcome.warnings
            write()
            if number == 0 and not plans:
                plans += _plans(directory, jobs)
            if outcome.error is None:
                break
            mode = shortages.failed() if plans else None
            if mode is None:
                raise outcome.error
            hint = f" ({outcome.error.hint})" if outcome.error.hint else ""
            collector.failed.setdefault(mode, f"{outcome.error}{hint}")
            write()
            progress.say(f"{mode} has failed, and the others go on in new ranks: {outcome.error}{hint}")
            left = shortages.rest(left)
            if not left:
                break


def _launch(
    program: Program,
    fabric: Fabric,
    directory: Path,
    collector: Collector,
    progress: Progress,
    shortages: OomTracker,
) -> Outcome:
    """Run one start of the ranks to the end, with the arbiters that several jobs need."""
    run = program.run
    progress.begin_launch(program.launch, program.phases)
    shortages.begin()
    with ExitStack() as stack:
        auxiliaries: list[AuxiliaryCommand] = []
        if program.jobs > 1:
            sockets = Path(stack.enter_context(socket_folder()))
            paths = [str(sockets / f"turns{host}") for host in range(run.fabric.hosts)]
            program = program.model_copy(update={"turn_sockets": tuple(paths)})
            auxiliaries = [AuxiliaryCommand(host, _arbiter(path, run)) for host, path in enumerate(paths)]
        argument = directory / "program.json"
        with argument.open("x", encoding="utf-8") as stream:
            stream.write(program.model_dump_json())

        def on_event(job: int, rank: int, event: Mapping[str, Any]) -> None:
            collector.take(job, rank, event)
            shortages.take(job, rank, event)
            if job == 0:
                progress.take(rank, event)

        def on_note(job: int, rank: int, at_s: float, text: str) -> None:
            if job == 0:
                progress.note(rank, at_s, text)

        return launch(
            fabric,
            program.jobs,
            WORKER,
            argument.resolve(),
            directory.resolve(),
            on_event=on_event,
            silence_s=run.timeout_s,
            auxiliaries=auxiliaries,
            on_note=on_note,
        )


def _arbiter(path: str, run: RunSpec) -> list[str]:
    module = [sys.executable, "-m", "xbench.crossover.arbiter"]
    return [*module, "--socket", path, "--jobs", str(len(run.workloads)), "--devices", str(run.fabric.ranks)]


def _plans(directory: Path, jobs: int) -> tuple[JobPlan, ...]:
    """Return the first launch's plans by job; twins share the first's."""
    files = [directory / f"plan{job}.json" for job in range(jobs)]
    read = [JobPlan.model_validate_json(file.read_text()) for file in files if file.exists()]
    return tuple(read) if len(read) == jobs else tuple(read[:1] * jobs)


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:40]
