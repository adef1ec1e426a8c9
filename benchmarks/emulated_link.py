"""How well an emulated link keeps to its times, and whether waiting for it costs a computation anything.

    python benchmarks/emulated_link.py [--rounds 12] [--output results/emulated-link.json]

Asked for against got: collectives of 20 µs to 100 ms on an idle processor, waited for as a schedule waits. Beside a
computation: matrix products of about a second, alone and while collectives of 100 ms are under way whose arrival a
thread waits for, in turn (A B B A), as a ratio with its interval. One process on one core; times are real, the link is
emulated.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from pathlib import Path

from xbench import environment
from xbench.records import CostModel, EmulatedLink
from xbench.stats.compare import paired_ratio
from xbench.units import format_percent, format_seconds

LONG_S = 1e-3
IDLE_S = 0.1
BLOCK_S = 0.5


def main() -> None:
    """Measure both, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path("results/emulated-link.json"))
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import torch

    from xbench.emulation import calibrate, pacer_of

    torch.set_num_threads(1)
    waiting = CostModel(
        backend="formula", world_size=2, alpha_s=IDLE_S, beta_s_per_byte=0.0, alpha_ci95=(IDLE_S, IDLE_S),
        beta_ci95=(0.0, 0.0), max_relative_residual=0.0, points=[],
    )  # fmt: skip
    pacer = pacer_of(EmulatedLink(model=waiting))
    points = calibrate(pacer)
    long = [point.got_s / point.asked_s - 1 for point in points if point.asked_s >= LONG_S]

    a = torch.randn(256, 256)

    def work(count: int) -> float:
        begin_s = time.perf_counter()
        for _ in range(count):
            a @ a
        return time.perf_counter() - begin_s

    count = max(1, round(1000 * BLOCK_S / work(1000)))
    work(count)
    blocks: dict[str, list[tuple[int, int, float]]] = {"alone": [], "beside": []}
    for number in range(options.rounds):
        for kind in (
            ("alone", "beside", "beside", "alone") if number % 2 == 0 else ("beside", "alone", "alone", "beside")
        ):
            if kind == "beside":
                for _ in range(round(2 * BLOCK_S / IDLE_S)):
                    pacer.call(pacer.launch(1), lambda: None)
            blocks[kind].append((0, number, work(count)))
            time.sleep(2 * BLOCK_S if kind == "beside" else 0.0)  # until the link is idle again
    pairs = {
        kind: [(0, n, statistics.median(s for _, m, s in b if m == n)) for n in range(options.rounds)]
        for kind, b in blocks.items()
    }
    ratio = paired_ratio(pairs["beside"], pairs["alone"])
    pacer.close()
    found = {
        "label": "emulated",
        "command": shlex.join(["python", "benchmarks/emulated_link.py", *sys.argv[1:]]),
        "environment": environment.capture().model_dump(mode="json"),
        "calibration": [point.model_dump() for point in points],
        "median_error_from_1ms": statistics.median(long),
        "beside_over_alone": ratio.model_dump(),
        "blocks_s": blocks,
    }
    for point in points:
        print(f"asked {format_seconds(point.asked_s):>8}  got {format_seconds(point.got_s):>8}  "
              f"{format_percent(point.got_s / point.asked_s - 1, 2)}")  # fmt: skip
    print(f"median error from {format_seconds(LONG_S)} up: {format_percent(statistics.median(long), 2)}")
    low, high = ratio.ci95
    print(f"computation beside a wait over computation alone: {ratio.value:.4f} [{low:.4f}, {high:.4f}]")
    options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
