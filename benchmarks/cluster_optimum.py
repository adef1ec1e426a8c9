"""How far elastic policies are above the exact optimum, on small instances.

    python benchmarks/cluster_optimum.py [--instances 200] [--output results/cluster-optimum.json]

Two to four jobs on 8 GPUs, work log-normal, speeds by Amdahl's law with a parallel share from 0.6 to 0.98, on 1, 2, 4
or 8 GPUs; all there from the beginning, or one after another. Restarts are free. There are three optima
(`xbench.cluster.bounds`):

* *sizes*: the problem that doubling's paper states: sizes of all jobs at once, the least sum of their times, nothing
  changes later. Only where all jobs are there from the beginning, and of the policies' first plan;
* *run once*: every job runs once, on one number of GPUs, from a time on that is best;
* *any change*: any preemption and any change of size at any time, for free.

Means over all instances of mean JCT over the optimum, minus one, with the 95 % interval of the mean. Simulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from xbench.cluster.bounds import gap, moldable_s, optimum_s
from xbench.cluster.jobs import Job
from xbench.cluster.metrics import Simulated, metrics
from xbench.cluster.policies import parse_policy
from xbench.cluster.policy import Cluster
from xbench.cluster.simulator import simulate

GPUS = 8
SIZES = (1, 2, 4, 8)
POLICIES = ("doubling", "optimus", "equal-share", "fixed-1", "fixed-2", "fixed-4", "fixed-8")


@dataclass(frozen=True)
class Amdahl:
    """1 on one GPU."""

    parallel: float
    sizes: tuple[int, ...] = SIZES

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        if gpus not in self.sizes:
            raise ValueError(f"{gpus} GPUs")
        return 1 / (1 - self.parallel + self.parallel / gpus)


def instance(random: np.random.Generator, together: bool) -> list[Job]:
    """Two to four jobs."""
    count = int(random.integers(2, 5))
    work = random.lognormal(3, 1, count)
    shares = random.uniform(0.6, 0.98, count)
    gaps_s = np.zeros(count) if together else random.exponential(10.0, count)
    arrivals_s = np.cumsum(gaps_s) - gaps_s[0]
    return [Job(f"j{k}", float(arrivals_s[k]), 1, float(work[k]), Amdahl(float(shares[k]))) for k in range(count)]


def sizes_s(jobs: Sequence[Job]) -> float:
    """The least mean time of a choice of sizes that fit together."""
    fitting = (sizes for sizes in product(SIZES, repeat=len(jobs)) if sum(sizes) <= GPUS)
    return min(sum(job.work / job.speed(w) for job, w in zip(jobs, sizes, strict=True)) for sizes in fitting) / len(
        jobs
    )


def planned_s(jobs: Sequence[Job], simulated: Simulated) -> float | None:
    """The mean time if everybody kept its first size; None where somebody has to wait."""
    first = {span.job: span.gpus for span in simulated.spans if span.from_s == 0}
    if len(first) < len(jobs):
        return None
    return sum(job.work / job.speed(first[job.name]) for job in jobs) / len(jobs)


def mean(values: Sequence[float]) -> dict[str, Any]:
    """With its interval, by the normal approximation: there are hundreds."""
    found = np.array(values)
    half = 1.96 * float(found.std(ddof=1)) / len(found) ** 0.5
    center = float(found.mean())
    return {
        "instances": len(found),
        "mean": round(center, 4),
        "ci95": [round(center - half, 4), round(center + half, 4)],
        "p95": round(float(np.percentile(found, 95)), 4),
        "most": round(float(found.max()), 4),
    }


def main() -> int:
    """All instances under all policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=200, help="of each kind")
    parser.add_argument("--output", type=Path, default=Path("results/cluster-optimum.json"))
    options = parser.parse_args()
    rows = []
    for arrivals in ("together", "one after another"):
        random = np.random.default_rng(len(arrivals))
        gaps: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.instances):
            jobs = instance(random, arrivals == "together")
            best = {"run once": moldable_s(jobs, Cluster(GPUS)), "any change": optimum_s(jobs, Cluster(GPUS))}
            for name in POLICIES:
                simulated = simulate(jobs, parse_policy(name), Cluster(GPUS), spans=True)
                found_s = metrics(simulated).jct_mean_s
                for kind, best_s in best.items():
                    gaps.setdefault((name, kind), []).append(gap(found_s, best_s))
                planned = planned_s(jobs, simulated) if arrivals == "together" else None
                if planned is not None and name in ("doubling", "optimus"):
                    gaps.setdefault((name, "sizes"), []).append(gap(planned, sizes_s(jobs)))
        for (name, kind), values in gaps.items():
            rows.append({"arrivals": arrivals, "policy": name, "optimum": kind, **mean(values)})
            print(f"{arrivals:18} {name:12} over {kind:10}: {json.dumps(mean(values))}", flush=True)
    made_by = " ".join(["python benchmarks/cluster_optimum.py", *sys.argv[1:]])
    options.output.write_text(json.dumps({"label": "simulated", "made_by": made_by, "gpus": GPUS, "rows": rows}) + "\n")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
