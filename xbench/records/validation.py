"""Record of `xbench validate`: predictions beside measurements, cell by cell.

A cell is one workload on one fabric. Predictions come from the model alone, measurements from real steps. The
comparison named in each cell holds its raw samples.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Count, Duration, PositiveSeconds, Text
from xbench.records.parts import Environment, Estimate, FabricRecord, Headed, Interval, Part, Verdict, WorkloadRecord
from xbench.spec import Collectives, Overlap


class ValidationPoint(Part):
    """One mode of one cell."""

    mode: Text
    predicted_step_s: PositiveSeconds
    measured_step_s: Estimate
    error: float = Field(description="predicted over measured, minus one")
    error_at_speed: float | None = Field(
        None,
        description="the same, with the computation predicted at the speed that it had while the modes were timed",
    )
    against_ddp: Interval | None = Field(None, description="95 % interval of this mode's time over DDP's")
    ratio_to_ddp: float | None = None
    verdict: Verdict | None = Field(None, description="against DDP")


class AutoAgainst(Part):
    """`auto` against one other mode of the same cell; below 1, `auto` is faster."""

    mode: Text
    ratio: float
    ci95: Interval
    verdict: Verdict


class ValidationCell(Part):
    """One workload on one fabric, with every mode predicted and measured."""

    workload: WorkloadRecord
    fabric: FabricRecord
    predicted_on: Count = Field(description="workers on which what predictions are made of was measured")
    compute_s: Duration = Field(description="a step without communication, as measured in the profile")
    compute_blocks_s: Duration | None = Field(None, description="the same among the timed blocks")
    backward_overlap_bound_s: Duration | None
    overlap_bound_s: Duration | None = Field(
        None, description="the bound where gradients may travel into the next forward pass"
    )
    points: list[ValidationPoint]
    auto_against: list[AutoAgainst] = []
    blocks: Count = Field(description="timed blocks of each mode")
    record: Text = Field(description="the comparison that was measured")
    set_aside: list[Text] = Field(
        [],
        description="earlier comparisons of this cell, during which the machine changed its speed, and how far",
    )
    error: Text | None = Field(None, description="why the cell has no points, one sentence")


class ErrorSummary(Part):
    """Error of a group of predictions: |predicted over measured − 1|."""

    name: Text
    count: Count
    median: float
    p95: float = Field(description="95th percentile, the value at or above 95 % of them")
    worst: float
    bias: float = Field(description="median of the signed errors: above 0, predictions are too slow")


class Goal(Part):
    """Claim, finding, and whether the claim held."""

    claim: Text
    found: Text
    held: bool


class Validation(Headed):
    """Result of `xbench validate`."""

    kind: Literal["validation"] = "validation"
    environment: Environment
    modes: list[Text]
    overlap: Overlap = Field("backward", description="what gradients might overlap under `auto`")
    collectives: Collectives = Field("torch", description="whose all-reduce carried the gradients")
    complete: bool
    error: Text | None = None
    cells: list[ValidationCell] = []
    errors: list[ErrorSummary] = Field([], description="of all cells, then by mode, workload and fabric")
    errors_at_speed: list[ErrorSummary] = Field([], description="the same with `error_at_speed`")
    goals: list[Goal] = []
    warnings: list[Text] = []
