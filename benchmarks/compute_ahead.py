"""Step without communication, predicted three ways, against the blocks of `compute` that follow.

    python benchmarks/compute_ahead.py [FOLDER]

Reads the comparisons in FOLDER (default: results) whose first launch has at least four blocks of `compute`, and runs
nothing. The later blocks are predicted by the profile's step, by the first block, and by the mean of the two.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from xbench.errors import RecordError
from xbench.records import Comparison, load, of_kind

BLOCKS = 4
"""Fewest blocks of `compute` in the first launch."""


def errors(record: Comparison) -> dict[str, float] | None:
    """Relative error of each prediction; None if the record has too few blocks."""
    step = record.jobs[0].step if record.jobs else None
    taken = [s for s in record.samples if (s.mode, s.launch, s.job) == ("compute", 0, 0)]
    if step is None or len(taken) < BLOCKS:
        return None
    first_s, *later_s = (sample.step_s for sample in sorted(taken, key=lambda sample: sample.started_s or 0.0))
    later, profiled_s = statistics.median(later_s), step.uninstrumented_step_s
    predicted = {"profile": profiled_s, "first block": first_s, "mean of both": (profiled_s + first_s) / 2}
    return {name: predicted_s / later - 1 for name, predicted_s in predicted.items()}


def main() -> None:
    """Print the errors of every comparison, and their summary."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    found: list[dict[str, float]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = of_kind(load(path), Comparison)
        except RecordError:
            continue
        each = errors(record) if record is not None else None
        if each is not None:
            print(f"{path.name:32}", *(f"{name} {error:+.1%}" for name, error in each.items()), sep="  ")
            found.append(each)
    print(f"{len(found)} comparisons; the later blocks were slower than the profile in "
          f"{sum(each['profile'] < 0 for each in found)}")  # fmt: skip
    for name in found[0] if found else ():
        sizes = [abs(each[name]) for each in found]
        print(f"{name}: off by {statistics.median(sizes):.1%} in the median, {max(sizes):.1%} at most")


if __name__ == "__main__":
    main()
