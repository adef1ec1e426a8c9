"""Record of `xbench profile`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Text
from xbench.records.base import GPU_MISSING, RecordBase
from xbench.records.comparison import ModeResult
from xbench.records.measured_parts import Bounds, Contention, CostModel, GpuUse, Layer, Plan, StepTimes
from xbench.records.parts import WorkloadRecord
from xbench.records.traced import Traced


class Profile(RecordBase):
    """Result of `xbench profile`: every layer, the step without communication, an all-reduce, and the plans."""

    kind: Literal["profile"] = "profile"
    workload: WorkloadRecord
    layers: list[Layer] = Field(description="in gradient-ready order: the layer nearest the loss is first")
    step: StepTimes | None = Field(description="without communication")
    cost_model: CostModel | None = Field(default=None, description="T(M) of an all-reduce of M bytes, as fitted")
    contention: Contention | None = None
    bounds: Bounds | None = None
    plans: dict[Text, Plan] = Field(default={}, description="by schedule")
    samples: dict[Text, list[float]] = Field(default={}, description="raw per-step times [s] by series name")
    gpu: GpuUse | None = Field(default=None, description="what NVML said during the whole profile")
    gpu_missing: Text | None = Field(default=None, description=GPU_MISSING)
    traced: Traced | None = Field(default=None, description="of a profile from profiler traces; null: it was measured")

    @property
    def profiled(self) -> list[Profile]:
        """The one job that was profiled."""
        return [self]

    @property
    def modes(self) -> dict[str, ModeResult]:
        """Timed modes: a profile has none."""
        return {}
