"""How long a trace takes under each policy: all 69,351 ITP jobs, on a cluster of which they would use 80 %.

    python benchmarks/cluster_speed.py [--policy srtf] [--jobs N] [--gpus N] [--restart 30] [--profile] [--output FILE]
                                       [--gpus-per-host 8 --placement spread]

Reads the trace itp (fetched if XBENCH_TRACES has it not). Jobs have no speeds there: for elastic
policies each gets Amdahl's law with a parallel share that its place in the trace picks, up to 64 GPUs. On hosts, a job
on more than it needs has 80 % of its speed. Nor are their steps known: for sharing policies its place picks how much of
one is exposed communication. Prints one line a policy, each in a process of its own: seconds, peak memory [MiB],
decisions, mean JCT [h], restarts, occupancy; all policies together write `results/cluster-speed.json`. Simulated, but
for seconds and memory.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xbench import environment
from xbench.cluster.jobs import Job, Speed, on_hosts
from xbench.cluster.metrics import metrics
from xbench.cluster.placement import PLACEMENTS
from xbench.cluster.policies import POLICIES, facts_of, parse_policy
from xbench.cluster.policy import Cluster
from xbench.cluster.simulator import simulate
from xbench.cluster.traces import public_path
from xbench.cluster.traces.microsoft import load_itp

LOAD = 0.8
SHARES = (0.5, 0.8, 0.9, 0.95, 0.98)
MOST = 64
ACROSS = 0.8
EXPOSED = (0.0, 0.1, 0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Amdahl(Speed):
    """1 on one GPU."""

    parallel: float

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        return 1 / (1 - self.parallel + self.parallel / gpus)


def read(limit: int | None, speeds: bool, steps: bool) -> list[Job]:
    """The jobs of all ten clusters, in the order of arrival."""
    jobs = load_itp(public_path("itp")).jobs[:limit]
    if steps:
        return [
            replace(job, facts={"step_s": 0.2, "exposed": EXPOSED[number % len(EXPOSED)]})
            for number, job in enumerate(jobs)
        ]
    if not speeds:
        return list(jobs)
    curves = [Amdahl(share) for share in SHARES]
    found = []
    for number, job in enumerate(jobs):
        speed = curves[number % len(curves)]
        found.append(replace(job, work=job.duration_s * speed(job.gpus), speed=speed, most=MOST))
    return found


def measure(chosen: argparse.Namespace) -> None:
    """One policy, here: what was found, as a line of JSON."""
    jobs = read(chosen.jobs, facts_of(chosen.policy).get("speeds"), facts_of(chosen.policy).get("steps"))
    service_s = sum(job.service_s for job in jobs)
    gpus = chosen.gpus or max(MOST, round(service_s / (jobs[-1].arrival_s - jobs[0].arrival_s) / LOAD))
    if chosen.gpus_per_host:
        gpus -= gpus % chosen.gpus_per_host
        jobs = list(on_hosts(jobs, chosen.gpus_per_host, ACROSS))
    policy = parse_policy(chosen.policy)
    profile = cProfile.Profile()
    began = time.perf_counter()
    if chosen.profile:
        profile.enable()
    simulated = simulate(jobs, policy, Cluster(gpus, chosen.restart, chosen.gpus_per_host, chosen.placement))
    profile.disable()
    took_s = time.perf_counter() - began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = metrics(simulated)
    row = {
        "policy": chosen.policy,
        "took_s": round(took_s, 3),
        "peak_mib": round(peak_mib),
        "decisions": simulated.decisions,
        "jct_mean_s": round(found.jct_mean_s, 1),
        "restarts": found.restarts,
        "occupancy": round(found.occupancy, 4),
        "gpus": gpus,
        "jobs": len(jobs),
    }
    print(json.dumps(row), flush=True)
    if chosen.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(14)


def main() -> None:
    """One policy here, or all, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--restart", type=float, default=30.0)
    parser.add_argument("--gpus-per-host", type=int)
    parser.add_argument("--placement", choices=PLACEMENTS, default="packed")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("results/cluster-speed.json"))
    chosen = parser.parse_args()
    if chosen.policy:
        measure(chosen)
        return
    rows: list[dict[str, Any]] = []
    for name in (name for name in POLICIES.names() if name != "alternate"):
        if name == "fixed":
            continue
        command = [sys.executable, __file__, *sys.argv[1:], "--policy", name]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        row = rows[-1]
        print(
            f"{row['policy']:15} {row['took_s']:7.2f} s  {row['peak_mib']:6} MiB  {row['decisions']:8} decisions  "
            f"JCT {row['jct_mean_s'] / 3600:8.2f} h  {row['restarts']:8} restarts  "
            f"{100 * row['occupancy']:5.1f} % of {row['gpus']}",
            flush=True,
        )
    made_by = " ".join(["python benchmarks/cluster_speed.py", *sys.argv[1:]])
    result = {"label": "simulated", "made_by": made_by, "environment": environment.capture().model_dump(), "rows": rows}
    chosen.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
