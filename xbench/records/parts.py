"""Parts that every kind of record shares: machine, workload, fabric and statistics; and the answer of `xbench env`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from xbench.field_types import Count, PositiveCount, Rate, Text
from xbench.spec import WorkloadSpec

if TYPE_CHECKING:
    from pandas import DataFrame

Label = Literal["real", "emulated", "simulated"]
Verdict = Literal["reference", "faster", "slower", "equivalent", "inconclusive"]
Interval = tuple[float, float]
NOT_TRACED = "not in the trace"
"""Text in place of what a profiler's trace does not tell."""

MAX_INTEGER = 2**63 - 1
"""Largest size, count or seed. Python's integers have no limit, but those above 1e308 cannot be divided."""

MAX_NUMBER = 1e150
"""Largest number in a record that is read. Losses, rates and ratios stay far below it; a product of two is finite.

Apart from zero, no number is closer to zero than its inverse, so that no quotient overflows.
"""

FOREIGN = {"foreign": True}
"""Validation context of a record read from a file. Values measured here are not held to MAX_NUMBER, so none is lost."""


class Part(BaseModel):
    """Base of everything in a record: frozen. It refuses unknown fields, NaN, infinity and out-of-range numbers.

    The validator of a class is made when it is first used: a process uses few of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="after")
    @classmethod
    def _fits(cls, value: Any, info: ValidationInfo) -> Any:
        if _is_beyond(value, MAX_NUMBER if info.context == FOREIGN else math.inf):
            raise PydanticCustomError("too_large", "a number so large, or so close to zero, means nothing here")
        return value


class Result(Part):
    """Base of every kind of record. Its repr is one line, because a record holds up to a million numbers.

    `xbench.report` makes frames and the notebook view. It imports records, so records import it only on demand.
    """

    def frame(self, table: str) -> DataFrame:
        """Return one of the record's tables as a pandas data frame, as `xbench report --csv` writes it.

        A comparison has `samples`, `steps`, `modes` and `layers`; docs/report.md lists the tables of the other kinds.
        Column names end in their unit: `step_s` is in seconds, `grad_bytes` in bytes. Raises UsageError for an unknown
        table, naming the known ones, and where pandas is not installed.
        """
        return import_module("xbench.report.formats.csv").data_frame(self, table)

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("created", "command", "complete")]

    def _repr_html_(self) -> str:
        """Return the headline and a table for a notebook: self-contained, without scripts, all text escaped."""
        shown: str = import_module("xbench.report.formats.html").summary(self)
        return shown


class Headed(Result):
    """Base of the kinds whose fields begin with these."""

    kind: str
    schema_version: Literal[1] = 1
    created: Text = Field(description="ISO 8601, UTC")
    command: Text


def _is_beyond(value: object, most: float) -> bool:
    """True for an integer beyond MAX_INTEGER, or a float beyond `most` or 1 / `most`. Nested parts check themselves."""
    if isinstance(value, float):
        return value != 0 and not 1 / most <= abs(value) <= most
    if isinstance(value, str) or value is None:  # the common case first: the test for a mapping is slow
        return False
    if isinstance(value, int):
        return abs(value) > MAX_INTEGER
    if isinstance(value, Mapping):
        return any(_is_beyond(one, most) for one in value.values())
    return isinstance(value, (list, tuple)) and any(_is_beyond(one, most) for one in value)


class Estimate(Part):
    """Statistic with its 95 % confidence interval."""

    median: float
    ci95: Interval

    @property
    def interval(self) -> Interval | None:
        """`ci95`, or None for a single value: it shows no spread, and both ends equal the value."""
        return self.ci95 if self.ci95[0] < self.ci95[1] else None


class Ratio(Part):
    """Seconds per sample over those of the reference; below 1 is faster."""

    value: float
    ci95: Interval
    verdict: Verdict
    pairs: Count | None = Field(None, description="pairs of blocks that it is of; null in older records")
    launches: Count | None = Field(
        None, description="launches that it is of; of 1, it speaks of that launch alone; null in older records"
    )

    @property
    def interval(self) -> Interval | None:
        """`ci95`, or None for a single pair, which shows no spread."""
        return None if self.pairs == 1 else self.ci95


class Environment(Part):
    """Machine and software of a measurement. `facts` holds everything else (kernel, governor, NCCL, ...)."""

    hostname: Text
    cpu: Text
    cores: Count
    memory_bytes: Count
    python: Text
    torch: Text | None
    device: Text = Field(description="'cpu' or the GPU's name")
    device_count: Count
    xbench: Text
    commit: Text | None
    facts: dict[Text, Text] = {}


class WorkloadRecord(Part):
    """Workload as it ran, with every default filled in."""

    spec: WorkloadSpec
    title: Text
    parameters: Count
    tensors: Count
    grad_bytes: Count
    batch_size: Count = Field(description="samples a rank and step; 0: not known")
    input: Text = Field(description="for people: '3×128×128 images', '64 tokens'")
    loader: Text | None = Field(
        None, description="what every step takes its batches from, 'DataLoader with 2 workers'; null: one fixed batch"
    )
    burst: PositiveCount = Field(1, description="steps whose batches come together: one of each worker of the loader")
    buffer_bytes: list[Count] = Field([], description="the model's buffers, one entry a dtype: DDP sends them")
    parameter_dtypes: Text | None = Field(
        None, description="'bf16', 'fp32 and bf16': of a factory's model whose parameters are not `spec.dtype`"
    )

    @property
    def dtype(self) -> str:
        """Data types of the trainable parameters, and so of the gradients: 'fp32', 'bf16', 'fp32 and bf16'."""
        return self.parameter_dtypes or self.spec.dtype

    @property
    def samples(self) -> int:
        """Samples a rank and step. A batch counts as one sample if the number of its samples is not known."""
        return self.batch_size or self.spec.accumulate

    @property
    def training(self) -> str:
        """The training step, for people: 'batch 2 × 8 of 32 tokens, fp32 with bf16 autocast, adamw, clipped to 1'."""
        spec = self.spec
        if self.input == NOT_TRACED:
            return self.dtype
        times = f"{spec.accumulate} × " if spec.accumulate > 1 else ""
        batch = f"batch {times}{self.batch_size // spec.accumulate or '(untold size)'} of {self.input}"
        kernels = f"{spec.optimizer_impl} " if spec.optimizer_impl != "default" else ""
        amp = f" with {spec.amp} autocast" if spec.amp is not None else ""
        clip = f", clipped to {spec.clip:g}" if spec.clip is not None else ""
        again = f", {spec.checkpoint} checkpointed" if spec.checkpoint is not None else ""
        return f"{batch}, {self.dtype}{amp}, {kernels}{spec.optimizer}{clip}{again}"


class FabricRecord(Part):
    """Connection between the ranks: as requested and as measured."""

    name: Text
    spec: Text
    label: Label
    backend: Text
    hosts: Count
    ranks_per_host: Count
    world_size: Count
    rate_bps: Rate | None = Field(None, description="asked for, one link, one direction")
    measured_bps: Rate | None = Field(None, description="one TCP stream between two hosts, through the shaping")
    allreduce_bps: Rate | None = Field(None, description="bus bandwidth of the largest measured all-reduce")
    cores_per_rank: list[list[Count]] = []
    notes: list[Text] = []


class Gpu(Part):
    """One GPU, with NVML's index. A field is None if NVML does not report it."""

    index: Count
    name: Text
    uuid: Text | None = None
    memory_bytes: Count | None = None
    pci_bus_id: Text | None = None
    pcie_generation: Count | None = Field(None, description="the most that GPU and slot can; idle GPUs use less")
    pcie_width: Count | None = Field(None, description="lanes in use")
    pcie_max_width: Count | None = None
    nvlinks: Count | None = Field(None, description="links that are up")
    sm_clock_max_mhz: Count | None = None
    power_limit_w: float | None = None
    mig: bool = Field(False, description="whether it is split into instances")


class GpuLink(Part):
    """Best link between two GPUs."""

    one: Count
    other: Count
    path: Text = Field(description="'NVLink', or what of PCIe the two share")


class Finding(Part):
    """One thing that xbench can use. `works` is None if it is of no use on this machine."""

    name: Text
    works: bool | None
    detail: Text
    costs: Text | None = Field(None, description="what cannot be had without it")
    get: Text | None = Field(None, description="the command that brings it")


class Machine(Part):
    """Answer of `xbench env`."""

    schema_version: Literal[1] = 1
    kind: Literal["machine"] = "machine"
    created: Text = Field(description="ISO 8601, UTC")
    environment: Environment
    fingerprints: dict[Text, Text] = Field(description="by device, 'cpu' or 'cuda': results of the same one compare")
    gpus: list[Gpu] = []
    links: list[GpuLink] = []
    findings: list[Finding] = []
    differs_from: dict[Text, list[Text]] = Field(
        {}, description="by the path of a saved result: what keeps its times from comparing with this machine's"
    )
