"""Record of `xbench cluster run`: real jobs on real slots under one policy, beside simulations of the same jobs.

Live times are real. The record also holds two simulations of the same jobs under the same policy. The forecast uses the
declared speeds and start cost. The other simulation uses the speeds and start cost measured in the run; its error shows
what the simulator leaves out. `records` exports these names.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Count, Duration, PositiveCount, Seconds, SimulatedSeconds, Text
from xbench.records.parts import Environment, Part, Result

LiveStatus = Literal["finished", "failed", "unfinished"]


class LiveSpan(Part):
    """One incarnation of a job. Times [s] follow the cluster's clock, which stops while no controller runs."""

    job: Text
    slots: list[Count] = Field(min_length=1)
    from_s: Seconds
    trained_s: Seconds | None = Field(default=None, description="from when on it was seen to train")
    to_s: Seconds | None = Field(default=None, description="null: it still ran")
    from_steps: float
    to_steps: float
    how: Literal["stopped", "finished", "failed", "lost", "running"] = Field(
        description="lost: the controller, or a node of its slots, ended while it ran"
    )


class LiveResult(Part):
    """Outcome of one job. JCT is the job completion time, counted from the job's arrival."""

    name: Text
    workload: Text
    steps: Count
    batch_size: Count
    arrival_s: Seconds
    gpus: Count
    least: Count
    most: Count | None
    status: LiveStatus
    reason: Text = Field(default="", description="why it failed")
    began_s: Seconds | None = None
    finished_s: Seconds | None = None
    jct_s: Duration | None = Field(default=None, description="live")
    forecast_jct_s: SimulatedSeconds | None = Field(
        default=None, description="simulated with declared speeds and costs; None: a job has no declared speed"
    )
    forecast_error: float | None = Field(default=None, description="forecast over live, minus one")
    simulated_jct_s: SimulatedSeconds | None = Field(
        default=None, description="simulated with what the run itself measured"
    )
    error: float | None = Field(default=None, description="simulated over live, minus one")
    restarts: Count = Field(description="further incarnations, for whatever reason")
    simulated_restarts: Count | None = None
    crashes: Count = 0
    lost_steps: float = Field(default=0, description="done, and done again after a crash or the controller's end")
    speeds: dict[Count, float] = Field(default={}, description="steps a second by workers, as measured")


class LiveRun(Result):
    """Result of `xbench cluster run`."""

    kind: Literal["live"] = "live"
    schema_version: Literal[1] = 1
    created: Text = Field(description="ISO 8601, UTC")
    command: Text
    xbench: Text = Field(description="version")
    label: Literal["real"] = "real"
    complete: bool = Field(description="whether every job finished or was given up")
    error: Text | None = Field(default=None, description="why the run ended early")
    policy: Text
    engine: Literal["local", "ray"]
    slots: PositiveCount
    believed_restart_s: Duration = Field(description="what the policy was told that a start costs")
    overhead_s: Seconds | None = Field(
        default=None, description="measured: of an incarnation's time, what it did not train; the mean over all"
    )
    retries: Count = Field(ge=0)
    resumed: Count = Field(default=0, description="how often another controller went on")
    environment: Environment
    jobs: list[LiveResult] = Field(min_length=1)
    findings: list[Text] = Field(default=[], description="sentences, the answer first")
    warnings: list[Text] = []
    spans: list[LiveSpan] = []
