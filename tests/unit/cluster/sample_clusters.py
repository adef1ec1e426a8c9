"""A hand-made comparison of three policies at two restart costs, of two seeds."""

from __future__ import annotations

from xbench.records import ClusterComparison, ClusterCurve, ClusterResult, ClusterRun, ClusterSpan, TraceRecord

POLICIES = {"fifo": 4000.0, "srtf": 2000.0, "las:queues=3": 2500.0}
COSTS_S = (0.0, 30.0)
BOUND_S = 1750.0


def run(policy: str, restart_s: float, seed: int) -> ClusterRun:
    mean_s = (POLICIES[policy] + (10 * restart_s if policy != "fifo" else 0)) * (1 + 0.1 * seed)
    return ClusterRun(
        policy=policy, restart_s=restart_s, seed=seed, jobs=40, jct_mean_s=mean_s, jct_p50_s=0.6 * mean_s,
        jct_p95_s=3 * mean_s, jct_p99_s=5 * mean_s, queued_mean_s=0.4 * mean_s, queued_p95_s=mean_s,
        slowdown_mean=2.5, unfairness_p95=1.75, makespan_s=36_000, held_gpu_s=900_000, useful_share=0.98,
        occupancy=0.78, restarts=0 if policy == "fifo" else 25, restart_gpu_s=750 * restart_s / 30, decision_s=4e-6,
        bound_s=None if policy == "las:queues=3" else BOUND_S,
    )  # fmt: skip


def result(policy: str, restart_s: float) -> ClusterResult:
    means = [run(policy, restart_s, seed).jct_mean_s for seed in (0, 1)]
    mean_s = (means[0] * means[1]) ** 0.5
    reference = run("fifo", restart_s, 0).jct_mean_s
    ratio = means[0] / reference if policy != "fifo" else None
    known = policy == "srtf" and restart_s == 0
    return ClusterResult(
        policy=policy, restart_s=restart_s, jct_mean_s=mean_s, ratio=ratio,
        jct_mean_ci95=(0.9 * mean_s, 1.1 * mean_s) if known else None, ratio_ci95=(0.45, 0.55) if known else None,
        gap=mean_s / BOUND_S - 1 if policy != "las:queues=3" else None, gap_ci95=(0.15, 0.25) if known else None,
    )  # fmt: skip


def comparison() -> ClusterComparison:
    curves = [
        ClusterCurve(
            policy=policy, restart_s=cost_s, jct_s=[POLICIES[policy] * (1 + share) / 50 for share in range(101)],
            at_s=[60.0 * minute for minute in range(1, 6)], held=[8.0, 16.0, 16.0, 12.0, 4.0],
            waiting=[0.0, 2.0, 3.5, 1.0, 0.0],
        )
        for policy in POLICIES
        for cost_s in COSTS_S
    ]  # fmt: skip
    spans = [
        ClusterSpan(policy=policy, job=f"job-{number}", gpus=gpus, from_s=60.0 * number, to_s=60.0 * number + 90 * gpus)
        for policy in POLICIES
        for number, gpus in enumerate((1, 2, 8, 2))
    ]
    return ClusterComparison(
        created="2026-03-01T12:00:00+00:00", command="xbench cluster compare --seeds 2", xbench="0.1.0",
        trace=TraceRecord(
            asked="generated:jobs=40", name="generated jobs", jobs=40, gpu_hours=250.0, span_s=30_000, seeds=[0, 1],
            skipped=["jobs.csv: row 7: gpus = 0"], notes=["Poisson arrivals, load 0.9."],
        ),
        gpus=16, policies=list(POLICIES), restart_costs_s=list(COSTS_S),
        findings=["srtf has the shortest mean job completion time with restarts of 0 s: 35.0 min."],
        warnings=["1 row of the trace made no job and was left out; the first: jobs.csv: row 7: gpus = 0"],
        runs=[run(policy, cost_s, seed) for policy in POLICIES for cost_s in COSTS_S for seed in (0, 1)],
        results=[result(policy, cost_s) for policy in POLICIES for cost_s in COSTS_S],
        curves=curves, spans=spans,
    )  # fmt: skip


def hosted() -> ClusterComparison:
    """The same under one restart cost, packed and spread over hosts of 4: spread takes half as long again."""
    made = comparison()
    return made.model_copy(
        update={
            "gpus_per_host": 4, "placements": ["packed", "spread"], "across_hosts": 0.6, "restart_costs_s": [0.0],
            "runs": [
                one.model_copy(update={
                    "placement": placement, "jct_mean_s": times * one.jct_mean_s,
                    "across_share": 0.2 * times, "lost_share": 0.1 * times, "bound_exact": one.bound_s is not None,
                })
                for one in made.runs if one.restart_s == 0
                for placement, times in (("packed", 1.0), ("spread", 1.5))
            ],
            "results": [
                one.model_copy(update={
                    "placement": placement, "jct_mean_s": times * one.jct_mean_s, "jct_mean_ci95": None,
                    "gap_ci95": None, "gap": None if one.gap is None else times * (1 + one.gap) - 1,
                    "gap_exact": one.gap is not None, "ratio_ci95": None,
                    "placed_ratio": 1.5 if placement == "spread" else None,
                })
                for one in made.results if one.restart_s == 0
                for placement, times in (("packed", 1.0), ("spread", 1.5))
            ],
            "curves": [
                one.model_copy(update={"placement": placement})
                for one in made.curves if one.restart_s == 0
                for placement in ("packed", "spread")
            ],
        }
    )  # fmt: skip
