"""Record of `xbench plan --workers 2..2048`: one profiled step on other numbers of workers. Everything is simulated.

Nothing ran, so the record has no environment and no raw samples. It holds the source profile, the assumptions and the
figures.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import MAX_COUNT, Count, Duration, PositiveSeconds, Seconds, Text
from xbench.records.parts import FabricRecord, Headed, Interval, Part, WorkloadRecord


class ScalingSource(Part):
    """Record that the figures were computed from."""

    path: Text
    kind: Literal["profile", "comparison"]
    created: Text
    command: Text


class ErrorBand(Part):
    """Known error of predictions: |predicted over measured − 1| is at most `share` on `workers` workers.

    On N workers it is `share` + `growth` · |log2(N / workers)|.
    """

    share: float = Field(ge=0, lt=1)
    source: Text = Field(description="where the share comes from, for people")
    workers: Count | None = Field(None, description="on which it was checked; null: any, as it was given")
    growth: float | None = Field(None, ge=0, description="added share for each doubling; null: a given band is for all")
    growth_source: Text | None = Field(None, description="where the growth comes from, for people")


class LinkTerms(Part):
    """One all-reduce over `workers`: the line T(M) = a_s + b_s_per_byte · M, and the curve's T for all gradients."""

    workers: Count
    a_s: Seconds
    b_s_per_byte: float
    all_gradients_s: Duration = Field(description="T of all gradients at once, by the curve that plans are made with")


class ScalingPoint(Part):
    """One mode at one number of workers, with one batch a worker."""

    mode: Text
    workers: int = Field(ge=2, le=MAX_COUNT)
    step_s: PositiveSeconds
    step_band_s: Interval = Field(description="where a measured step would lie if the prediction is off by the band")
    exposed_s: Seconds = Field(description="the step beyond compute alone")
    samples_per_s: float | None = Field(description="of all workers together; null where the batch is unknown")
    efficiency: float = Field(description="of scaling: one worker's step without communication over this step")
    buckets: Count
    largest_bucket_bytes: Count


class Scaling(Headed):
    """Result of `xbench plan --workers 2..2048`. `points`: every mode at every size, sizes ascending."""

    kind: Literal["scaling"] = "scaling"
    xbench: Text = Field(description="version")
    label: Literal["simulated"] = "simulated"
    complete: Literal[True] = True
    source: ScalingSource
    workload: WorkloadRecord
    fabric: FabricRecord = Field(description="where the cost model was measured")
    topology: Text = Field(description="as asked for, defaults filled in: 'ring', 'hierarchical:gpus=8,...'")
    compute_scale: float = Field(description="compute times as measured, times this")
    compute_s: Duration = Field(description="one worker's step without communication, scaled")
    modes: list[Text]
    workers: list[Count]
    measured_link: LinkTerms
    links: list[LinkTerms] = Field(description="for each size, what the straight line becomes")
    error_band: ErrorBand
    points: list[ScalingPoint]
    findings: list[Text] = Field([], description="crossover points in words")
    assumptions: list[Text] = []
    warnings: list[Text] = []
