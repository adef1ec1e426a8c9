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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from rich.console import Console

from xbench import environment, gpu_errors
from xbench.errors import Interrupted, RunError, SpecError, XbenchError
from xbench.fabrics import choose, open_fabric, rootless
from xbench.fabrics.cluster import cluster_rank, divided
from xbench.fabrics.engines import ranks_around
from xbench.fabrics.fabric import Fabric
from xbench.fabrics.meeting import check_meeting_point
from xbench.planning.plans import NEED_COST
from xbench.records import Comparison, Profile, save
from xbench.runtime.assemble import Frame, comparison_record, profile_record
from xbench.runtime.collect import Collector
from xbench.runtime.course import Course, Fixed
from xbench.runtime.inside import excused, our_rank, run_inside
from xbench.runtime.launch import AuxiliaryCommand, Outcome, launch
from xbench.runtime.program import JobPlan, Program
from xbench.runtime.progress import Progress, stamp
from xbench.runtime.shortage import Shortages
from xbench.runtime.unavailable import backend_of, check_available, check_real
from xbench.schedules.copies import chosen_copies
from xbench.spec import (
    Collectives,
    Compress,
    Copies,
    DeviceType,
    Effort,
    FabricSpec,
    GlooThreads,
    ModeSpec,
    Overlap,
    RunSpec,
    WorkloadSpec,
)
from xbench.workloads.probe import Preflight, probe

MAX_JOBS = 2
WORKER = "xbench.runtime.worker"


@dataclass
class RunRequest:
    """What a user asked for, parsed and not yet resolved."""

    kind: Literal["profile", "comparison"]
    workloads: Sequence[WorkloadSpec]
    fabric: FabricSpec
    effort: Effort
    modes: Sequence[ModeSpec] = ()
    reference: str | None = None
    device: str = "auto"
    """auto, cpu, cuda, or cuda:N for one GPU."""
    gloo_threads: GlooThreads = "first"
    nvtx: bool = False
    timeout_s: float = 120.0
    output: Path = Path("results/runs")
    copies: Copies | None = None
    """None: the way of the backend (`schedules.copies`)."""
    compress: Compress | None = None
    overlap: Overlap = "backward"
    """Whether `auto` may let gradients travel on into the next forward pass."""
    collectives: Collectives = "torch"
    argv: Sequence[str] = field(default_factory=lambda: ["xbench", *sys.argv[1:]])
    course: Course | None = None
    """What decides on each launch; None: `effort` does."""


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


def check_request(request: RunRequest) -> tuple[tuple[WorkloadSpec, ...], tuple[ModeSpec, ...]]:
    """Workloads (one, twice, where a paired mode needs two) and modes that fit each other. Raises SpecError."""
    workloads, modes = tuple(request.workloads), tuple(request.modes)
    if not workloads:
        raise SpecError("no workload was named", hint="xbench workloads lists them")
    paired = [mode.text for mode in modes if mode.paired]
    in_turns = next((mode.text for mode in modes if mode.name == "crossover" and mode.carrier == "auto"), None)
    if request.overlap == "forward" and in_turns is not None:
        raise SpecError(
            f"{in_turns} waits for a job's gradients before its next turn, and --overlap forward lets auto wait in it",
            hint="write crossover:optimal",
        )
    if len(workloads) > MAX_JOBS:
        raise SpecError(f"{len(workloads)} workloads were named, and at most {MAX_JOBS} jobs can share the devices")
    if paired and len(workloads) == 1:
        workloads = workloads * 2
    if request.reference is not None and request.reference not in [mode.text for mode in modes]:
        raise SpecError(
            f"the reference {request.reference!r} is not among the modes",
            hint=f"it can be {', '.join(m.text for m in modes)}",
        )
    distinct = len(set(workloads)) > 1
    if paired and distinct and not any(m.name == "sequential" for m in modes):
        # Two different jobs at once are compared through what each takes alone, so that must be measured as well.
        modes = (*modes, ModeSpec(text="sequential", name="sequential", carrier="ddp", paired=True))
    return workloads, modes


def prepare(request: RunRequest, console: Console) -> tuple[RunSpec, Preflight, list[str]]:
    """Fill in every default and check everything that can be checked before a rank is started.

    Returns the spec, what the probe found, and sentences for the user. Raises UsageError.
    """
    workloads, modes = check_request(request)
    _check_nvtx(request.nvtx, request.device)
    chosen_copies(request.copies, "", request.compress)
    notes = check_available(modes, request.collectives, request.compress)
    ours = ranks_around(os.environ) if request.fabric.name == "auto" else None
    if request.fabric.name != "auto" or (ours is not None and ours.world_size > 1):
        # The probe takes seconds, so what is wrong whatever it finds is said before it.
        asked, _ = _chosen(request.fabric, 0, len(workloads))
        _check_fabric(asked, workloads, modes)
        check_real(asked, modes, request.collectives)
        if rootless.reexec_needed(asked):
            rootless.reexec(sys.argv)
    found = probe(list(workloads), request.device, _ranks_here(request.fabric, len(workloads)))
    if found.gpu_trouble is not None and request.device == "auto":
        notes.append(f"no GPU is used: {found.gpu_trouble}")
    if found.device == "cuda" and found.gpus == 1 and request.device == "auto" and request.fabric.name == "auto":
        notes.append(
            "one GPU has nobody to communicate with, so this runs on the CPU; --device cuda --fabric emulated uses it, "
            "with collectives that take as long as a link's figures say"
        )
        found = probe(list(workloads), "cpu", _ranks_here(request.fabric, len(workloads)))
    device: DeviceType = found.device
    _check_nvtx(request.nvtx, device)
    fabric, reason = _chosen(request.fabric, found.gpus if device == "cuda" else 0, len(workloads))
    if request.fabric.name == "auto":
        notes.append(reason)
    if fabric.name == "cluster" and len(workloads) > 1:
        notes.append(
            f"two jobs: the ranks are divided, half of each host's for each, so every mode runs on {fabric.world_size} "
            f"of the {2 * fabric.world_size} as workers of its job"
        )
    if rootless.reexec_needed(fabric):
        rootless.reexec(sys.argv)
    _check_fabric(fabric, workloads, modes)
    if fabric.world_size < 2:
        unplanned = [mode.text for mode in modes if mode.name in NEED_COST]
        modes = tuple(mode for mode in modes if mode.name not in NEED_COST)
        if unplanned:
            notes.append(
                f"left out, because they are planned from a link's speed and no link is used: {', '.join(unplanned)}"
            )
        notes.append("a world of one: nothing travels, so this shows what a schedule itself costs the training loop")
    apart = fabric.name == "cluster" and found.gpus == 1 and os.environ.get("CUDA_VISIBLE_DEVICES")
    if device == "cuda" and fabric.name != "emulated" and not apart:  # whose ranks may share a GPU, or see only theirs
        ranks = _ranks_here(fabric, len(workloads))
        gpu_errors.check_ranks(str(fabric), ranks, found.gpus, found.gpu, found.nccl, os.environ)
    resolved = tuple(found.specs)
    reference = request.reference
    if reference is not None and reference not in [mode.text for mode in modes]:
        raise SpecError(f"the reference {reference!r} is planned from a link's speed, and {fabric} has no link")
    if request.kind == "comparison" and reference is None:
        reference = next((m.text for m in modes if m.name == "ddp"), modes[0].text)
    compress = request.compress
    if compress is not None and all(spec.dtype == compress for spec in resolved):
        notes.append(f"nothing to compress: gradients are {compress} already")
        compress = None
    run = RunSpec(
        kind=request.kind,
        workloads=resolved,
        modes=modes,
        reference=reference,
        fabric=fabric,
        effort=request.effort,
        device=device,
        gpu=found.gpu,
        timeout_s=request.timeout_s,
        gloo_threads=request.gloo_threads,
        nvtx=request.nvtx,
        copies=chosen_copies(
            request.copies, "nccl" if device == "cuda" and fabric.name != "emulated" else "gloo", compress
        ),
        compress=compress,
        overlap=request.overlap,
        collectives=request.collectives,
    )
    return run, found, notes


def _chosen(asked: FabricSpec, gpus: int, jobs: int) -> tuple[FabricSpec, str]:
    """The fabric as each job sees it, and why it is this one. Raises SpecError."""
    fabric, reason = choose(asked, gpus)
    if fabric.name == "cluster":
        check_meeting_point(cluster_rank(os.environ), os.environ)
        fabric = divided(fabric, jobs)
    return fabric, reason


def _check_fabric(fabric: FabricSpec, workloads: Sequence[WorkloadSpec], modes: Sequence[ModeSpec]) -> None:
    """Raise SpecError for jobs or modes that a resolved fabric cannot serve."""
    if fabric.world_size >= 2 or not modes:
        return
    paired = [mode.text for mode in modes if mode.paired]
    if paired:
        raise SpecError(
            f"mode {paired[0]!r} needs gradients that travel, and {fabric} has 1 rank"
            + (" for each job" if fabric.name == "cluster" else ""),
            hint="start more ranks" if fabric.name == "cluster" else "try --fabric local:ranks=2",
        )
    if all(mode.name in NEED_COST for mode in modes):
        raise SpecError(
            f"mode {modes[0].text!r} is planned from a link's speed, and {fabric} has 1 rank and no link",
            hint="try --fabric local:ranks=2, or --modes compute,ddp,single,wfbp",
        )


def _check_nvtx(asked: bool, device: str) -> None:
    """Raise SpecError for ranges of GPU work on a CPU."""
    if asked and device == "cpu":
        raise SpecError(
            "--nvtx marks the work of GPUs for Nsight Systems, and this would run on the CPU",
            hint="leave --nvtx out, or try --device cuda --fabric local:ranks=1",
        )


def _check_output(output: Path) -> None:
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
        _check_output(request.output)
    try:
        run, found, notes = prepare(request, console)
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
            sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xb-")))
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


def _ranks_here(fabric: FabricSpec, jobs: int) -> int:
    """Ranks of one job on this machine, before `auto` is resolved: for the estimate of memory."""
    ours = ranks_around(os.environ) if fabric.name in ("auto", "cluster") else None
    if ours is not None and (ours.world_size > 1 or fabric.name == "cluster"):
        return max(1, ours.local_world_size // jobs)
    return 2 if fabric.name == "auto" else fabric.processes


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:40]
