"""What `xbench cluster compare` computed: one trace of jobs under several policies. Everything is simulated.

`runs` holds every simulation by itself; `results` what they say together, with intervals where there were several
seeds; `curves` and `spans` what plots are drawn from, of the first seed. `records` exports these names.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.record_parts import Interval, Part


class TraceRecord(Part):
    """The jobs that came."""

    asked: str = Field(description="as on the command line")
    name: str
    jobs: int = Field(ge=1)
    gpu_hours: float = Field(description="on the GPUs that the jobs ask for")
    span_s: float = Field(description="from the first arrival to the last")
    seeds: list[int] = Field(default=[], description="of a generated trace; empty: it is what it is")
    skipped: list[str] = Field(default=[], description="rows that made no job, each with its reason")
    notes: list[str] = []


Placement = Literal["packed", "spread"]
_PLACEMENT = "on which hosts jobs are; None: there is one host"


class ClusterRun(Part):
    """One simulation. Times [s]; shares between 0 and 1."""

    policy: str
    restart_s: float = Field(ge=0)
    placement: Placement | None = Field(default=None, description=_PLACEMENT)
    seed: int | None = None
    jobs: int
    jct_mean_s: float = Field(description="job completion time, from arrival to end")
    jct_p50_s: float
    jct_p95_s: float
    jct_p99_s: float
    queued_mean_s: float = Field(description="from arrival to the first GPU")
    queued_p95_s: float
    slowdown_mean: float = Field(description="bounded: JCT over the duration, the duration at least 10 s")
    unfairness_p95: float = Field(description="finish-time fairness: 1 is an even share of a crowded cluster")
    makespan_s: float
    held_gpu_s: float
    useful_share: float = Field(description="GPU seconds held while computing, over those held")
    occupancy: float = Field(description="GPU seconds held, over all there were")
    restarts: int
    restart_gpu_s: float = Field(description="GPU seconds held without computing")
    across_share: float = Field(default=0.0, description="GPU seconds held over several hosts, over those held")
    lost_share: float = Field(
        default=0.0, description="GPU seconds that the fewest hosts would have saved, over those held"
    )
    decision_s: float = Field(description="one decision of the policy on average, real")
    bound_s: float | None = Field(
        default=None, description="no schedule that shares no GPU has a lower mean JCT; None: not known, or GPUs shared"
    )
    bound_exact: bool = Field(default=False, description="whether some schedule has that mean, were restarts free")


class ClusterResult(Part):
    """One policy at one restart cost, over all seeds. Intervals are exact; None with fewer than 6 seeds."""

    policy: str
    restart_s: float
    placement: Placement | None = Field(default=None, description=_PLACEMENT)
    jct_mean_s: float = Field(description="Hodges-Lehmann estimate over seeds, of logarithms")
    jct_mean_ci95: Interval | None = None
    ratio: float | None = Field(default=None, description="mean JCT over the reference's, seed by seed; None: it is it")
    ratio_ci95: Interval | None = None
    gap: float | None = Field(default=None, description="mean JCT over the bound, minus one; None: no bound")
    gap_ci95: Interval | None = None
    gap_exact: bool = Field(default=False, description="whether the bound is the optimum of every seed")
    placed_ratio: float | None = Field(
        default=None, description="mean JCT over the same policy's under the first placement; None: it is it"
    )
    placed_ratio_ci95: Interval | None = None


class ClusterCurve(Part):
    """One policy at one restart cost, of the first seed, thinned for a plot."""

    policy: str
    restart_s: float
    placement: Placement | None = Field(default=None, description=_PLACEMENT)
    jct_s: list[float] = Field(description="the 0th to the 100th percentile")
    at_s: list[float] = Field(description="equal windows of the makespan, each by its middle")
    held: list[float] = Field(description="GPUs held, mean over the window")
    waiting: list[float] = Field(description="jobs that wait, mean over the window")


class ClusterSpan(Part):
    """A job held so many GPUs from here to there. Under the first restart cost and placement."""

    policy: str
    job: str
    gpus: int
    from_s: float
    to_s: float


class ClusterComparison(Part):
    """`xbench cluster compare`. The first of `policies` is the reference, at each restart cost and placement."""

    kind: Literal["cluster"] = "cluster"
    schema_version: Literal[1] = 1
    created: str = Field(description="ISO 8601, UTC")
    command: str
    xbench: str = Field(description="version")
    label: Literal["simulated"] = "simulated"
    complete: Literal[True] = True
    trace: TraceRecord
    gpus: int = Field(ge=1)
    policies: list[str] = Field(min_length=1)
    restart_costs_s: list[float] = Field(min_length=1)
    gpus_per_host: int | None = Field(default=None, ge=1, description="None: one host")
    placements: list[Placement] = Field(default=[], description="none where there is one host")
    across_hosts: float | None = Field(
        default=None, description="what is left of a speed that knows nothing of hosts, on more than the fewest"
    )
    findings: list[str] = Field(default=[], description="sentences, the answer first")
    warnings: list[str] = []
    runs: list[ClusterRun]
    results: list[ClusterResult]
    curves: list[ClusterCurve] = []
    spans: list[ClusterSpan] = Field(default=[], description="where the trace is small enough to be drawn")
