"""The simulator's mean wait against Erlang C: M/M/k, millions of jobs a case.

    python benchmarks/cluster_queueing.py [--jobs 1000000] [--seed 0] [--output results/cluster-queueing.json]

A million jobs say little of 64 busy servers: their mean wait differs by 5 % from one million to the next. So two things
are shown. The simulator is exactly the recurrence of such a queue (each job starts when it has come and the first
server is free: Kiefer and Wolfowitz 1955) on a million jobs; and the recurrence, which is quick, has the mean wait of
Erlang C within 2 % over as many millions as that takes.

One line a case: servers, load, mean wait [mean service times] by the simulator and by the recurrence on the same jobs,
then by the recurrence over all millions, by Erlang C, and the difference of these two with the standard error of the
mean. Exits 1 where either is not as it should be. Simulated.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from pathlib import Path

import numpy as np

from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.metrics import metrics
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policy import Cluster
from xbench.cluster.simulator import simulate

CASES = ((1, 0.5, 4), (1, 0.8, 16), (4, 0.7, 4), (16, 0.8, 24), (64, 0.9, 200))
"""Servers, load, and runs of the recurrence."""

TOLERANCE = 0.02
ROUNDING = 1e-6


def wait_s(servers: int, load: float) -> float:
    """Erlang C's mean wait for a mean service of 1 s."""
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * servers * blocked / (server + load * servers * blocked)
    return blocked / (1 - load * (1 - blocked)) / (servers * (1 - load))


def drawn(servers: int, load: float, jobs: int, seed: int) -> tuple[list[float], list[float]]:
    """Arrivals and services [s]."""
    random = np.random.default_rng([seed, servers])
    arrivals_s = np.cumsum(random.exponential(1 / (load * servers), jobs)).tolist()
    return arrivals_s, random.exponential(1.0, jobs).tolist()


def recurrence_s(servers: int, arrivals_s: list[float], services_s: list[float]) -> float:
    """The mean wait of first come, first served."""
    free_s = [0.0] * servers
    waited_s = 0.0
    for at_s, long_s in zip(arrivals_s, services_s, strict=True):
        start_s = max(free_s[0], at_s)
        waited_s += start_s - at_s
        heapq.heapreplace(free_s, start_s + long_s)
    return waited_s / len(arrivals_s)


def simulated_s(servers: int, arrivals_s: list[float], services_s: list[float]) -> float:
    """The same by the simulator."""
    jobs = [
        Job(str(number), at_s, 1, long_s, RigidSpeed(1))
        for number, (at_s, long_s) in enumerate(zip(arrivals_s, services_s, strict=True))
    ]
    return metrics(simulate(jobs, Fifo(), Cluster(servers))).queued_mean_s


def main() -> int:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/cluster-queueing.json"))
    chosen = parser.parse_args()
    wrong, rows = 0, []
    print("servers  load  simulator  recurrence  |  runs  recurrence  Erlang C  difference")
    for servers, load, runs in CASES:
        first = drawn(servers, load, chosen.jobs, chosen.seed)
        by_simulator_s = simulated_s(servers, *first)
        found = np.array(
            [recurrence_s(servers, *drawn(servers, load, chosen.jobs, chosen.seed + run)) for run in range(runs)]
        )
        expected_s, mean_s = wait_s(servers, load), float(found.mean())
        error = float(found.std(ddof=1)) / runs**0.5 / expected_s
        off = mean_s / expected_s - 1
        wrong += abs(by_simulator_s / found[0] - 1) > ROUNDING or abs(off) > TOLERANCE
        print(
            f"{servers:7}  {load:.2f}  {by_simulator_s:9.6f}  {found[0]:10.6f}  |  {runs:4}  {mean_s:10.5f}  "
            f"{expected_s:8.5f}  {100 * off:+.2f} % ± {100 * error:.2f}",
            flush=True,
        )
        rows.append(
            {
                "servers": servers,
                "load": load,
                "simulator": round(by_simulator_s, 7),
                "recurrence_first": round(float(found[0]), 7),
                "runs": runs,
                "recurrence": round(mean_s, 6),
                "erlang_c": round(expected_s, 6),
                "difference": round(off, 5),
                "standard_error": round(error, 5),
            }
        )
    made_by = " ".join(["python benchmarks/cluster_queueing.py", *sys.argv[1:]])
    result = {"label": "simulated", "made_by": made_by, "jobs": chosen.jobs, "rows": rows}
    chosen.output.write_text(json.dumps(result, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
