"""How far predictions are off in comparisons that were made: every single-job mode but the control, of all files.

    python benchmarks/emulated_predictions.py results/emulated-resnet18-*.json

Nothing is measured: the errors are those in the records, and beside them those of the same plans predicted at the
speed that the computation had among the timed blocks, where `compute` was one of the modes: by that a machine that
became slower or faster after the profile is told apart from a model that is wrong (`error_at_speed` of
benchmarks/study).
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from study.cells import cell_of

from xbench.modes import mode_info
from xbench.records import Comparison, load
from xbench.units import format_percent, format_signed_percent


def main() -> None:
    """The worst of each file, and the median and the worst of all."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    made: list[float] = []
    at_speed: list[float] = []
    for name in sys.argv[1:]:
        record = load(Path(name))
        if not isinstance(record, Comparison):
            sys.exit(f"{name} is no comparison")
        cell = cell_of(record)
        points = [point for point in cell["points"] if mode_info(point["mode"]).trains]
        raw = [abs(point["error"]) for point in points]
        again = [abs(point["error_at_speed"]) for point in points if point["error_at_speed"] is not None]
        made += raw
        at_speed += again
        blocks_s, moved = cell["compute_blocks_s"], ""
        if blocks_s is not None:
            moved = f", computation {format_signed_percent(blocks_s / cell['compute_s'] - 1)}"
        print(f"{name}: {len(points)} modes{moved}")
        print(f"    as predicted  {said(raw)}")
        print(f"    at the speed  {said(again)}")
    print(f"all: {len(made)} predictions")
    print(f"    as predicted  {said(made)}")
    print(f"    at the speed  {said(at_speed)}")


def said(errors: list[float]) -> str:
    """The median and the worst."""
    if not errors:
        return "not known: no compute among the modes"
    return f"median {format_percent(statistics.median(errors))}, worst {format_percent(max(errors))}"


if __name__ == "__main__":
    main()
