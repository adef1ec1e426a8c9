"""How long does `xbench --help` take, beside a Python that does nothing?

    python benchmarks/help_time.py [--output results/help-time.json]

Whole processes, alternating, 20 of each. Real.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from xbench import environment

COMMANDS = {"xbench --help": ["-m", "xbench", "--help"], "python -c pass": ["-c", "pass"]}


def main() -> None:
    """Time both, write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/help-time.json"))
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(20):
        for name, arguments in COMMANDS.items():
            start_s = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            times[name].append(time.perf_counter() - start_s)
    result = {
        "label": "real",
        "made_by": "python benchmarks/help_time.py",
        "environment": environment.capture().model_dump(),
        "median_s": {name: statistics.median(values) for name, values in times.items()},
        "longest_s": {name: max(values) for name, values in times.items()},
        "samples_s": times,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    for name, values in times.items():
        print(f"{name}: median {statistics.median(values):.3f} s, longest {max(values):.3f} s")


if __name__ == "__main__":
    main()
