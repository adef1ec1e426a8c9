"""Elastic policies against doubling on other workloads than those of cluster_doubling.py. Simulated.

    python benchmarks/cluster_elastic.py [--seeds 6] [--output results/cluster-elastic.json]

- Pollux's six workloads (fetched if XBENCH_TRACES has them not): 160 jobs in 8 hours on 64 GPUs, with
  the steps that were measured of their applications. One trace each, so there is no interval.
- `generated:load=0.9,gpus=32` with 200 and 800 jobs on 32 GPUs: heavy-tailed durations, and most jobs ask for one GPU.

- The traces of cluster_doubling.py with 200 and 800 jobs, for fixed sizes too: whose queue grows, and how far ratios
  depend on the length of the trace by that.

Restarts cost 30 s. Each row has the mean JCT, and its ratio to doubling's (exact 95 % intervals over seeds); rows of
Pollux's workloads have the mean JCT by application, which says who gains and who loses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster_doubling import GPUS, trace_of

from xbench.cluster.compare import ComparisonRequest, compare
from xbench.cluster.policies import parse_policy
from xbench.cluster.policy import Cluster
from xbench.cluster.simulator import simulate
from xbench.cluster.traces import Trace, load_trace, public_path

POLICIES = ("doubling", "equal-share", "optimus", "exploratory")
FIXED = ("doubling", "equal-share", "fixed-4", "fixed-8")
LOADS = (0.3, 0.6, 1.0)
RESTART_S = 30.0
WORKLOADS = range(1, 7)
LENGTHS = (200, 800)


def compared(
    name: str,
    trace: Callable[[int | None], Trace],
    seeds: tuple[int | None, ...],
    gpus: int,
    policies: tuple[str, ...] = POLICIES,
) -> list[dict[str, Any]]:
    """A row a policy."""
    record = compare(ComparisonRequest(name, trace, seeds, policies, gpus, (RESTART_S,)), "", lambda said: None)
    rows = []
    for one in record.results:
        row: dict[str, Any] = {
            "trace": name,
            "gpus": gpus,
            "policy": one.policy,
            "jct_mean_s": round(one.jct_mean_s, 1),
            "over_doubling": None if one.ratio is None else round(one.ratio, 4),
            "ci95": None if one.ratio_ci95 is None else [round(end, 4) for end in one.ratio_ci95],
            "queue_grows": one.growing,
        }
        if seeds == (None,):
            row["by_application"] = by_application(trace(None), one.policy, gpus)
        rows.append(row)
    return rows


def by_application(trace: Trace, policy: str, gpus: int) -> dict[str, dict[str, float]]:
    """The jobs and the mean JCT [s] of each application."""
    found = defaultdict(list)
    for one in simulate(trace.jobs, parse_policy(policy), Cluster(gpus, RESTART_S)).finished:
        found[str(one.job.facts["application"])].append(one.jct_s)
    return {
        name: {"jobs": len(times), "jct_mean_s": round(statistics.fmean(times), 1)}
        for name, times in sorted(found.items())
    }


def main() -> int:
    """All traces, one line each, and the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--output", type=Path, default=Path("results/cluster-elastic.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def add(*asked: Any) -> None:
        here = compared(*asked)
        rows.extend(here)
        name = here[0]["trace"]
        told = ", ".join(
            f"{row['policy']} {row['over_doubling']:.3f}{' (queue grows)' if row['queue_grows'] else ''}"
            for row in here[1:]
        )
        print(f"{name}: doubling {here[0]['jct_mean_s'] / 3600:.2f} h; over it: {told}", flush=True)

    folder = public_path("pollux")
    for number in WORKLOADS:
        add(f"pollux workload {number}", lambda _, n=number: load_trace(f"pollux:{folder},workload={n}"), (None,), 64)
    for count in LENGTHS:
        text = f"generated:jobs={count},load=0.9,gpus=32"
        add(text, lambda seed, t=text: load_trace(f"{t},seed={seed}"), tuple(range(options.seeds)), 32)
    for load in LOADS:
        for count in LENGTHS:
            trace = trace_of(load, "exponential", count)
            add(f"doubling's at load {load:g}, {count} jobs", trace, tuple(range(options.seeds)), GPUS, FIXED)
    made_by = " ".join(["python benchmarks/cluster_elastic.py", *sys.argv[1:]])
    result = {"label": "simulated", "made_by": made_by, "restart_s": RESTART_S, "rows": rows}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
