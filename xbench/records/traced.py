"""What a profile from profiler traces keeps besides the profile itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Count, Duration, PositiveCount, Seconds, Text
from xbench.records.parts import Part

SizesFrom = Literal["shapes", "model", "buckets"]


class TracedBucket(Part):
    """One collective of the traced steps that carried gradients. Times are medians over the steps."""

    gradients: Count = Field(description="gradients that were complete when it was launched, of all")
    nbytes: Count
    launched_s: Seconds = Field(description="since the start of backward, by the host")
    duration_s: Duration = Field(description="time that it ran, waiting for peers included; shortest rank")


class Traced(Part):
    """The traced run: its files, its steps and its communication, as they were."""

    files: list[Text]
    ranks: PositiveCount = Field(description="ranks whose traces were read, of the world's")
    collective: Text = Field(description="what carried the gradients")
    periods_s: list[Seconds] = Field(description="each step's time")
    exposed_s: Seconds = Field(description="a collective runs and nothing computes, median")
    waited_s: Seconds = Field(description="the next work waits for the last gradients, median; slowest rank")
    buckets: list[TracedBucket]
    sizes_from: SizesFrom = Field(description="where the gradients' sizes are from")
    compute_slowdown: float | None = Field(
        default=None, description="kernels beside a collective over the same kernels alone; null: not known"
    )
