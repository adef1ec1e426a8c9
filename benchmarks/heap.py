"""Training steps on one core in processes whose heap keeps what is freed, and in processes as they come, in pairs.

    python benchmarks/heap.py [--pairs 8] [--steps 40] [--output results/heap.json]

Each process builds a workload of xbench's, takes some steps, and times so many more on one thread, with the page faults
of each. Then it copies the network's state four times over and frees that again, as a parity check does, and times
as many steps again: what a heap looks like after that must not cost anything. Both kinds in turn, a fresh process each,
in an order that changes from pair to pair. Real times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from xbench import environment
from xbench.stats.summary import median_estimate

KINDS = ("system", "keep")
WARMUP = 5
WORKLOADS = {
    "resnet18, 64 px": ("resnet18", {"image_size": 64}),
    "mobilenet_v2, 64 px": ("mobilenet_v2", {"image_size": 64}),
    "vgg11, 64 px": ("vgg11", {"image_size": 64}),
    "transformer-tiny": ("transformer-tiny", {}),
}


def process(name: str, kind: str, steps: int) -> None:
    """One process: its steps [s] and their page faults, as JSON on stdout."""
    import torch

    from xbench.host_tuning import keep_freed_memory, return_freed_memory
    from xbench.workloads import parse_workload, resolve
    from xbench.workloads.build import build

    torch.set_num_threads(1)
    kept = kind == "keep" and keep_freed_memory()
    title, options = WORKLOADS[name]
    workload = build(resolve(parse_workload(title, **options), "cpu"), torch.device("cpu"), rank=0)

    def timed() -> tuple[list[float], list[int]]:
        took_s, faults = [], []
        for _ in range(WARMUP + steps):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            start_s = time.perf_counter()
            workload.optimizer.zero_grad(set_to_none=True)
            workload.forward_loss().backward()  # type: ignore[no-untyped-call]
            workload.optimizer.step()
            took_s.append(time.perf_counter() - start_s)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return took_s[WARMUP:], faults[WARMUP:]

    took_s, faults = timed()
    states = []
    for _ in range(4):
        states.append([parameter.detach().clone() for parameter in workload.model.parameters()])
        workload.forward_loss()
    states.clear()
    if kind == "keep":
        return_freed_memory()
    later_s, _ = timed()
    print(json.dumps({"kept": kept, "steps_s": took_s, "faults": faults, "later_s": later_s}))


def started(name: str, kind: str, steps: int) -> dict:  # type: ignore[type-arg]
    """A process of this kind, from start to end: what it printed."""
    done = subprocess.run(
        [sys.executable, __file__, "--process", name, "--kind", kind, "--steps", str(steps)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def main() -> None:
    """All pairs of all workloads, and the ratio of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--process", choices=WORKLOADS, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        process(options.process, options.kind, options.steps)
        return
    table = {}
    for name in WORKLOADS:
        runs: dict[str, list[dict]] = {kind: [] for kind in KINDS}  # type: ignore[type-arg]
        for number in range(options.pairs):
            for kind in KINDS[:: 1 if number % 2 == 0 else -1]:
                runs[kind].append(started(name, kind, options.steps))
        medians = {kind: [statistics.median(run["steps_s"]) for run in made] for kind, made in runs.items()}
        ratio = median_estimate([kept / plain for kept, plain in zip(medians["keep"], medians["system"], strict=True)])
        faults = {
            kind: statistics.median(itertools.chain.from_iterable(run["faults"] for run in made))
            for kind, made in runs.items()
        }
        table[name] = {
            "keep_over_system": ratio.model_dump(),
            "faults_a_step": faults,
            "after_copies_over_before": {
                kind: median_estimate(
                    [statistics.median(run["later_s"]) / statistics.median(run["steps_s"]) for run in made]
                ).model_dump()
                for kind, made in runs.items()
            },
            "step_s": medians,
            "kept": all(run["kept"] for run in runs["keep"]),
        }
        print(name, json.dumps(table[name]["keep_over_system"]), json.dumps(faults), flush=True)
        print("   after copies over before", json.dumps(table[name]["after_copies_over_before"]), flush=True)
    result = {
        "command": f"python benchmarks/heap.py --pairs {options.pairs} --steps {options.steps}",
        "label": "real",
        "workloads": table,
        "environment": environment.capture().model_dump(),
    }
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
