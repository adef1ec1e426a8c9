"""How far predictions are off in comparisons that were made: every single-job mode but the control, of all files.

    python benchmarks/emulated_predictions.py results/emulated-resnet18-*.json

Nothing is measured: the errors are those in the records.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from xbench.records import Comparison, load
from xbench.units import format_percent


def main() -> None:
    """The worst of each file, and the median and the worst of all."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    everything: list[float] = []
    for name in sys.argv[1:]:
        record = load(Path(name))
        if not isinstance(record, Comparison):
            sys.exit(f"{name} is no comparison")
        errors = [
            abs(mode.prediction_error)
            for mode in record.modes.values()
            if mode.prediction_error is not None and mode.mode != "compute" and mode.pattern is None
        ]
        everything += errors
        print(f"{name}: {len(errors)} predictions, worst {format_percent(max(errors))}")
    print(f"median {format_percent(statistics.median(everything))} of {len(everything)} predictions, "
          f"worst {format_percent(max(everything))}")  # fmt: skip


if __name__ == "__main__":
    main()
