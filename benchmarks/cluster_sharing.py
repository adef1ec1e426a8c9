"""What sharing GPUs gains: crossover pairs and JigSaw against exclusive scheduling, by mix of jobs. Simulated.

    python benchmarks/cluster_sharing.py [--seeds 10] [--jobs 120] [--output results/cluster-sharing.json]

Jobs are made from what Pollux measured (fetched if XBENCH_TRACES has them not): the step and the
exchange of gradients (sync_time) of six applications on packed T4 GPUs. Of each application, number of GPUs and class
the local batch in the middle is taken. *Communication-heavy* are steps with at least `HEAVY` seconds of exchange for a
second of computation, *compute-heavy* those with at most `LIGHT`. A trace has `mix` of the first kind (0 to 1), GPUs as
in `SIZES`, lognormal durations (mean 1 h, σ = 1) on the GPUs that they ask for, and Poisson arrivals that offer `load`
times what the cluster can do exclusively; `backlog`: all jobs are there at the start. Restarts cost 30 s.

Printed and written, each with the 95 % interval over seeds (exact signed rank, as in `xbench cluster compare`):

- `crossover`: crossover-pairs over the exclusive policy of the same order: ratios of mean JCT and of makespan.
- `jigsaw`: the gain in useful GPU time by mix and k: the GPU time that the jobs would take alone, for a GPU second that
  is held, over the same of the exclusive policy. `k` = 1 is turns without partial backpropagation, and
  `useful_over_turns` is the ratio to that: what partial backpropagation adds. Ratios of mean JCT and makespan too.
- `equal_pairs`: two equal jobs, exactly: the gain by k and by exposed communication over compute.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xbench import environment
from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.metrics import metrics
from xbench.cluster.policies import parse_policy
from xbench.cluster.policy import Cluster
from xbench.cluster.simulator import simulate
from xbench.cluster.traces import public_path
from xbench.cluster.traces.pollux import MAX_LOCAL, load_application
from xbench.planning.turns import SpatialJob, pack
from xbench.records import ClusterRun
from xbench.stats.regression import signed_rank

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
SIZES = {2: 0.4, 4: 0.3, 8: 0.2, 16: 0.1}
HEAVY = 0.5
LIGHT = 0.2
GPUS = 64
MEAN_S = 3600.0
SIGMA = 1.0
RESTART_S = 30.0
MIXES = (0.0, 0.25, 0.5, 0.75, 1.0)
LOADS = (0.7, 1.0, 1.5, math.inf)
BUSY = 1.5
"""JigSaw is looked at from this load on: where nobody waits, nobody shares."""
LEVELS = (2, 3, 4, 8)
ORDERS = ("fifo-backfill", "srtf")
RATIOS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)


class Kind(NamedTuple):
    """A measured step on some number of GPUs."""

    application: str
    local_batch: float
    step_s: float
    exposed: float


def kinds() -> dict[tuple[int, bool], list[Kind]]:
    """By GPUs and whether communication is heavy: one step of each application that has any."""
    found: dict[tuple[int, bool], list[Kind]] = {}
    for name in APPLICATIONS:
        measured = load_application(public_path("pollux"), name).by_gpus
        for gpus in SIZES:
            at = measured[gpus]
            steps = [
                Kind(name, local, step_s, sync_s / step_s)
                for local, step_s, sync_s in zip(at.local, at.step_s, at.sync_s, strict=True)
                if local <= MAX_LOCAL.get(name, math.inf)
            ]
            for heavy in (False, True):
                ratios = [(kind, kind.exposed / (1 - kind.exposed)) for kind in steps]
                fitting = [kind for kind, ratio in ratios if (ratio >= HEAVY if heavy else ratio <= LIGHT)]
                if fitting:
                    found.setdefault((gpus, heavy), []).append(fitting[len(fitting) // 2])
    return found


def trace(of: dict[tuple[int, bool], list[Kind]], mix: float, load: float, count: int, seed: int) -> list[Job]:
    """Made-up jobs of measured steps. The same seed has the same sizes, durations and gaps at every mix and load."""
    random = np.random.default_rng(seed)
    sizes = random.choice(list(SIZES), count, p=list(SIZES.values()))
    durations_s = MEAN_S * random.lognormal(-(SIGMA**2) / 2, SIGMA, count)
    heavy = random.random(count) < mix
    picks = random.random(count)
    mean_gpu_s = float(np.mean(sizes * durations_s))
    gaps_s = random.exponential(mean_gpu_s / (load * GPUS), count) if math.isfinite(load) else np.zeros(count)
    jobs = []
    for number, at_s in enumerate(np.cumsum(gaps_s) - gaps_s[0]):
        gpus = int(sizes[number])
        choice = of[gpus, bool(heavy[number])]
        kind = choice[int(picks[number] * len(choice))]
        facts: dict[str, float | str] = {
            "application": kind.application, "step_s": kind.step_s, "exposed": kind.exposed,
        }  # fmt: skip
        jobs.append(
            Job(f"{kind.application}-{number}", float(at_s), gpus, float(durations_s[number]), RigidSpeed(gpus),
                facts=facts)
        )  # fmt: skip
    return jobs


def run(policy: str, jobs: Sequence[Job]) -> ClusterRun:
    """One simulation."""
    return metrics(simulate(jobs, parse_policy(policy), Cluster(GPUS, RESTART_S)))


def estimate(ratios: Sequence[float]) -> dict[str, Any]:
    """The pseudomedian of ratios and its exact interval."""
    test = signed_rank([math.log(ratio) for ratio in ratios])
    interval = None if test.interval is None else [round(math.exp(end), 4) for end in test.interval]
    return {"ratio": round(math.exp(test.center), 4), "ci95": interval}


def compared(
    policy: str, found: Sequence[ClusterRun], reference: Sequence[ClusterRun], traces: Sequence[Sequence[Job]]
) -> dict[str, Any]:
    """One policy's simulations against another's of the same traces."""
    service_s = [sum(job.service_s for job in jobs) for jobs in traces]
    pairs = list(zip(found, reference, strict=True))

    def ratio(of: Callable[[ClusterRun], float]) -> dict[str, Any]:
        return estimate([of(one) / of(base) for one, base in pairs])

    return {
        "policy": policy,
        "jct": ratio(lambda one: one.jct_mean_s),
        "makespan": ratio(lambda one: one.makespan_s),
        "useful": ratio(lambda one: 1 / one.held_gpu_s),
        "held_share_of_service": round(
            statistics.mean(one.held_gpu_s / alone_s for one, alone_s in zip(found, service_s, strict=True)), 4
        ),
        "restarts_a_job": round(statistics.mean(one.restarts / one.jobs for one in found), 3),
    }


def shown(cell: dict[str, Any], key: str) -> str:
    """'0.812 [0.790, 0.840]'."""
    low, high = cell[key]["ci95"] or (math.nan, math.nan)
    return f"{cell[key]['ratio']:.3f} [{low:.3f}, {high:.3f}]"


def equal_pairs() -> list[dict[str, float]]:
    """Two equal jobs of 1 s of computation on eight GPUs."""
    found = []
    for ratio in RATIOS:
        job = SpatialJob(1 / 3, 2 / 3, ratio)
        found += [
            {"k": k, "exposed_over_compute": ratio, "gain": round(pack([job, job], 8, k).speedup - 1, 4)}
            for k in (1, *LEVELS)
        ]
    return found


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=120)
    parser.add_argument("--output", type=Path, default=Path("results/cluster-sharing.json"))
    chosen = parser.parse_args()
    of = kinds()
    for (gpus, heavy), some in sorted(of.items()):
        said = ", ".join(f"{kind.application} {kind.exposed / (1 - kind.exposed):.2f}" for kind in some)
        print(f"{gpus:3} GPUs, {'communication' if heavy else 'compute'}-heavy: {said}")
    crossover: list[dict[str, Any]] = []
    jigsaw: list[dict[str, Any]] = []
    for load in LOADS:
        for mix in MIXES:
            traces = [trace(of, mix, load, chosen.jobs, seed) for seed in range(chosen.seeds)]
            where = {"load": "backlog" if math.isinf(load) else load, "mix": mix}
            for order in ORDERS:
                alone = [run(order, jobs) for jobs in traces]
                text = f"crossover-pairs:order={order}"
                cell = where | {"order": order} | compared(text, [run(text, jobs) for jobs in traces], alone, traces)
                crossover.append(cell)
                print(
                    f"load {where['load']}, mix {mix}, {order}: crossover pairs JCT {shown(cell, 'jct')}, makespan "
                    f"{shown(cell, 'makespan')}, useful {shown(cell, 'useful')}",
                    flush=True,
                )
                if order == ORDERS[0] and load >= BUSY:
                    text = f"crossover-pairs:order={order},ratio=0"
                    turns = found = [run(text, jobs) for jobs in traces]
                    for k in (1, *LEVELS):
                        if k > 1:
                            text = f"jigsaw:k={k},order={order}"
                            found = [run(text, jobs) for jobs in traces]
                        cell = where | {"order": order, "k": k} | compared(text, found, alone, traces)
                        cell["useful_over_turns"] = compared(text, found, turns, traces)["useful"]
                        jigsaw.append(cell)
                        print(
                            f"    k={k}: useful {shown(cell, 'useful')}, over turns alone "
                            f"{shown(cell, 'useful_over_turns')}, JCT {shown(cell, 'jct')}",
                            flush=True,
                        )
    result = {
        "label": "simulated",
        "made_by": f"python benchmarks/cluster_sharing.py --seeds {chosen.seeds} --jobs {chosen.jobs}",
        "environment": environment.capture().model_dump(),
        "gpus": GPUS,
        "restart_s": RESTART_S,
        "kinds": {
            f"{gpus} GPUs, {'communication' if heavy else 'compute'}-heavy": [kind._asdict() for kind in some]
            for (gpus, heavy), some in sorted(of.items())
        },
        "crossover": crossover,
        "jigsaw": jigsaw,
        "equal_pairs": equal_pairs(),
    }
    chosen.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
