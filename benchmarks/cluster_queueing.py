"""The simulator's mean wait against Erlang C: M/M/k, a million jobs a case; the mean of both within 2 %.

    python benchmarks/cluster_queueing.py [--jobs 1000000] [--seed 0] [--output results/cluster-queueing.json]

One line a case: k, load, mean wait simulated and by Erlang C [in mean service times], and the difference in per cent.
Exits 1 where it is more than 2 %. Simulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.metrics import metrics
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policy import Cluster
from xbench.cluster.simulator import simulate

CASES = ((1, 0.5), (1, 0.8), (4, 0.7), (16, 0.8), (64, 0.9))
TOLERANCE = 0.02


def wait_s(servers: int, load: float) -> float:
    """Erlang C's mean wait for a mean service of 1 s."""
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * servers * blocked / (server + load * servers * blocked)
    return blocked / (1 - load * (1 - blocked)) / (servers * (1 - load))


def main() -> int:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/cluster-queueing.json"))
    chosen = parser.parse_args()
    worst, rows = 0.0, []
    print("servers  load  simulated  Erlang C  difference")
    for servers, load in CASES:
        random = np.random.default_rng([chosen.seed, servers])
        arrivals_s = np.cumsum(random.exponential(1 / (load * servers), chosen.jobs)).tolist()
        services_s = random.exponential(1.0, chosen.jobs).tolist()
        jobs = [
            Job(str(number), at_s, 1, long_s, RigidSpeed(1))
            for number, (at_s, long_s) in enumerate(zip(arrivals_s, services_s, strict=True))
        ]
        found_s = metrics(simulate(jobs, Fifo(), Cluster(servers))).queued_mean_s
        off = found_s / wait_s(servers, load) - 1
        worst = max(worst, abs(off))
        print(f"{servers:7}  {load:.2f}  {found_s:9.4f}  {wait_s(servers, load):8.4f}  {100 * off:+9.2f} %", flush=True)
        rows.append(
            {"servers": servers, "load": load, "simulated": round(found_s, 5),
             "erlang_c": round(wait_s(servers, load), 5), "difference": round(off, 5)}
        )  # fmt: skip
    made_by = " ".join(["python benchmarks/cluster_queueing.py", *sys.argv[1:]])
    chosen.output.write_text(json.dumps({"label": "simulated", "made_by": made_by, "jobs": chosen.jobs, "rows": rows}))
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
