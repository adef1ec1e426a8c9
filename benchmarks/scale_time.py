"""How long does it take to predict every mode on ten sizes for a model of 600 tensors?

    python benchmarks/scale_time.py [--repeats 9] [--output results/scale-time.json]

Each topology, with a straight cost model, with one of several pieces, and with that and contention; timed is
`planning.scale.scale` alone. Real times of a simulation.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import numpy as np

from xbench import environment
from xbench.modes import planned_modes
from xbench.planning.contention import Contention
from xbench.planning.plans import Planner
from xbench.planning.scale import scale
from xbench.planning.step import Gradient, StepModel
from xbench.planning.topology import parse_topology
from xbench.records import CostModel, CostSegment, ErrorBand, Layer, Tensor

TENSORS = 600
MODES = planned_modes()
SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BAND = ErrorBand(share=0.1, source="given")
TOPOLOGIES = ("ring", "tree", "halving-doubling", "hierarchical:gpus=8")


def model() -> StepModel:
    """600 tensors as a densenet has them: many of a few hundred bytes, some of a megabyte, 80 MB in all."""
    chance = random.Random(0)
    sizes = [chance.choice([256, 512, 4096, 65536, 600_000]) for _ in range(TENSORS)]
    gradients = tuple(Gradient(f"layer{i}.weight", size, 0.2 * (i + 1) / TENSORS) for i, size in enumerate(sizes))
    return StepModel(gradients, 0.1, 0.2, 0.01)


def layers(step: StepModel) -> list[Layer]:
    """A layer for every two tensors, as a convolution or a normalisation may have them."""
    pairs = [step.gradients[k : k + 2] for k in range(0, len(step.gradients), 2)]
    return [
        Layer(
            name=f"layer{number}", kind="Conv2d", parameters=1, grad_bytes=sum(g.nbytes for g in pair),
            forward_s=step.forward_s / len(pairs), backward_s=0.0, ready_s=pair[-1].ready_s, share=0.0,
            tensors=[
                Tensor(name=g.name, elements=g.elements, bytes=g.nbytes, dtype=g.dtype, ready_s=g.ready_s)
                for g in pair
            ],
        )
        for number, pair in enumerate(pairs)
    ]  # fmt: skip


def costs() -> dict[str, CostModel]:
    """A straight line as at 1 Gbit/s, and the same with three pieces."""
    line = CostModel(
        backend="gloo",
        world_size=2,
        alpha_s=3e-4,
        beta_s_per_byte=8.2e-9,
        alpha_ci95=(2e-4, 4e-4),
        beta_ci95=(8e-9, 8.4e-9),
        max_relative_residual=0.05,
        points=[],
    )
    pieces = [
        CostSegment(from_bytes=1024, alpha_s=2e-4, beta_s_per_byte=2e-9),
        CostSegment(from_bytes=65536, alpha_s=-1.6e-4, beta_s_per_byte=7.5e-9),
        CostSegment(from_bytes=1048576, alpha_s=-9e-4, beta_s_per_byte=8.2e-9),
    ]
    return {"line": line, "segments": line.model_copy(update={"segments": pieces})}


def contention() -> Contention:
    """Collectives and computation that slow each other down by a fifth to a half."""
    sizes = np.log(np.array([4096.0, 65536.0, 524288.0, 8388608.0]))
    collective = np.array([[1.5, 1.4, 1.3, 1.2], [1.2, 1.2, 1.2, 1.1]])
    compute = np.array([[1.4, 1.4, 1.3, 1.3], [1.5, 1.4, 1.3, 1.3]])
    return Contention(sizes, collective, compute, 3e-6, 2e-11)


def main() -> None:
    """Time every combination, write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, default=Path("results/scale-time.json"))
    options = parser.parse_args()
    step = model()
    ahead = layers(step)
    samples: dict[str, list[float]] = {}
    for topology in TOPOLOGIES:
        line, pieces = costs().values()
        cases = {"line": (line, None), "segments": (pieces, None), "segments, contention": (pieces, contention())}
        for name, (cost, shared) in cases.items():
            times = samples.setdefault(f"{topology}, {name}", [])
            planner = Planner(step, cost, shared, layers=ahead)
            for _ in range(options.repeats):
                start_s = time.perf_counter()
                found = scale(planner, parse_topology(topology), SIZES, MODES, batch_size=4, band=BAND)
                times.append(time.perf_counter() - start_s)
                assert len(found) == len(MODES) * len(SIZES)
    result = {
        "label": "real",
        "made_by": f"python benchmarks/scale_time.py --repeats {options.repeats}",
        "environment": environment.capture().model_dump(),
        "tensors": TENSORS,
        "sizes": list(SIZES),
        "modes": list(MODES),
        "median_s": {name: statistics.median(times) for name, times in samples.items()},
        "longest_s": {name: max(times) for name, times in samples.items()},
        "samples_s": samples,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    for name, times in samples.items():
        print(f"{name}: median {statistics.median(times):.3f} s, longest {max(times):.3f} s")


if __name__ == "__main__":
    main()
