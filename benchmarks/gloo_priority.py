"""Time of a small all-reduce on two ranks of one core each, with Gloo's threads as they are and raised.

    python benchmarks/gloo_priority.py [--rounds 5] [--repeats 300] [--output results/gloo-priority.json]

Two ranks over the loopback interface, each pinned to a core of its own (both to the only one where there is one). Each
round starts two pairs of ranks in turn: one with threads as they are, one with the sending ones raised. Beside a
computation: all-reduces are launched, products of matrices that take milliseconds are computed, all-reduces are waited
for; the time is that of the whole. Real times. Without the right to raise priorities both kinds are the same, and the
output says so.
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
from itertools import product
from pathlib import Path

from xbench import environment

BYTES = (1024, 65536, 1048576)
IN_FLIGHT = (1, 6)
KINDS = {"as they are": "plain", "before the loop": "raised"}
EDGE, PRODUCTS = 192, 36


def rank(index: int, kind: str, repeats: int) -> None:
    """One rank: times an all-reduce [s] by size and how many are in flight, as JSON on stdout of rank 0."""
    import torch
    import torch.distributed as dist

    from xbench.host_tuning import raise_gloo_threads

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.zeros(1))
    raised = raise_gloo_threads() if kind == "raised" else 0
    found: dict[str, list[float]] = {}
    matrix = torch.randn(EDGE, EDGE)

    def compute() -> None:
        for _ in range(PRODUCTS):
            matrix @ matrix

    for nbytes, in_flight in product(BYTES, IN_FLIGHT):
        buffers = [torch.zeros(nbytes // 4) for _ in range(in_flight)]
        times = found.setdefault(f"{nbytes} B, {in_flight} in flight", [])
        for _ in range(repeats):
            start_s = time.perf_counter()
            for work in [dist.all_reduce(buffer, async_op=True) for buffer in buffers]:
                work.wait()
            times.append((time.perf_counter() - start_s) / in_flight)
        times = found.setdefault(f"{nbytes} B, {in_flight} beside a computation", [])
        for _ in range(repeats):
            start_s = time.perf_counter()
            travelling = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
            compute()
            for work in travelling:
                work.wait()
            times.append(time.perf_counter() - start_s)
    times = found.setdefault("computation alone", [])
    for _ in range(repeats):
        start_s = time.perf_counter()
        compute()
        times.append(time.perf_counter() - start_s)
    if index == 0:
        print(json.dumps({"raised": raised, "times": found}))
    dist.barrier()


def pair(kind: str, repeats: int) -> dict:  # type: ignore[type-arg]
    """Both ranks, from start to end: what rank 0 printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(index), "--repeats", str(repeats), "--kind", kind],
            env=os.environ | {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[0] for process in ranks]
    return json.loads(said[0])  # type: ignore[no-any-return]


def main() -> None:
    """All kinds in turn, and a summary of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS.values(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank(options.rank, options.kind, options.repeats)
        return
    samples: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    raised = 0
    for number in range(options.rounds):
        for kind in list(KINDS)[:: 1 if number % 2 == 0 else -1]:
            found = pair(KINDS[kind], options.repeats)
            raised = max(raised, found["raised"])
            for size, times in found["times"].items():
                samples[kind].setdefault(size, []).extend(times)
    table = {kind: {size: _summary(times) for size, times in by_size.items()} for kind, by_size in samples.items()}
    result = {
        "command": "python benchmarks/gloo_priority.py",
        "label": "real",
        "threads_raised": raised,
        "rounds": options.rounds,
        "repeats": options.repeats,
        "seconds": table,
        "environment": environment.capture().model_dump(),
    }
    print(json.dumps(table, indent=1))
    if raised == 0:
        print("no thread could be raised: all kinds are the same", file=sys.stderr)
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


def _summary(times: list[float]) -> dict[str, float]:
    tenths = statistics.quantiles(times, n=10)
    return {"p10": tenths[0], "median": tenths[4], "p90": tenths[8], "mean": statistics.fmean(times)}


if __name__ == "__main__":
    main()
