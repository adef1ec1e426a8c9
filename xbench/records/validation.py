"""Record of `xbench validate`: predictions beside measurements, cell by cell.

A cell is one workload on one fabric. Predictions come from the model alone, measurements from real steps. The
comparison named in each cell holds its raw samples.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Count, Duration, PositiveSeconds, Text
from xbench.records.parts import Environment, Estimate, FabricRecord, Headed, Interval, Part, Verdict, WorkloadRecord
from xbench.spec import Collectives, WorkloadSpec

Overlap = Literal["backward", "forward"]


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


class ModePair(Part):
    """One mode against another of the same cell, both trained; below 1, `mode` is faster."""

    mode: Text
    other: Text
    ratio: float
    ci95: Interval


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
    communication_s: Duration | None = Field(
        None, description="T of all gradients in one collective; null in older records"
    )
    points: list[ValidationPoint]
    auto_against: list[AutoAgainst] = []
    pairs: list[ModePair] = Field([], description="every two modes that train, in order; empty in older records")
    auto_not_slower_p: float | None = Field(
        None,
        description="one-sided p against `auto` taking 2 % more than `ddp`, or more; of this cell alone",
    )
    blocks: Count = Field(description="timed blocks of each mode")
    record: Text = Field(description="the comparison that was measured")
    set_aside: list[Text] = Field(
        [],
        description="earlier comparisons of this cell, during which the machine changed its speed, and how far",
    )
    error: Text | None = Field(None, description="why the cell has no points, one sentence")
    number: Count | None = Field(None, description="its place in a drawing, from 1; null: of a whole matrix")
    held_out: bool = Field(False, description="of a drawing: in no figure before every cell is measured")


class DrawnCell(Part):
    """A cell as it was drawn."""

    workload: WorkloadSpec
    fabric: Text
    held_out: bool


class Drawing(Part):
    """Cells drawn from a matrix, in the order of measurement. They are fixed before the first one is measured."""

    seed: Count
    cells: list[DrawnCell]


class ErrorSummary(Part):
    """Error of a group of predictions: |predicted over measured − 1|."""

    name: Text
    count: Count
    median: float
    p95: float = Field(description="95th percentile, the value at or above 95 % of them")
    worst: float
    bias: float = Field(description="median of the signed errors: above 0, predictions are too slow")


class Skill(Part):
    """Predictions of a group beside those of two predictors that know no schedule.

    A skill is 1 − median |error| over the naive predictor's median |error|: above 0, the model predicts better. It is
    null if the naive predictor has no error.
    """

    name: Text
    count: Count
    median: float = Field(description="median |error| of the model")
    as_ddp: float = Field(description="the same if every mode takes what `ddp` is predicted to take")
    as_ddp_skill: float | None
    one_bucket: float = Field(description="the same for computation plus T of all gradients in one collective")
    one_bucket_skill: float | None


class Order(Part):
    """Order of two modes of a cell, over the pairs whose measured ratio has an interval without 1."""

    pairs: Count = Field(description="of any interval")
    decided: Count = Field(description="whose interval excludes 1")
    right: Count = Field(description="of those, predicted in the measured order")
    equal: Count = Field(description="of those, predicted to take the same time")


class Regret(Part):
    """Time lost by running the mode that is predicted to be fastest, against the fastest measured one, over cells.

    The fastest of several medians is below its expectation, so this is an upper estimate.
    """

    cells: Count
    best: Count = Field(description="cells in which the predicted mode has the shortest median")
    median: float = Field(description="share of the fastest step")
    p95: float
    worst: float
    median_s: Duration
    p95_s: Duration
    worst_s: Duration


class NonInferiority(Part):
    """Test of whether `auto` is slower than `ddp` by a margin, over cells (`stats.non_inferiority`)."""

    margin: float
    cells: Count
    ratio: float = Field(description="auto over ddp, geometric mean over cells")
    upper: float = Field(description="95 % upper limit of that mean")
    shown: bool = Field(description="whether the limit is below 1 + margin")
    power: float = Field(description="probability of that with these cells, at their spread, if both are equally fast")
    cells_needed: Count | None = Field(description="for a power of 90 %; null: more than 1000")
    cells_tested: Count = Field(description="with rounds enough for a test of their own")
    cells_shown: Count = Field(description="of those, in which it is shown of the cell alone, by Holm's method")
    slower: list[Text] = Field(description="names of the cells in which `auto` is slower beyond its interval")


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
    drawing: Drawing | None = Field(None, description="of cells drawn by a seed; null: a whole matrix")
    discarded: list[Text] = Field(
        [], description="attempts at cells that count for nothing, with the reason: changed links, failures, stops"
    )
    errors: list[ErrorSummary] = Field([], description="of all cells, then by mode, workload and fabric")
    errors_at_speed: list[ErrorSummary] = Field([], description="the same with `error_at_speed`")
    skills: list[Skill] = Field([], description="of all predictions, then by link")
    order: Order | None = None
    regret: Regret | None = None
    non_inferiority: NonInferiority | None = Field(None, description="of `auto` against `ddp`")
    goals: list[Goal] = []
    warnings: list[Text] = []
