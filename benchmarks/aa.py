"""A/A: how often does a quick run call DDP different from itself?

    python benchmarks/aa.py [--runs 20] [--fabric shaped:hosts=2,rate=1gbit] [--output results/aa.json]

Each run is `xbench compare WORKLOAD --modes ddp,ddp@b --quick`: the same schedule under two names, in balanced order.
Any verdict but `equivalent` or `inconclusive` is a false alarm. Real compute, real links.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from xbench import environment
from xbench.record_files import RESULTS
from xbench.records import Comparison, load


def main() -> int:
    """Run, count, write; exit 1 when more than one run in twenty was a false alarm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--workload", default="mobilenet_v3_small")
    parser.add_argument("--fabric", default="shaped:hosts=2,rate=1gbit")
    parser.add_argument("--output", type=Path, default=Path("results/aa.json"))
    options = parser.parse_args()
    command = ["xbench", "compare", options.workload, "--modes", "ddp,ddp@b", "--quick", "--fabric", options.fabric]
    runs = []
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            record_file = Path(folder) / "record.json"
            subprocess.run(
                [sys.executable, "-m", *command, "--json", str(record_file)],
                check=True,
                capture_output=True,
                env=os.environ | {RESULTS: folder},
            )
            record = load(record_file)
        assert isinstance(record, Comparison)
        ratio = record.modes["ddp@b"].ratio
        assert ratio is not None
        runs.append(ratio.model_dump())
        print(
            f"run {number + 1}: {ratio.value:.3f} [{ratio.ci95[0]:.3f}, {ratio.ci95[1]:.3f}] {ratio.verdict}",
            flush=True,
        )
    alarms = sum(run["verdict"] in ("faster", "slower") for run in runs)
    result = {
        "label": "real",
        "command": " ".join(command),
        "made_by": f"python benchmarks/aa.py --runs {options.runs} --workload {options.workload}",
        "environment": environment.capture().model_dump(),
        "false_alarms": alarms,
        "runs": runs,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{alarms} false alarms in {len(runs)} runs; {options.output}")
    return 1 if alarms > len(runs) / 20 else 0


if __name__ == "__main__":
    sys.exit(main())
