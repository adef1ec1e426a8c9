"""`xbench converge` in the parent: resolve, set up the fabric, start the ranks, build the record.

One launch trains everything (`rank.converge`). Finished trainings are in the ranks' journals, so a run that dies keeps
its curves. If this process is killed, `runs.rebuild` builds the record from them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from xbench.config import ConvergeConfig
from xbench.distribution import install_extra
from xbench.errors import SpecError, UsageError
from xbench.modes import IN_SEQUENCE, mode_info
from xbench.rank.events import Event, ModeFailed, ModeTrained, Warned
from xbench.rank.journal import to_all
from xbench.rank.program import ConvergeProgram, Phase, TrainingPlan
from xbench.records import Convergence, ConvergenceCurve, Dataset, Training
from xbench.runs.fabric_run import FabricRun
from xbench.runs.frames import ConvergenceFrame
from xbench.runs.prepare import prepare
from xbench.runs.progress import Progress, Trainings
from xbench.runs.run_folder import Kept, check_output, new_run_folder
from xbench.schedules import cycle_of
from xbench.spec import Effort, FabricSpec, RunSpec, WorkloadSpec
from xbench.stats.convergence import converged
from xbench.stats.steps import longest_steps, odd_step_sentences, steps_of_all
from xbench.text import counted
from xbench.units import format_percent, format_seconds
from xbench.workloads import check_plain_step
from xbench.workloads.catalog import facts_of, family_of
from xbench.workloads.probe import Preflight

RANK = "xbench.rank.converge"
TRAIN, TEST, CLASSES = 1437, 360, 10
"""Sizes of the digits as `workloads.digits` splits them."""

DIGITS = Dataset(
    name="digits",
    source="scikit-learn's load_digits: 1797 grey images of 8×8 pixels of handwritten digits, the test half of UCI's "
    "Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998, CC BY 4.0); a stratified fifth is kept for "
    "testing",
    train=TRAIN,
    test=TEST,
    classes=CLASSES,
)
PROFILE_STEPS = 8
LR = {"sgd": 0.01, "adamw": 1e-4}
"""Default initial learning rate by optimizer."""

Value = TypeVar("Value")


IMAGE_SIZE, BATCH_SIZE = 32, 32
"""Defaults for image models. The digits have 8 × 8 pixels, and larger batches mean fewer all-reduces an epoch."""


def sized(spec: WorkloadSpec) -> WorkloadSpec:
    """Return the workload with this command's default sizes, if it is an image model and the user gave none."""
    if family_of(spec.name) != "vision":
        return spec
    facts = facts_of(spec.name)
    smallest = max(IMAGE_SIZE, facts.minimum)
    size = spec.image_size or -(-smallest // facts.multiple) * facts.multiple
    return spec.model_copy(update={"image_size": size, "batch_size": spec.batch_size or BATCH_SIZE})


def check(config: ConvergeConfig) -> None:
    """Raise a UsageError for a request that cannot be trained, before anything is started."""
    if importlib.util.find_spec("sklearn") is None:
        raise UsageError("the digits come with scikit-learn, which is not installed", hint=install_extra("converge"))
    if family_of(config.workloads[0].name) not in ("vision", "factory"):
        raise SpecError(
            f"the digits are images, and {config.workloads[0].title} takes none", hint="try xbench converge resnet18"
        )
    check_plain_step(config.workloads[0], "converge")
    for mode in config.modes:
        if mode.name == IN_SEQUENCE or not mode_info(mode.name).trains:
            raise SpecError(f"--modes: {mode.text!r} trains no network of its own", hint="try --modes ddp,spb")
        if mode_info(mode.name).compiled:
            raise SpecError(
                f"--modes: {mode.text!r} is compiled, and converge trains eagerly", hint="try --modes ddp,spb"
            )
    check_fabric(config.fabric)


def check_fabric(fabric: FabricSpec) -> None:
    """Raise SpecError for a fabric, as typed or as `auto` chose it, on which no ranks are started that average."""
    if fabric.name in ("emulated", "cluster"):
        raise SpecError(
            f"converge starts real ranks that average real gradients, and not on fabric {fabric.name!r}",
            hint="try --device cpu --fabric local:ranks=2",
        )


def steps_of(config: ConvergeConfig, batch: int) -> tuple[int, int]:
    """Return (steps of one seed, steps an epoch) for `batch` samples over all workers. Raises SpecError."""
    an_epoch = TRAIN // batch
    if an_epoch < 1:
        raise SpecError(
            f"a batch of {batch} samples over all workers is more than the {TRAIN} digits", hint="try --batch-size 16"
        )
    steps = config.epochs * an_epoch if config.samples is None else config.samples // batch
    if steps < 1:
        raise SpecError(
            f"--samples: {config.samples} is less than one batch of {batch} over all workers",
            hint=f"try --samples {batch}",
        )
    return steps, an_epoch


def execute(config: ConvergeConfig, console: Console) -> Kept[Convergence]:
    """Train, and save the record. Errors before the fabric is open are raised; later ones are in the result."""
    check(config)
    effort = Effort(launches=1, rounds=1, profile_steps=PROFILE_STEPS)
    workload = sized(config.workloads[0])
    check_output(config.output)
    run, found, notes = prepare(replace(config, workloads=[workload], effort=effort))
    check_fabric(run.fabric)
    world = run.fabric.world_size
    if world < 2:
        raise SpecError("one worker has nobody to average gradients with", hint="try --fabric local:ranks=2")
    record = found.workloads[0].record
    batch = record.batch_size * world
    steps, an_epoch = steps_of(config, batch)
    seeds = [config.workloads[0].seed + place for place in range(config.seeds)]
    training = Training(
        seeds=seeds, steps=steps, samples=steps * batch, epochs=steps / an_epoch, batch_size=record.batch_size,
        optimizer=record.spec.optimizer, lr=config.lr if config.lr is not None else LR[record.spec.optimizer],
    )  # fmt: skip
    folder = new_run_folder(config.output, f"convergence-{record.title.replace(':', '-')}")
    progress = Progress(console, launches=1)
    for note in notes:
        progress.say(note)
    progress.say(f"{record.title}: {record.input}, batch {record.batch_size} a worker, {run.device}")
    counts = (
        f"{counted(len(run.modes), 'mode')}, {counted(config.seeds, 'seed')} of each, {counted(steps, 'step')} a seed"
    )
    progress.say(f"{counts} ({training.epochs:.3g} epochs)")
    return ConvergeRun(run, found, progress, folder, training, an_epoch).execute()


class ConvergeRun(FabricRun[ConvergenceFrame, Convergence]):
    """A run with one launch, which trains everything."""

    def __init__(
        self, run: RunSpec, found: Preflight, progress: Progress, folder: Path, training: Training, an_epoch: int
    ) -> None:
        super().__init__(run, found, progress, folder)
        self.training, self.an_epoch = training, an_epoch
        self.trainings = Trainings(progress, run.modes, len(training.seeds), -(-training.steps // an_epoch))
        self.curves = Curves(run.fabric.world_size, run, an_epoch, progress.say, self.trainings.standing)

    def frame(self) -> ConvergenceFrame:
        """Return the record's fields besides its curves."""
        return ConvergenceFrame(
            **self.fields(),
            label=self.fabric.label,
            workload=self.found.workloads[0].record,
            training=self.training,
            an_epoch=self.an_epoch,
        )

    def record(self, frame: ConvergenceFrame, error: str | None) -> Convergence:
        """Return the record of the complete curves."""
        return convergence_record(frame, self.curves, error)

    def measure(self) -> None:
        """Start the ranks and wait for their end. Raises the error that ended them early."""
        self.write_frame()
        training = TrainingPlan(
            **self.training.model_dump(include={"seeds", "steps", "batch_size", "lr"}), steps_per_epoch=self.an_epoch
        )
        program = ConvergeProgram(
            run=self.run, launch=0, phases=(Phase(kind="profile"),), jobs=len(self.run.workloads), training=training
        )
        take = to_all(self.trainings.take, self.curves.take)
        outcome = self.start_ranks(program, RANK, self.folder, take)
        self.curves.warnings += outcome.warnings
        if outcome.error is not None:
            raise outcome.error


def convergence_record(frame: ConvergenceFrame, curves: Curves, error: str | None) -> Convergence:
    """Build the record of the complete curves. `error` is the reason why others are missing."""
    run, whole = frame.run, curves.whole
    cycles = {mode.text: cycle_of(mode) for mode in run.modes}
    odd = odd_step_sentences((f"{one.mode}, seed {one.seed}", one.steps_s, cycles[one.mode]) for one in whole)
    return Convergence(
        created=frame.created,
        command=frame.command,
        environment=frame.environment,
        fabric=frame.fabric,
        label=frame.label,
        complete=error is None,
        error=error,
        warnings=[*frame.warnings, *curves.warnings, *odd],
        workload=frame.workload,
        dataset=DIGITS,
        training=frame.training,
        reference=run.reference or run.modes[0].text,
        modes=converged(cycles, whole, run.reference or "", curves.failed, complete=error is None),
        curves=whole,
    )


class Curves:
    """Finished trainings. A curve is complete once every rank of the job has written its part.

    `an_epoch` is the number of steps after which ranks synchronise. `standing` returns the progress of all trainings,
    for the line of each curve.
    """

    def __init__(
        self, world: int, run: RunSpec, an_epoch: int, say: Callable[[str], None], standing: Callable[[], str] = str
    ) -> None:
        self.whole: list[ConvergenceCurve] = []
        self.failed: dict[str, str] = {}
        self.warnings: list[str] = []
        self._parts: dict[tuple[str, int, int], dict[int, ModeTrained]] = {}
        self._world, self._run, self._an_epoch, self._say = world, run, an_epoch, say
        self._standing = standing

    def take(self, job: int, rank: int, event: Event) -> None:
        """Take one event of a rank's journal."""
        match event:
            case ModeFailed() if event.mode not in self.failed:
                self.failed[event.mode] = event.message
                self._say(f"{event.mode} cannot train this: {event.message}")
            case Warned() if event.message not in self.warnings:
                self.warnings.append(event.message)
            case ModeTrained():
                parts = self._parts.setdefault((event.mode, event.seed, job), {})
                parts[rank] = event
                if len(parts) == self._world:
                    self._add([parts[place] for place in range(self._world)])

    def _steps_s(self, mode: str, per_rank_s: Sequence[Sequence[float]]) -> list[float]:
        """Return step times of all ranks (`stats.steps`). Ranks begin each epoch together."""
        if next(ran.carrier for ran in self._run.modes if ran.text == mode) == "compute":
            return longest_steps(per_rank_s)
        starts = range(0, len(per_rank_s[0]), self._an_epoch)
        return [
            step_s
            for start in starts
            for step_s in steps_of_all([steps_s[start : start + self._an_epoch] for steps_s in per_rank_s])
        ]

    def _add(self, parts: Sequence[ModeTrained]) -> None:
        first = parts[0]
        mode, seed = first.mode, first.seed
        if any(curve.mode == mode and curve.seed == seed for curve in self.whole):
            return  # an odd number of seeds in pairs trains one of them twice
        # On one machine all workers share the device, so every worker counts the traffic of all.
        hosts = self._run.fabric.hosts
        sent = [part.sent_bytes for part in parts if part.sent_bytes]
        curve = ConvergenceCurve(
            mode=mode,
            seed=seed,
            train_loss=[sum(losses) / len(losses) for losses in zip(*(p.train_loss for p in parts), strict=True)],
            test_loss=first.test_loss,
            test_accuracy=first.test_accuracy,
            steps_s=self._steps_s(mode, [part.steps_s for part in parts]),
            sent_bytes=sum(sent) / len(sent) * hosts / self._world if sent else None,
            activation_bytes=_known(p.activation_bytes for p in parts),
            activation_peak_bytes=_known(p.activation_peak_bytes for p in parts),
            backward_flops=_known(p.backward_flops for p in parts),
            formula=_known(p.formula for p in parts),
            device_peak_bytes=_known(p.device_peak_bytes for p in parts),
            ranks_agree=len({p.digest for p in parts}) == 1,
        )
        self.whole.append(curve)
        steps = sorted(curve.steps_s)
        self._say(
            f"{mode}, seed {seed}: accuracy {format_percent(curve.test_accuracy[-1], 1)}, "
            f"a step {format_seconds(steps[len(steps) // 2])}; {self._standing()}".removesuffix("; ")
        )


def _known(values: Iterable[Value | None]) -> list[Value]:
    return [value for value in values if value is not None]
