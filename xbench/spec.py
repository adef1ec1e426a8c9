"""Specification of a run: validated on construction, immutable, the same in the parent, the ranks and the record.

All input of users is parsed into these types. A spec string is `name` or `name:key=value,key=value`. Nothing in this
module imports torch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from xbench.errors import SpecError, nearest
from xbench.field_types import MAX_COUNT, PositiveCount, Text
from xbench.former_words import former
from xbench.modes import IN_SEQUENCE, mode_info
from xbench.text import cut


class Spec(BaseModel):
    """Base of all specs: frozen; refuses unknown fields, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


DType = Literal["fp32", "bf16"]
Amp = Literal["bf16", "fp16"]
OptimizerName = Literal["sgd", "adamw"]
OptimizerImpl = Literal["default", "foreach", "fused"]
DeviceType = Literal["cpu", "cuda"]
Compress = Literal["bf16"]
Variation = Literal["rank", "none"]
MAX_ACCUMULATE = 1024
"""Most micro-steps of a step."""
MAX_CLIP = 1e9


class WorkloadSpec(Spec):
    """One training step: model, batch, loss, optimizer. None stands for the default for the device."""

    name: Text
    batch_size: int | None = Field(default=None, ge=1)
    image_size: int | None = Field(default=None, ge=1)
    seq_len: int | None = Field(default=None, ge=1)
    dtype: DType = "fp32"
    optimizer: OptimizerName = "sgd"
    optimizer_impl: OptimizerImpl = Field(
        default="default", description="kernels of the optimizer; default: torch's choice for the device"
    )
    seed: int = Field(default=0, ge=0)
    variation: Variation | None = Field(
        default=None,
        description="how a factory's batch differs by rank; null: by which of its samples stand twice; rank: as the "
        "factory makes it; none: not at all",
    )
    accumulate: int = Field(
        default=1, ge=1, le=MAX_ACCUMULATE, description="forward and backward passes of a step; the last one sends"
    )
    amp: Amp | None = Field(
        default=None, description="type of autocast in the forward pass, fp16 with a GradScaler; null: no autocast"
    )
    checkpoint: Literal["blocks"] | None = Field(
        default=None, description="whose activations backward computes again; null: all are kept"
    )
    clip: float | None = Field(
        default=None, gt=0, le=MAX_CLIP, description="largest norm of a step's gradients; null: they are not clipped"
    )

    @property
    def updates_together(self) -> str | None:
        """The option with which every update waits for all gradients; None without one."""
        return "--clip" if self.clip is not None else "--amp fp16" if self.amp == "fp16" else None

    @property
    def title(self) -> str:
        """Short name for tables: 'resnet50', 'timm/resnet50', 'train.py:make'."""
        return self.name.rsplit("/", 1)[-1] if ".py:" in self.name else self.name


class FabricSpec(Spec):
    """Fabric that connects the workers.

    `local`: `ranks` processes on this machine. `shaped`: `hosts` network namespaces of `ranks` processes each, joined
    by links limited to `rate` (tc's notation). `emulated`: `ranks` processes that represent `workers`. Their
    collectives take as long as `rate`, `latency` and `topology` predict, or as measured in the record `source`.
    `cluster`: ranks that torchrun, srun or mpirun started. `auto`: chosen by `xbench.fabrics.choose`.
    """

    name: Literal["auto", "local", "shaped", "emulated", "cluster"]
    hosts: PositiveCount = 1
    ranks: PositiveCount = 1
    rate: Text | None = None
    workers: int | None = Field(default=None, ge=2, le=MAX_COUNT, description="of an emulated fabric")
    latency: Text | None = Field(default=None, description="of a message on an emulated link")
    topology: Text | None = Field(default=None, description="by which emulated workers are joined")
    source: Text | None = Field(default=None, description="the record that an emulated link is as")
    contention: Text | None = Field(
        default=None, description="of an emulated link: on (the record's), off, or by how much it slows computation"
    )

    @property
    def processes(self) -> int:
        """Number of ranks of one job that really run."""
        return self.hosts * self.ranks

    @property
    def world_size(self) -> int:
        """Number of workers of one job, emulated ones included."""
        return self.workers or self.processes

    def __str__(self) -> str:
        if self.name == "emulated":
            said = {"from": self.source, "workers": self.workers, "rate": self.rate, "latency": self.latency}
            said |= {"topology": self.topology, "contention": self.contention}
            said |= {"ranks": self.ranks if self.ranks != 1 else None}
            return "emulated:" + ",".join(f"{key}={value}" for key, value in said.items() if value is not None)
        if self.name == "shaped":
            ranks = f",ranks={self.ranks}" if self.ranks != 1 else ""
            return f"shaped:hosts={self.hosts},rate={self.rate}{ranks}"
        return f"local:ranks={self.ranks}" if self.name == "local" else self.name


class ModeSpec(Spec):
    """One column of a comparison: `optimal`, `crossover`, `crossover:mgwfbp`, `horovod:fusion=32`.

    `text` is the user's input and the key in the record. `carrier` is the single-job schedule that carries the
    gradients; for a single-job mode, the mode itself. `options` are the schedule's own, checked, as pairs of key and
    value.
    """

    text: Text
    name: Text
    carrier: Text
    paired: bool = False
    options: tuple[tuple[Text, Text], ...] = ()


PROFILE_STEPS = 16


class Effort(Spec):
    """Amount of measurement. A launch is one start of the ranks; a round times one block of every mode."""

    launches: int = Field(default=2, ge=1, le=100)
    rounds: int = Field(default=6, ge=1, le=1000)
    steps: int | None = Field(default=None, ge=2, le=10000, description="timed steps a block; None: to fill about 3 s")
    warmup_steps: int = Field(default=2, ge=1, le=100)
    parity_steps: int = Field(default=3, ge=1, le=100)
    profile_steps: int = Field(default=PROFILE_STEPS, ge=3, le=1000)

    @property
    def is_quick(self) -> bool:
        """True if the profile, and every other measurement before the timed blocks, is shorter than usual."""
        return self.profile_steps < PROFILE_STEPS


class RunSpec(Spec):
    """A whole `profile` or `compare` run, with every default resolved."""

    kind: Literal["profile", "comparison"]
    workloads: tuple[WorkloadSpec, ...] = Field(min_length=1)
    modes: tuple[ModeSpec, ...] = ()
    reference: Text | None = None
    fabric: FabricSpec
    effort: Effort = Effort()
    device: DeviceType = "cpu"
    gpu: int | None = Field(default=None, ge=0, description="the GPU that --device cuda:N picked; null: one a rank")
    timeout_s: float = Field(default=120.0, gt=0, description="longest silence of a rank before it counts as hung")
    host_tuning: bool | None = Field(
        default=None,
        description="whether ranks on CPUs keep freed memory and raise Gloo's threads; null in records that do not say",
    )
    compress: Compress | None = Field(default=None, description="what fp32 gradients travel as; null: as they are")

    def reference_of(self, mode: ModeSpec) -> str:
        """Return the mode that this mode's step time is divided by. One job is compared with one, and two with two.

        If the run's reference is of the other sort, a paired mode gets `sequential`. A mode of one job gets `ddp` or
        the first schedule. If there is no such mode, the run's reference is returned.
        """
        own = self.reference or self.modes[0].text
        if any(other.text == own and other.paired == mode.paired for other in self.modes):
            return own
        alike = [m for m in self.modes if m.paired == mode.paired and mode_info(m.name).reducer != "none"]
        names = [IN_SEQUENCE] if mode.paired else ["ddp", *(other.name for other in alike)]
        return next((other.text for name in names for other in alike if other.name == name), own)

    @property
    def tunes_ranks(self) -> bool:
        """True if ranks are tuned (`host_tuning`). Only ranks that compute on CPUs are."""
        return bool(self.host_tuning) and self.device == "cpu"

    @property
    def profiles_apart(self) -> bool:
        """True if the launch that profiles times nothing: its ranks' memory would not be that of a plain script.

        It is so for ranks on CPUs without host tuning (`host_tuning`): the page faults of a step depend on what the
        process has freed before. Ranks that another program starts are started once, and time their blocks there.
        """
        untuned = self.host_tuning is False and self.device == "cpu"
        return self.kind == "comparison" and untuned and self.fabric.name != "cluster"

    @property
    def processes(self) -> int:
        """Number of our processes on each device: 2 if two jobs run at once. The first then holds both jobs too."""
        return 2 if any(mode_info(mode.name).sharing == "at once" for mode in self.modes) else 1

    @property
    def backend(self) -> str:
        """Process-group backend of the ranks that really run. NCCL needs a GPU each; emulated workers may share one."""
        return "nccl" if self.device == "cuda" and self.fabric.name != "emulated" else "gloo"


def parse_options(text: str) -> tuple[str, dict[str, str]]:
    """Split 'name:key=value,key=value' into its name and options.

    Raises SpecError for an empty name, an option without '=', an empty key or value, or a key given twice.
    """
    name, colon, rest = text.partition(":")
    name, rest = name.strip(), rest.strip()
    if not name:
        raise SpecError(f"{text!r} has no name", hint="write name or name:key=value,key=value")
    options: dict[str, str] = {}
    if colon and not rest:
        raise SpecError(f"{text!r} ends with ':' and has no options", hint=f"write {name} or {name}:key=value")
    for part in rest.split(",") if rest else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise SpecError(f"{part!r} in {text!r} is not an option", hint="write key=value")
        if key in options:
            raise SpecError(f"{key!r} stands twice in {text!r}", hint=f"write {key}= once")
        options[key] = value
    return name, options


def refuse_former(text: str, key: str) -> None:
    """Raise SpecError for a former key of `text`'s name."""
    if instead := former("key", f"{text.partition(':')[0]}:{key}"):
        raise SpecError(f"{text!r}: {key}= is gone: {instead}")


def known_options(text: str, options: dict[str, str], allowed: tuple[str, ...]) -> None:
    """Raise SpecError for an option that `text`'s name does not take, with the nearest one that it takes."""
    for key in options:
        if key not in allowed:
            refuse_former(text, key)
            close = nearest(key, allowed)
            takes = ", ".join(allowed) if allowed else "no options"
            raise SpecError(
                f"{text!r}: unknown option {key!r}", hint=f"did you mean {close!r}?" if close else f"it takes {takes}"
            )


def parse_int(text: str, key: str, value: str, low: int, high: int) -> int:
    """Parse an integer option within [low, high]. Raises SpecError."""
    shown, where = cut(value, 100), cut(text, 100)
    try:
        number = int(value)
    except ValueError:
        raise SpecError(f"{where!r}: {key}={shown} is not a whole number", hint=f"{low} to {high}") from None
    if not low <= number <= high:
        clamped = min(max(number, low), high)
        raise SpecError(f"{where!r}: {key}={shown} is out of range {low} to {high}", hint=f"try {key}={clamped}")
    return number
