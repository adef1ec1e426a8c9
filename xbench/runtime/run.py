"""A whole run: resolve what was asked for, raise the fabric, launch the ranks, keep what they measure, make the record.

    RunRequest → prepare → RunSpec → fabric → launches → Collector → record.json

Whatever happens after the first rank has started, a record is written: complete, or marked incomplete with the reason.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from xbench import environment
from xbench.errors import Interrupted, RunError, SpecError, XbenchError
from xbench.fabrics import open_fabric
from xbench.fabrics.fabric import Fabric
from xbench.records import Comparison, Profile, save
from xbench.runtime.assemble import Frame, comparison_record, profile_record
from xbench.runtime.collect import Collector
from xbench.runtime.course import Course, Fixed
from xbench.runtime.inside import excused, our_rank, run_inside
from xbench.runtime.launch import AuxiliaryCommand, Outcome, launch
from xbench.runtime.prepare import RunRequest, prepare
from xbench.runtime.program import JobPlan, Program
from xbench.runtime.progress import Progress, stamp
from xbench.runtime.shortage import Shortages
from xbench.runtime.unavailable import backend_of
from xbench.scratch import socket_folder
from xbench.spec import (
    RunSpec,
)

WORKER = "xbench.runtime.worker"


@dataclass(frozen=True)
class Result:
    """A record, where it was kept, and the error that cut the run short, if one did."""

    record: Profile | Comparison
    path: Path
    error: XbenchError | None
    speaks: bool = True
    """False on all ranks but the first when an engine started xbench itself: they show and keep nothing."""
    plans: tuple[JobPlan, ...] = ()
    """The buckets that the launches ran, by job, each with every trainable parameter; none inside given ranks."""


def check_output(output: Path) -> None:
    """Raise SpecError when the folder of the results cannot be written to."""
    there = next(folder for folder in (output.absolute(), *output.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise SpecError(f"--output: {str(there)!r} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SpecError(f"--output: nothing may be written to {str(there)!r}", hint="try --output /tmp/xbench")


def execute(request: RunRequest, console: Console) -> Result:
    """Do the run. Errors before any measurement are raised; later ones come back in the result, with the record."""
    speaks = our_rank() == 0
    if not speaks:
        console = Console(quiet=True)
    if speaks:
        check_output(request.output)
    try:
        run, found, notes = prepare(request)
    except XbenchError as refused:
        if not speaks:
            excused(refused)
        raise
    course: Course = request.course or Fixed(run)
    notes += course.check(run)
    progress = Progress(console, launches=course.launches)
    records = [item.record for item in found.workloads]
    for spec, workload in zip(run.workloads, records, strict=True):
        progress.say(
            f"{workload.title}: {workload.input}, batch {workload.batch_size} a rank, {spec.dtype}, {run.device}"
        )
        if len(set(run.workloads)) == 1:
            break
    for note in notes:
        progress.say(note)
    name = "-".join(dict.fromkeys(_safe(spec.title) for spec in run.workloads))
    folder = request.output / f"{stamp()}-{request.kind}-{name}"
    if speaks:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as failed:
            raise SpecError(f"--output: {str(folder)!r} cannot be made: {failed.strerror}") from None
    collector = Collector(run, [item.record.batch_size for item in found.workloads])
    error: XbenchError | None = None
    command = shlex.join(["xbench", *list(request.argv)[1:]]).encode(errors="replace").decode()
    warnings = environment.noise_warnings()
    frame: Frame | None = None
    plans: list[JobPlan] = []
    path = folder / "record.json"

    def abandon(error: XbenchError) -> NoReturn:
        """Keep what was measured when this process itself is stuck in a collective, and end it."""
        try:
            assert frame is not None
            frame.warnings += warnings
            record = make(run, frame, collector, complete=False, error=str(error))
            progress.say(f"\nrecord: {keep(record, path)}")
            progress.say(f"error: {error}" + (f"\n  hint: {error.hint}" if error.hint else ""))
        finally:
            sys.stderr.flush()
            os._exit(error.exit_code)

    make = profile_record if run.kind == "profile" else comparison_record
    with ExitStack() as stack:
        stack.enter_context(progress)
        fabric = stack.enter_context(open_fabric(run.fabric, device=run.device))
        try:
            progress.say(f"fabric {run.fabric}")
            fabric.measure_bandwidth()
            if run.fabric.name == "cluster":
                facts = environment.capture(found.environment_facts())
                frame = Frame(command, facts, fabric.describe(run.backend), records)
                run_inside(run, collector, progress, abandon)
            else:
                _launches(course, run, fabric, folder, collector, progress, warnings, plans)
        except XbenchError as caught:
            error = caught
        except KeyboardInterrupt:
            error = Interrupted("interrupted")
        described = fabric.describe(backend_of(run))
        frame = Frame(command, environment.capture(found.environment_facts()), described, records)
        frame.emulated = fabric.emulated
        frame.warnings += [*warnings, *fabric.warnings, *course.warnings]
    assert frame is not None
    run = course.ran(run)
    record = make(run, frame, collector, complete=error is None, error=str(error) if error is not None else None)
    return Result(record, keep(record, path) if speaks else path, error, speaks, tuple(plans))


def keep(record: Profile | Comparison, path: Path) -> Path:
    """Save the record there, or where there is room: nothing measured is lost to a full disk.

    Raises RunError when no place takes it.
    """
    failed: OSError | None = None
    for place in (path, *(Path(root) / f"xbench-{path.parent.name}.json" for root in _spare_folders())):
        try:
            return save(record, place)
        except OSError as error:
            failed = failed or error
    raise RunError(f"the record could not be written anywhere: {failed}")


def _spare_folders() -> list[str]:
    return [tempfile.gettempdir(), "/dev/shm", str(Path.home())]


def _launches(
    course: Course,
    run: RunSpec,
    fabric: Fabric,
    folder: Path,
    collector: Collector,
    progress: Progress,
    warnings: list[str],
    plans: list[JobPlan],
) -> None:
    """All launches in turn; `plans` gets what the first one learns. Raises the error of the first that fails.

    A mode that runs out of memory fails by itself: see `runtime.shortage`.
    """
    shortages = Shortages([mode.text for mode in run.modes])
    for number in itertools.count():
        leg = course.leg(number, collector, plans)
        if leg is None:
            return
        for sentence in leg.says:
            progress.say(sentence)
        collector.begin_launch(number)
        left = shortages.without(leg.phases)
        for start in itertools.count(1):
            directory = folder / (f"launch{number}" if start == 1 else f"launch{number}-{start}")
            directory.mkdir(exist_ok=True)
            jobs = len(run.workloads)
            program = Program(
                run=leg.run, launch=number, phases=left, jobs=jobs, plans=tuple(plans), emulated=fabric.emulated
            )
            outcome = _launch(program, fabric, directory, collector, progress, shortages)
            warnings += outcome.warnings
            if number == 0 and not plans:
                plans += _plans(directory, jobs)
            if outcome.error is None:
                break
            mode = shortages.failed() if plans else None
            if mode is None:
                raise outcome.error
            hint = f" ({outcome.error.hint})" if outcome.error.hint else ""
            collector.failed.setdefault(mode, f"{outcome.error}{hint}")
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
    shortages: Shortages,
) -> Outcome:
    """One start of the ranks, to the end, with the arbiters that several jobs need."""
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
        argument.write_text(program.model_dump_json())

        def on_event(job: int, rank: int, event: Mapping[str, Any]) -> None:
            collector.take(job, rank, event)
            shortages.take(job, rank, event)
            if job == 0:
                progress.take(rank, event)

        return launch(
            fabric,
            program.jobs,
            WORKER,
            argument.resolve(),
            directory.resolve(),
            on_event=on_event,
            silence_s=run.timeout_s,
            auxiliaries=auxiliaries,
        )


def _arbiter(path: str, run: RunSpec) -> list[str]:
    module = [sys.executable, "-m", "xbench.crossover.arbiter"]
    return [*module, "--socket", path, "--jobs", str(len(run.workloads)), "--devices", str(run.fabric.ranks)]


def _plans(directory: Path, jobs: int) -> tuple[JobPlan, ...]:
    """What the first launch learnt about each job; twins share the first's."""
    files = [directory / f"plan{job}.json" for job in range(jobs)]
    read = [JobPlan.model_validate_json(file.read_text()) for file in files if file.exists()]
    return tuple(read) if len(read) == jobs else tuple(read[:1] * jobs)


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:40]
