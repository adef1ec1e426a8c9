"""Training steps of two shaped hosts over Gloo's all-reduce and over our own (`xbench.sockets`), in turn.

    python benchmarks/sockets.py [--rounds 8] [--cells 1gbit] [--output results/sockets.json]

Two hosts of one core each. Every rank holds both process groups and one workload; blocks of steps under DDP, under our
engine with one bucket and with eight of about equal size go over the one group and then the other, in an order that
changes from round to round. Gloo's sending threads run first, as in every measurement. Over sockets who waits sleeps at
once, or polls first, as in every measurement of ranks with cores of their own. Of each schedule the ratio of its step
over sockets to its step over Gloo, and of polling to sleeping, by round; and what a block took of the processor. Real
times. `--cells` chooses those whose name has these words.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from xbench import environment
from xbench.fabrics import open_fabric, parse_fabric
from xbench.sockets.polling import POLL_S
from xbench.stats.summary import median_estimate

CARRIERS = ("gloo", "sleeping", "sockets")
BUCKETS = 8
BLOCK_S = 0.5
WARMUP = 2
CELLS = [
    ("transformer-tiny", {}, "1gbit"),
    ("transformer-tiny", {}, "10gbit"),
    ("mobilenet_v2", {"image_size": 64}, "1gbit"),
    ("mobilenet_v2", {"image_size": 64}, "10gbit"),
    ("resnet18", {"image_size": 64}, "1gbit"),
    ("resnet18", {"image_size": 64}, "10gbit"),
]


def rank(number: int, rounds: int) -> None:
    """One rank of one cell: rank 0 prints, by schedule and carrier, the median step [s] of each round and its share of
    the processor."""
    import torch
    import torch.distributed as dist

    import xbench
    from xbench.schedules.base import Handle
    from xbench.workloads import parse_workload, resolve
    from xbench.workloads.build import build

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.zeros(1))
    xbench.tune_host()
    groups = {
        "gloo": dist.group.WORLD,
        "sleeping": xbench.new_socket_group(),
        "sockets": xbench.new_socket_group(poll_s=POLL_S),
    }
    name, options, _ = CELLS[number]
    workload = build(resolve(parse_workload(name, **options), "cpu"), torch.device("cpu"), rank=dist.get_rank())
    even = in_even_buckets({n: p.numel() for n, p in workload.model.named_parameters() if p.requires_grad})
    every = [[name for bucket in even for name in bucket]]
    plans = {"ddp": None, "one bucket": every, f"{BUCKETS} buckets": even}

    def attached(schedule: str, carrier: str) -> Handle:
        group, plan = groups[carrier], plans[schedule]
        if plan is None:
            return xbench.attach(workload.model, schedule="ddp", process_group=group)
        return xbench.attach(
            workload.model, workload.optimizer, schedule="optimal", plan=plan, process_group=group, wait="step"
        )

    def step(model: torch.nn.Module) -> float:
        start_s = time.perf_counter()
        workload.optimizer.zero_grad(set_to_none=True)
        workload.forward_loss(model).backward()  # type: ignore[no-untyped-call]
        workload.optimizer.step()
        return time.perf_counter() - start_s

    def block(schedule: str, carrier: str) -> tuple[float, float]:
        with attached(schedule, carrier) as handle:
            steps = torch.tensor(max(5.0, BLOCK_S / statistics.median(step(handle.model) for _ in range(WARMUP + 1))))
            dist.broadcast(steps, src=0)
            used_s, start_s = time.process_time(), time.perf_counter()
            took_s = [step(handle.model) for _ in range(int(steps))]
            return statistics.median(took_s), (time.process_time() - used_s) / (time.perf_counter() - start_s)

    found: dict[str, dict[str, list[tuple[float, float]]]] = {s: {c: [] for c in CARRIERS} for s in plans}
    for number_of in range(rounds):
        for schedule in plans:
            for carrier in itertools.islice(itertools.cycle(CARRIERS), number_of % 3, number_of % 3 + 3):
                found[schedule][carrier].append(block(schedule, carrier))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()


def in_even_buckets(elements: dict[str, int]) -> list[list[str]]:
    """Parameter names from the last to the first, in about so many buckets of about as many elements."""
    whole, filled = sum(elements.values()), 0
    buckets: list[list[str]] = [[]]
    for name in reversed(elements):
        if filled >= whole * len(buckets) / BUCKETS:
            buckets.append([])
        buckets[-1].append(name)
        filled += elements[name]
    return buckets


def ratio(steps_s: list[float], others_s: list[float]) -> dict[str, Any]:
    """The one over the other, round by round: median and interval."""
    return median_estimate([one / other for one, other in zip(steps_s, others_s, strict=True)]).model_dump()


def measured(number: int, rounds: int) -> dict:  # type: ignore[type-arg]
    """One cell, from raised to removed hosts."""
    *_, rate = CELLS[number]
    with open_fabric(parse_fabric(f"shaped:hosts=2,rate={rate}")) as fabric:
        meeting = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": fabric.hosts[0].address,
            "MASTER_PORT": str(fabric.free_ports(1)[0]),
            "OMP_NUM_THREADS": "1",
        }
        ranks = [
            subprocess.Popen(
                [*slot.prefix, sys.executable, __file__, "--cell", str(number), "--rounds", str(rounds)],
                env=os.environ | slot.env | meeting | {"RANK": str(slot.index)}, stdout=subprocess.PIPE, text=True,
            )
            for slot in fabric.hosts
        ]  # fmt: skip
        said = [process.communicate(timeout=1200)[0] for process in ranks]
    return json.loads(said[0].splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """All cells, the ratio of each schedule in each, and the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--cells", default="")
    parser.add_argument("--cell", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell is not None:
        rank(options.cell, options.rounds)
        return
    table = {}
    for number, (name, _, rate) in enumerate(CELLS):
        if options.cells not in f"{name} at {rate}":
            continue
        found = measured(number, options.rounds)
        cell = {}
        for schedule, by_carrier in found.items():
            steps_s = {carrier: [step_s for step_s, _ in rounds] for carrier, rounds in by_carrier.items()}
            cell[schedule] = {
                "sockets_over_gloo": ratio(steps_s["sockets"], steps_s["gloo"]),
                "polling_over_sleeping": ratio(steps_s["sockets"], steps_s["sleeping"]),
                "step_s": {carrier: statistics.median(of) for carrier, of in steps_s.items()},
                "processor": {c: statistics.median(share for _, share in of) for c, of in by_carrier.items()},
                "rounds_s": steps_s,
            }
            told = [
                "{} {:.3f} [{:.3f}, {:.3f}]".format(what.replace("_", " "), found["median"], *found["ci95"])
                for what, found in cell[schedule].items()
                if what.endswith(("gloo", "sleeping"))
            ]
            print(f"{name} at {rate}, {schedule}: {', '.join(told)}", flush=True)
        table[f"{name} at {rate}"] = cell
    result = {
        "command": " ".join(["python benchmarks/sockets.py", *sys.argv[1:]]),
        "label": "real",
        "cells": table,
        "environment": environment.capture().model_dump(),
    }
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
