"""Doubling against a fixed number of GPUs for everybody, from heavy to light load, on 64 GPUs.

    python benchmarks/cluster_doubling.py [--jobs 200] [--seeds 10] [--restart 0 30] [--output FILE]

Capes et al. (arXiv 1908.08082) say that doubling more than halves the average job time on some workload patterns. Here
jobs come at Poisson times; each is one of five models with a batch of eight GPUs' worth (`traces.generated.ring_of`:
published sizes, assumed times), and runs for an hour on eight GPUs on average, exponentially distributed or all alike.
The load is what all jobs would take on one GPU each, where nothing is lost to communication, over what 64 GPUs give:
above 1 the queue grows for as long as jobs come.

Every policy meets the same jobs; ratios are of mean job completion times, seed by seed, with exact 95 % intervals.
Simulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xbench.cluster.compare import ComparisonRequest, compare
from xbench.cluster.jobs import Job
from xbench.cluster.traces import Trace
from xbench.cluster.traces.generated import MODELS, ring_of

GPUS = 64
WIDE = 8
MEAN_S = 3600.0
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
LENGTHS = ("exponential", "alike")
POLICIES = ("doubling", "exploratory", "optimus", "equal-share", "fixed-1", "fixed-2", "fixed-4", "fixed-8")


def trace_of(load: float, length: str, count: int) -> Callable[[int | None], Trace]:
    """Jobs for a seed."""

    def made(seed: int | None) -> Trace:
        random = np.random.default_rng([seed or 0, LENGTHS.index(length)])
        models = random.choice(list(MODELS), count)
        durations_s = MEAN_S * (random.exponential(1.0, count) if length == "exponential" else np.ones(count))
        speeds = {name: ring_of(name, WIDE) for name in MODELS}
        work = [seconds * speeds[name](WIDE) for name, seconds in zip(models, durations_s, strict=True)]
        alone_s = np.mean([done / speeds[name](1) for name, done in zip(models, work, strict=True)])
        arrivals_s = np.cumsum(random.exponential(float(alone_s) / (load * GPUS), count))
        jobs = tuple(
            Job(f"{name}-{number}", float(at_s), WIDE, done, speeds[name])
            for number, (name, at_s, done) in enumerate(zip(models, arrivals_s, work, strict=True))
        )
        return Trace(f"load {load:g}, lengths {length}", jobs)

    return made


def measured(load: float, length: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One load: every policy's mean JCT, and doubling's over it, by restart cost."""
    asked = ComparisonRequest("", trace_of(load, length, options.jobs), tuple(range(options.seeds)), POLICIES, GPUS,
                  tuple(options.restart))  # fmt: skip
    record = compare(asked, "", lambda said: None)
    rows = []
    for one in record.results:
        row: dict[str, Any] = {
            "load": load,
            "lengths": length,
            "policy": one.policy,
            "restart_s": one.restart_s,
            "jct_mean_s": round(one.jct_mean_s, 1),
        }
        if one.ratio is not None and one.ratio_ci95 is not None:
            low, high = one.ratio_ci95
            row |= {"doubling_over_it": round(1 / one.ratio, 4), "ci95": [round(1 / high, 4), round(1 / low, 4)]}
        rows.append(row)
    return rows


def main() -> int:
    """All loads, one line each, and the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--restart", type=float, nargs="*", default=[0.0, 30.0])
    parser.add_argument("--output", type=Path, default=Path("results/cluster-doubling.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for length in LENGTHS:
        for load in LOADS:
            here = measured(load, length, options)
            rows += here
            for cost_s in options.restart:
                over = {row["policy"]: row.get("doubling_over_it") for row in here if row["restart_s"] == cost_s}
                print(
                    f"{length:11} load {load:3g} restart {cost_s:3g} s, doubling over: "
                    + ", ".join(f"{name} {value:.3f}" for name, value in over.items() if value is not None),
                    flush=True,
                )
    made_by = " ".join(["python benchmarks/cluster_doubling.py", *sys.argv[1:]])
    result = {"label": "simulated", "made_by": made_by, "gpus": GPUS, "jobs": options.jobs, "seeds": options.seeds,
              "rows": rows}  # fmt: skip
    options.output.write_text(json.dumps(result) + "\n")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
