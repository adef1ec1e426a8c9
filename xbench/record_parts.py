"""Parts that every kind of record is made of: where it was made, of what, on which fabric.

The kinds themselves are in `records` (measured) and `scaling_record` (simulated); `records` exports all of these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from xbench.spec import WorkloadSpec

Label = Literal["real", "emulated", "simulated"]
Verdict = Literal["reference", "faster", "slower", "equivalent", "inconclusive"]
Interval = tuple[float, float]
LARGEST_INTEGER = 2**63 - 1
"""No size or count comes near it; Python's integers know no end, and those beyond 1e308 cannot be divided."""


class Part(BaseModel):
    """Base of everything in a record: frozen; unknown fields, NaN, infinity and integers beyond 64 bits are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if _is_beyond(value):
            raise PydanticCustomError("too_large", "an integer beyond 64 bits is neither a size nor a count")
        return value


def _is_beyond(value: object) -> bool:
    """Whether any integer in a field is beyond LARGEST_INTEGER. Parts inside it have been asked already."""
    if isinstance(value, (float, str)) or value is None:  # nearly all are; asking whether they map costs most
        return False
    if isinstance(value, int):
        return abs(value) > LARGEST_INTEGER
    if isinstance(value, Mapping):
        return any(map(_is_beyond, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_is_beyond, value))


class Estimate(Part):
    """A statistic with the 95 % confidence interval of that statistic."""

    median: float
    ci95: Interval


class Ratio(Part):
    """Seconds per sample over the reference's; below 1 is faster."""

    value: float
    ci95: Interval
    verdict: Verdict


class Environment(Part):
    """Where and with what it was measured. `facts` holds everything else (kernel, governor, NCCL, ...)."""

    hostname: str
    cpu: str
    cores: int
    memory_bytes: int
    python: str
    torch: str | None
    device: str = Field(description="'cpu' or the GPU's name")
    device_count: int
    xbench: str
    commit: str | None
    facts: dict[str, str] = {}


class WorkloadRecord(Part):
    """The workload as it was run, every default filled in."""

    spec: WorkloadSpec
    title: str
    parameters: int
    tensors: int
    grad_bytes: int
    batch_size: int = Field(description="samples a rank and step")
    input: str = Field(description="for people: '3×128×128 images', '64 tokens'")
    buffer_bytes: list[int] = Field(default=[], description="the model's buffers, one entry a dtype: DDP sends them")


class FabricRecord(Part):
    """What connected the ranks: asked for and measured."""

    name: str
    spec: str
    label: Label
    backend: str
    hosts: int
    ranks_per_host: int
    world_size: int
    rate_bps: float | None = Field(default=None, description="asked for, one link, one direction")
    measured_bps: float | None = Field(
        default=None, description="one TCP stream between two hosts, through the shaping"
    )
    allreduce_bps: float | None = Field(default=None, description="bus bandwidth of the largest measured all-reduce")
    cores_per_rank: list[list[int]] = []
    notes: list[str] = []
