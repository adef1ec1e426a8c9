"""How long does the exact plan take for L gradients: any curve in O(L²), a straight line in one pass?

    python benchmarks/planner_time.py [--output results/planner-time.json]

Random gradients (ready times uniform over a backward pass of 0.2 s, sizes log-uniform from 256 B to 8 MiB) and a link
of 1 Gbit/s with 0.3 ms a collective. The curve is that line, cut into 24 measured points. Medians of 15 plans each, in
turns. Real.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from xbench import environment
from xbench.planning.cost import CostCurve
from xbench.planning.merge import optimal_contiguous, optimal_line
from xbench.planning.simulate import Buckets, last_arrival_s
from xbench.planning.step import Gradient

ALPHA_S, BETA_S_PER_BYTE = 3e-4, 8e-9
SIZES = (60, 160, 600, 2000)
REPETITIONS = 15


def net(count: int) -> list[Gradient]:
    """`count` random gradients in ready order; the same ones every time."""
    random = np.random.default_rng(count)
    ready = np.sort(random.uniform(0.0, 0.2, count))
    nbytes = np.exp(random.uniform(np.log(256), np.log(8 * 1024**2), count))
    return [Gradient(f"w{k}", int(nbytes[k]), float(ready[k])) for k in range(count)]


def curve() -> CostCurve:
    """The line through 24 knots: what a measured curve costs to look up."""
    sizes = np.geomspace(1024, 1e9, 24)
    return CostCurve(sizes, ALPHA_S + BETA_S_PER_BYTE * sizes, BETA_S_PER_BYTE)


def main() -> None:
    """Time every planner on every size, check that they end alike, write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/planner-time.json"))
    options = parser.parse_args()
    line, knots = CostCurve.line(ALPHA_S, BETA_S_PER_BYTE), curve()
    planners: dict[str, Callable[[list[Gradient]], Buckets]] = {
        # behind a function the planner does not see that it is a line, and plans as for any curve
        "any curve, given a line": lambda gradients: optimal_contiguous(gradients, lambda nbytes: line(nbytes)),
        "any curve, given 24 points": lambda gradients: optimal_contiguous(gradients, knots),
        "a straight line": lambda gradients: optimal_line(gradients, ALPHA_S, BETA_S_PER_BYTE),
    }
    samples: dict[str, dict[int, list[float]]] = {name: {size: [] for size in SIZES} for name in planners}
    for size in SIZES:
        gradients = net(size)
        ends = {name: last_arrival_s(gradients, plan(gradients), line) for name, plan in planners.items()}
        assert abs(ends["a straight line"] / ends["any curve, given a line"] - 1) < 1e-9, ends
        for _ in range(REPETITIONS):
            for name, plan in planners.items():
                start_s = time.perf_counter()
                plan(gradients)
                samples[name][size].append(time.perf_counter() - start_s)
    result = {
        "label": "real",
        "made_by": "python benchmarks/planner_time.py",
        "environment": environment.capture().model_dump(),
        "gradients": list(SIZES),
        "median_s": {n: {k: statistics.median(v) for k, v in s.items()} for n, s in samples.items()},
        "longest_s": {n: {k: max(v) for k, v in s.items()} for n, s in samples.items()},
        "samples_s": samples,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    for name, by_size in samples.items():
        told = ", ".join(f"{size}: {1e3 * statistics.median(times):.2f} ms" for size, times in by_size.items())
        print(f"{name}: {told}")


if __name__ == "__main__":
    main()
