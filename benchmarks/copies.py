"""How long a step takes with each way to get gradients into a collective, with and without compression.

    python benchmarks/copies.py [--rounds 20] [--steps 5] [--output results/copies-gloo.json]
    torchrun --nproc-per-node 8 benchmarks/copies.py --device cuda [--output results/copies-nccl.json]

Two ranks over the loopback interface, each pinned to a core of its own (both to the only one where there is one), or
the GPUs that torchrun hands out. Within one process the ways take turns, in an order that is turned each round, so that
drift meets all alike; a round's value is the median step of the slowest rank, and ratios, with their 95 % intervals,
are to `views` in the same rounds. Real times of real training steps. Buckets have 4 MiB, in reverse order of
registration.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from xbench import environment
from xbench.stats.compare import REFERENCE_RATIO, BlockValue, paired_ratio

WORKLOADS = {
    "resnet18 batch 4 at 64x64": {"name": "resnet18", "batch_size": 4, "image_size": 64},
    "transformer-tiny batch 8 of 64 tokens": {"name": "transformer-tiny", "batch_size": 8, "seq_len": 64},
}
WAYS = (("views", None), ("coalesced", None), ("fused", None), ("views", "bf16"), ("fused", "bf16"))
BUCKET_BYTES = 4 * 2**20


def rank(options: argparse.Namespace) -> None:
    """One rank: times every way on every workload; rank 0 prints the rounds of each as JSON, the last line."""
    import torch
    import torch.distributed as dist

    from xbench.host.tuning import raise_gloo_threads
    from xbench.schedules.engine import Engine
    from xbench.schedules.served_parameters import trainable
    from xbench.spec import WorkloadSpec
    from xbench.workloads.build import build

    cuda = options.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    dist.all_reduce(torch.zeros(1, device=device))
    raise_gloo_threads()
    found: dict[str, dict[str, list[float]]] = {}
    for title, words in WORKLOADS.items():
        workload = build(WorkloadSpec(**words), device, rank=dist.get_rank())  # type: ignore[arg-type]
        plan: list[list[str]] = [[]]
        carried = 0
        for name, parameter in reversed(trainable(workload.model).items()):
            if carried >= BUCKET_BYTES:
                plan.append([])
                carried = 0
            plan[-1].append(name)
            carried += parameter.numel() * parameter.element_size()

        def block(copies: Any, compress: Any, workload: Any = workload, plan: Any = plan) -> float:
            engine = Engine(workload.model, workload.optimizer, plan, wait="step", copies=copies, compress=compress)
            took_s = []
            for _ in range(1 + options.steps):
                dist.all_reduce(torch.zeros(1, device=device))
                if cuda:
                    torch.cuda.synchronize()
                start_s = time.perf_counter()
                workload.optimizer.zero_grad(set_to_none=True)
                workload.forward_loss().backward()
                workload.optimizer.step()
                if cuda:
                    torch.cuda.synchronize()
                took_s.append(time.perf_counter() - start_s)
            engine.detach()
            slowest = torch.tensor(took_s[1:], dtype=torch.float64, device=device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            return statistics.median(slowest.tolist())

        times = found.setdefault(title, {})
        for number in range(options.rounds):
            turned = WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]
            for copies, compress in turned:
                name = copies if compress is None else f"{copies}, {compress}"
                times.setdefault(name, []).append(block(copies, compress))
    if dist.get_rank() == 0:
        _tell(found, options, dist.get_backend(), dist.get_world_size())
    dist.barrier()


def _tell(found: dict[str, dict[str, list[float]]], options: argparse.Namespace, backend: str, world: int) -> None:
    table = {}
    for title, times in found.items():
        blocks = {
            way: [BlockValue(0, number, took_s) for number, took_s in enumerate(row)] for way, row in times.items()
        }
        ratios = {
            way: REFERENCE_RATIO if way == "views" else paired_ratio(row, blocks["views"])
            for way, row in blocks.items()
        }
        table[title] = {
            way: {"step_s": statistics.median(row), "over_views": ratios[way].model_dump(), "rounds_s": row}
            for way, row in times.items()
        }
        for way, ratio in ratios.items():
            print(f"{title}: {way} {ratio.value:.3f} [{ratio.ci95[0]:.3f}, {ratio.ci95[1]:.3f}] of views")
    if options.output is not None:
        result = {
            "command": " ".join(["python benchmarks/copies.py", *sys.argv[1:]]),
            "label": "real", "backend": backend, "ranks": world,
            "rounds": options.rounds, "steps": options.steps, "bucket_bytes": BUCKET_BYTES, "ways": table,
            "environment": environment.capture().model_dump(),
        }  # fmt: skip
        options.output.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    """Under torchrun one rank; else start two, and show what rank 0 says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank(options)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, *sys.argv[1:]]
    ranks = [subprocess.Popen(command, env=os.environ | meeting | {"RANK": str(index)}) for index in range(2)]
    sys.exit(max(process.wait() for process in ranks))


if __name__ == "__main__":
    main()
