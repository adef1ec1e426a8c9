"""Record that `xbench tune` keeps: the schedule for one workload on one fabric, small enough to commit.

`xbench.attach(model, optimizer, plan=FILE)` reads it. The comparison named in `record` holds the raw samples.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Count, Text
from xbench.records.measured_parts import Parts
from xbench.records.parts import FabricRecord, Headed, Label, Ratio, WorkloadRecord


class Tuned(Headed):
    """Winner of `xbench tune`, or the reference if no candidate was worth a change."""

    kind: Literal["tuned"] = "tuned"
    xbench: Text = Field(description="version")
    torch: Text | None = Field(description="version")
    device: Text = Field(description="'cpu' or the GPU's name")
    label: Label
    complete: Literal[True] = True
    record: Text = Field(description="path of the comparison that this rests on")
    workload: WorkloadRecord
    fabric: FabricRecord
    schedule: Text = Field(description="what to use; the reference itself where nothing was worth a change")
    reference: Text
    margin: float = Field(ge=0, lt=1, description="the least gain that was taken to be worth a change")
    ratio: Ratio | None = Field(description="of the schedule to the reference; None for the reference itself")
    tried: dict[Text, Ratio] = Field(description="of every candidate that was timed")
    buckets: list[list[Text]] | None = Field(
        None, description="parameter names in launch order; None for the reference"
    )
    parts: Parts | None = Field(None, description="of `priority`: those of unused parameters included")
    carrier: Text | None = Field(
        None, description="the schedule that carries the buckets of `auto`, where that is not `auto` itself"
    )
    bucket_bytes: list[Count] | None = Field(
        None, description="of the gradients seen when profiled; buckets of unused parameters follow those"
    )
    bucket_cap_mb_list: list[float] | None = Field(
        None, description="DistributedDataParallel's argument for these buckets; None where it has none"
    )
    host_tuning: bool | None = Field(
        None, description="whether ranks were tuned when it was measured; null in files that do not say"
    )
    unused_parameters: bool = Field(False, description="whether a parameter got no gradient when profiled")
