"""Records of `xbench cluster`.

- `ClusterComparison`, of `xbench cluster compare`: one trace of jobs under several policies. Everything is simulated.
  `runs` holds each simulation. `results` summarises them per policy, with intervals where there are several seeds.
  `curves` and `spans` hold the data of the plots, for the first seed.
- `LiveRun`, of `xbench cluster run`: real jobs on real slots under one policy, beside two simulations of the same jobs
  under the same policy. The forecast uses the declared speeds and start cost. The other uses the speeds and start cost
  measured in the run; its error shows what the simulator leaves out.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Count, Duration, PositiveCount, Seconds, SimulatedSeconds, Text
from xbench.records.parts import Environment, Headed, Interval, Part


class TraceRecord(Part):
    """Jobs of the trace."""

    asked: Text = Field(description="as on the command line")
    name: Text
    jobs: PositiveCount
    gpu_hours: float = Field(description="on the GPUs that the jobs ask for")
    span_s: SimulatedSeconds = Field(description="from the first arrival to the last")
    seeds: list[int] = Field([], description="of a generated trace; empty: it is what it is")
    skipped: list[Text] = Field([], description="rows that made no job, each with its reason")
    notes: list[Text] = []


Placement = Literal["packed", "spread"]
_PLACEMENT = "on which hosts jobs are; None: there is one host"


class ClusterRun(Part):
    """One simulation. Times are in seconds; shares lie between 0 and 1."""

    policy: Text
    restart_s: Duration
    placement: Placement | None = Field(None, description=_PLACEMENT)
    seed: int | None = None
    jobs: Count
    jct_mean_s: SimulatedSeconds = Field(description="job completion time, from arrival to end")
    jct_p50_s: SimulatedSeconds
    jct_p95_s: SimulatedSeconds
    jct_p99_s: SimulatedSeconds
    queued_mean_s: SimulatedSeconds = Field(description="from arrival to the first GPU")
    queued_p95_s: SimulatedSeconds
    slowdown_mean: float = Field(description="bounded: JCT over the duration, the duration at least 10 s")
    unfairness_p95: float = Field(description="finish-time fairness: 1 is an even share of a crowded cluster")
    makespan_s: SimulatedSeconds
    held_gpu_s: SimulatedSeconds
    useful_share: float = Field(description="GPU seconds held while computing, over those held")
    occupancy: float = Field(description="GPU seconds held, over all there were")
    restarts: Count
    restart_gpu_s: SimulatedSeconds = Field(description="GPU seconds held without computing")
    across_share: float = Field(0.0, description="GPU seconds held over several hosts, over those held")
    lost_share: float = Field(0.0, description="GPU seconds that the fewest hosts would have saved, over those held")
    decision_s: Duration = Field(description="one decision of the policy on average, real")
    unfinished_middle: float | None = Field(
        None, description="jobs that came and had not ended, mean over the middle fifth of the arrivals"
    )
    unfinished_end: float | None = Field(None, description="the same, over the last fifth of the arrivals")
    bound_s: SimulatedSeconds | None = Field(
        None, description="no schedule that shares no GPU has a lower mean JCT; None: not known, or GPUs shared"
    )


class ClusterResult(Part):
    """One policy at one restart cost, over all seeds. Intervals are exact; they are None for fewer than six seeds."""

    policy: Text
    restart_s: Duration
    placement: Placement | None = Field(None, description=_PLACEMENT)
    jct_mean_s: SimulatedSeconds = Field(description="Hodges-Lehmann estimate over seeds, of logarithms")
    jct_mean_ci95: Interval | None = None
    ratio: float | None = Field(None, description="mean JCT over the reference's, seed by seed; None: it is it")
    ratio_ci95: Interval | None = None
    gap: float | None = Field(None, description="mean JCT over the bound, minus one; None: no bound")
    gap_ci95: Interval | None = None
    placed_ratio: float | None = Field(
        None, description="mean JCT over the same policy's under the first placement; None: it is it"
    )
    placed_ratio_ci95: Interval | None = None
    growing: bool = Field(
        False,
        description="whether the queue still grew when the last job came: means depend on the trace's length",
    )


class ClusterCurve(Part):
    """One policy at one restart cost, for the first seed, thinned for a plot."""

    policy: Text
    restart_s: Duration
    placement: Placement | None = Field(None, description=_PLACEMENT)
    jct_s: list[SimulatedSeconds] = Field(description="the 0th to the 100th percentile")
    at_s: list[SimulatedSeconds] = Field(description="equal windows of the makespan, each by its middle")
    held: list[float] = Field(description="GPUs held, mean over the window")
    waiting: list[float] = Field(description="jobs that wait, mean over the window")


class ClusterSpan(Part):
    """Interval in which a job held a number of GPUs, under the first restart cost and placement."""

    policy: Text
    job: Text
    gpus: Count
    from_s: SimulatedSeconds
    to_s: SimulatedSeconds


class ClusterComparison(Headed):
    """Result of `xbench cluster compare`. The first of `policies` is the reference for every restart cost."""

    kind: Literal["cluster"] = "cluster"
    xbench: Text = Field(description="version")
    label: Literal["simulated"] = "simulated"
    complete: Literal[True] = True
    trace: TraceRecord
    gpus: PositiveCount
    policies: list[Text] = Field(min_length=1)
    restart_costs_s: list[Duration] = Field(min_length=1)
    gpus_per_host: PositiveCount | None = Field(None, description="None: one host")
    placements: list[Placement] = Field([], description="none where there is one host")
    across_hosts: float | None = Field(
        None, description="what is left of a speed that knows nothing of hosts, on more than the fewest"
    )
    window: tuple[PositiveCount, PositiveCount] | None = Field(
        None, description="first and last job, by arrival, that count in the means; None: all do"
    )
    findings: list[Text] = Field([], description="sentences, the answer first")
    warnings: list[Text] = []
    runs: list[ClusterRun]
    results: list[ClusterResult]
    curves: list[ClusterCurve] = []
    spans: list[ClusterSpan] = Field([], description="where the trace is small enough to be drawn")


LiveStatus = Literal["finished", "failed", "unfinished"]


class LiveSpan(Part):
    """One attempt of a job. Times [s] follow the cluster's clock, which stops while no controller runs."""

    job: Text
    slots: list[Count] = Field(min_length=1)
    from_s: Seconds
    trained_s: Seconds | None = Field(None, description="from when on it was seen to train")
    to_s: Seconds | None = Field(None, description="null: it still ran")
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
    reason: Text = Field("", description="why it failed")
    began_s: Seconds | None = None
    finished_s: Seconds | None = None
    jct_s: Duration | None = Field(None, description="live")
    forecast_jct_s: SimulatedSeconds | None = Field(
        None, description="simulated with declared speeds and costs; None: a job has no declared speed"
    )
    forecast_error: float | None = Field(None, description="forecast over live, minus one")
    simulated_jct_s: SimulatedSeconds | None = Field(None, description="simulated with what the run itself measured")
    error: float | None = Field(None, description="simulated over live, minus one")
    restarts: Count = Field(description="further attempts, for whatever reason")
    simulated_restarts: Count | None = None
    crashes: Count = 0
    lost_steps: float = Field(0, description="done, and done again after a crash or the controller's end")
    speeds: dict[Count, float] = Field({}, description="steps a second by workers, as measured")


class LiveRun(Headed):
    """Result of `xbench cluster run`."""

    kind: Literal["live"] = "live"
    xbench: Text = Field(description="version")
    label: Literal["real"] = "real"
    complete: bool = Field(description="whether every job finished or was given up")
    error: Text | None = Field(None, description="why the run ended early")
    policy: Text
    engine: Literal["local", "ray"]
    slots: PositiveCount
    believed_restart_s: Duration = Field(description="what the policy was told that a start costs")
    overhead_s: Seconds | None = Field(
        None, description="measured: of an attempt's time, what it did not train; the mean over all"
    )
    retries: Count = Field(ge=0)
    resumed: Count = Field(0, description="how often another controller went on")
    environment: Environment
    jobs: list[LiveResult] = Field(min_length=1)
    findings: list[Text] = Field([], description="sentences, the answer first")
    warnings: list[Text] = []
    spans: list[LiveSpan] = []
