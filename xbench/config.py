"""Options of the commands that measure, one field an option: flag, help, choices and reader.

A command names the fields that it takes (`commands.options.takes`). It gets them as one frozen value and passes that
value on unchanged. `runs.prepare` resolves a `RunConfig` to the `RunSpec` of ranks and records. To add an option, add a
field here, name it in the command, and use it in what it configures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from xbench.errors import SpecError
from xbench.modes import COMPARED, CONVERGED, TUNED
from xbench.option_fields import Device, StepOptions, choice, group, option, parsed, read_timeout, whole, within
from xbench.record_files import results_folder
from xbench.units import parse_seconds

if TYPE_CHECKING:
    from xbench.spec import Compress, Effort, FabricSpec, ModeSpec, WorkloadSpec

QUICK_PROFILE = 8
"""Steps that `--quick` times layer by layer."""


def read_fabric(text: str) -> FabricSpec:
    """Parse the spec string of a fabric. Raises SpecError."""
    from xbench.fabrics import parse_fabric

    return parse_fabric(text)


def _modes(text: str) -> tuple[ModeSpec, ...]:
    from xbench.schedules import parse_modes

    return parse_modes(text)


def _learning_rate(value: float) -> float:
    if math.isfinite(value) and 0 < value <= 100:
        return value
    raise SpecError(f"--lr: {value:g} is not above 0 and up to 100", hint="try --lr 0.01")


def _modes_option(default: str, told: str) -> Any:
    return option("--modes", default=default, unset=(), read=_modes, metavar="A,B,...", help=told)


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(StepOptions):
    """Names of workloads, and the options that apply to all of them."""

    names: str | Sequence[str] = ()

    def read(self) -> tuple[WorkloadSpec, ...]:
        """Parse the workloads; resnet50 if none is named. Raises SpecError."""
        from xbench.workloads import parse_workload

        names = (self.names,) if isinstance(self.names, str) else self.names or ("resnet50",)
        values = {key: value for key, value in vars(self).items() if key != "names"}
        return tuple(parse_workload(name, **values) for name in names)


@dataclass(frozen=True, kw_only=True)
class EffortOptions:
    """Amount of measurement: a preset, and single values that override it."""

    launches: int | None = whole("--launches", 1, 100, help="Independent starts of the ranks.  [default: 4]")
    rounds: int | None = whole("--rounds", 1, 1000, help="Timed blocks of each mode per launch.  [default: 4]")
    quick: bool = option("--quick", is_flag=True, default=False, help="1 launch of 6 short rounds: a first look.")

    def read(self) -> Effort:
        """Return the effort: 4 launches of 4 rounds, or with `quick` 1 launch of 6 rounds of 4 steps."""
        from xbench.spec import Effort

        preset: dict[str, int] = {"launches": 4, "rounds": 4}
        if self.quick:
            preset = {"launches": 1, "rounds": 6, "steps": 4, "profile_steps": QUICK_PROFILE}
        given = {"launches": self.launches, "rounds": self.rounds}
        return Effort(**preset | {name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class ProfileEffort:
    """Number of steps that a profile times layer by layer: `PROFILE_STEPS`, or `QUICK_PROFILE`."""

    quick: bool = option(
        "--quick", is_flag=True, default=False, help="8 steps, and shorter measurements: a first look."
    )

    def read(self) -> Effort:
        """Return the effort of a profile: one launch."""
        from xbench.spec import PROFILE_STEPS, Effort

        return Effort(profile_steps=QUICK_PROFILE if self.quick else PROFILE_STEPS, launches=1)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Options of `xbench compare`, and the base of the options of other commands."""

    kind: Literal["profile", "comparison"] = "comparison"
    title: str | None = None
    """Title in the name of the run's folder. None stands for `kind`."""
    judged: bool = True
    """True if modes are compared with each other. A paired mode is compared with `sequential`."""
    workloads: Sequence[WorkloadSpec] = group(WorkloadOptions)
    modes: Sequence[ModeSpec] = option(
        "--modes",
        unset=(),
        read=_modes,
        metavar="A,B,...",
        help=f"Modes to compare (xbench list modes). MODE@NAME is a second copy of MODE.  [default: {COMPARED}]",
    )
    """Modes to compare. Empty stands for `COMPARED` in a comparison, and for none in a profile."""
    reference: str | None = option(
        "--reference",
        metavar="MODE",
        help="Mode that the others are compared with; pairs of jobs are compared with sequential.  "
        "[default: ddp, else the first that may be advised]",
    )
    effort: Effort = group(EffortOptions, default_factory=lambda: EffortOptions().read())
    fabric: FabricSpec = option(
        "--fabric",
        default="auto",
        unset=lambda: read_fabric("auto"),
        read=read_fabric,
        metavar="SPEC",
        help="What connects the ranks: local:ranks=N, shaped:hosts=H,rate=R, emulated:workers=N,rate=R, "
        "cluster, or auto.",
    )
    device: str = option(
        "--device",
        type=Device(["auto", "cpu", "cuda"]),
        default="auto",
        metavar="[auto|cpu|cuda|cuda:N]",
        help="Where to compute; auto takes GPUs where there are any, cuda:3 that one.",
    )
    timeout_s: float = option(
        "--timeout",
        default="120s",
        unset=120.0,
        callback=read_timeout,
        metavar="DURATION",
        help="Fail if a rank reports nothing for this long.",
    )
    output: Path = field(default_factory=results_folder)
    compress: Compress | None = choice(
        "--compress",
        "none",
        "bf16",
        default="none",
        unset=None,
        read=lambda value: None if value == "none" else value,
        help="Type that fp32 gradients are sent as, in every mode.",
    )


UNTIL_S = 30 * 60.0
"""Default time limit of `--until` [s]."""


def _until(text: str) -> tuple[float, float]:
    """Read '2%' or '2%,20min' as a share and a time limit [s]. Raises SpecError."""
    share, comma, limit = text.partition(",")
    try:
        percent = float(share.strip().removesuffix("%"))
    except ValueError:
        raise SpecError(f"--until: {share!r} is not a percentage", hint="try --until 2%") from None
    seconds = parsed("--until", parse_seconds, limit) if comma else UNTIL_S
    if not 15 <= seconds <= 86_400:
        raise SpecError(f"--until: {limit} is not in the range 15 s to 1440 min", hint="try --until 2%,30min")
    return within("--until", 0.1, 50.0)(percent) / 100, seconds


@dataclass(frozen=True, kw_only=True)
class CompareConfig(RunConfig):
    """Options of `xbench compare`: launches may be as many as a precision needs."""

    until: tuple[float, float] | None = option(
        "--until",
        read=_until,
        metavar="PERCENT[,TIME]",
        help="Run as many launches as ratios to this precision need, within 30min or TIME: 2%,20min.",
    )


@dataclass(frozen=True, kw_only=True)
class ProfileConfig(RunConfig):
    """Options of `xbench profile`."""

    kind: Literal["profile", "comparison"] = "profile"
    effort: Effort = group(ProfileEffort, default_factory=lambda: ProfileEffort().read())


@dataclass(frozen=True, kw_only=True)
class TuneConfig(RunConfig):
    """Options of `xbench tune`."""

    title: str | None = "tune"
    minutes: float = option(
        "--minutes", type=float, default=10.0, read=within("--minutes", 0.25, 1440.0), help="Time limit in minutes."
    )
    modes: Sequence[ModeSpec] = _modes_option(TUNED, "Candidates to time against ddp; xbench list modes lists them.")
    margin_percent: float = option(
        "--margin",
        type=float,
        default=2.0,
        read=within("--margin", 0.0, 50.0),
        metavar="PERCENT",
        help="Smallest gain that is worth a change.",
    )
    keep: str | None = option(
        "--keep", metavar="FILE", help="File to write the winner to.  [default: tuned.json beside the record]"
    )


@dataclass(frozen=True, kw_only=True)
class ConvergeConfig(RunConfig):
    """Options of `xbench converge`. `samples` counts one seed over all workers, and overrides `epochs`."""

    judged: bool = False
    modes: Sequence[ModeSpec] = _modes_option(CONVERGED, "Modes to train with; xbench list modes lists them.")
    dataset: str = choice(
        "--dataset", "digits", default="digits", help="Data to train on: scikit-learn's handwritten digits."
    )
    seeds: int = whole("--seeds", 1, 100, default=3, help="Trainings of each mode, each from its own seed.")
    epochs: int = whole("--epochs", 1, 1000, default=3, help="Passes over the data in each training.")
    samples: int | None = whole("--samples", 1, 1_000_000_000, help="Samples in each training, in place of --epochs.")
    lr: float | None = option(
        "--lr",
        type=float,
        read=_learning_rate,
        help="Initial learning rate.  [default: 0.01 for sgd, 0.0001 for adamw]",
    )
