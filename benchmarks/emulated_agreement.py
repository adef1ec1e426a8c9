"""Does an emulated link give the steps of the link that it was measured on?

    python benchmarks/emulated_agreement.py [--workload "resnet18 --batch-size 8 --image-size 128"] [--rate 1gbit]
        [--output results/emulated-agreement.json]

Shaped, emulated, emulated, shaped, in one go, so that a machine that changes its speed slants both alike: first a
comparison on two shaped hosts, whose cost model and contention the emulated ones are then as (`emulated:from=`). Of
each mode the step on the emulated link over the step on the shaped one, means of both; and the same at speed: each step
over what the model says of it at the speed that the computation had in that very run. Shaped steps are real.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from xbench import environment
from xbench.records import Comparison, load
from xbench.runtime.validate import cell_of

MODES = "compute,ddp,single,wfbp,mgwfbp,optimal,auto"
GOAL = 0.05


def compared(workload: str, fabric: str, folder: Path, effort: list[str]) -> tuple[Comparison, Path]:
    """A comparison on this fabric, and where its record is."""
    words = ["compare", *shlex.split(workload), "--fabric", fabric, "--modes", MODES, *effort]
    print(f"xbench {' '.join(words)}", flush=True)
    subprocess.run(
        [sys.executable, "-m", "xbench", *words, "--output", str(folder)], check=True, capture_output=True, text=True
    )
    (path,) = folder.glob("*/record.json")
    record = load(path)
    assert isinstance(record, Comparison)
    return record, path


def at_speed(record: Comparison, mode: str) -> float:
    """The mode's step over the model's, at the speed of the computation in this run."""
    (point,) = (point for point in cell_of(record, "").points if point.mode == mode)
    return 1 / (1 + (point.error_at_speed or 0.0))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="resnet18 --batch-size 8 --image-size 128")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", default="4")
    parser.add_argument("--output", type=Path, default=Path("results/emulated-agreement.json"))
    options = parser.parse_args()
    shaped = f"shaped:hosts=2,rate={options.rate}"
    effort = ["--launches", "1", "--rounds", options.rounds]
    records: dict[str, list[Comparison]] = {"shaped": [], "emulated": []}
    with tempfile.TemporaryDirectory() as base:
        first, source = compared(options.workload, shaped, Path(base) / "0", effort)
        records["shaped"].append(first)
        for number, kind in enumerate(("emulated", "emulated", "shaped"), start=1):
            fabric = shaped if kind == "shaped" else f"emulated:from={source}"
            records[kind].append(compared(options.workload, fabric, Path(base) / str(number), effort)[0])
    found = {}
    for mode in MODES.split(","):
        steps = {
            kind: [r.modes[mode].step_s.model_dump() for r in each if r.modes[mode].step_s is not None]  # type: ignore[union-attr]
            for kind, each in records.items()
        }
        means = {kind: statistics.fmean(step["median"] for step in each) for kind, each in steps.items()}
        against = {kind: statistics.fmean(at_speed(r, mode) for r in each) for kind, each in records.items()}
        found[mode] = {
            "steps_s": steps,
            "emulated_over_shaped": means["emulated"] / means["shaped"],
            "at_speed": against["emulated"] / against["shaped"],
        }
        print(f"{mode:8} shaped {means['shaped']:.4f} s  emulated {means['emulated']:.4f} s  "
              f"ratio {found[mode]['emulated_over_shaped']:.3f}, at speed {found[mode]['at_speed']:.3f}",
              flush=True)  # fmt: skip
    worst = max(abs(float(row["at_speed"]) - 1) for row in found.values())  # type: ignore[arg-type]
    print(f"largest difference at speed {worst:.1%} (goal {GOAL:.0%})")
    model = first.cost_model
    assert model is not None
    result = {
        "label": "emulated beside real",
        "command": shlex.join(["python", "benchmarks/emulated_agreement.py", *sys.argv[1:]]),
        "environment": environment.capture().model_dump(mode="json"),
        "workload": options.workload,
        "shaped": shaped,
        "cost_model": {"alpha_s": model.alpha_s, "beta_s_per_byte": model.beta_s_per_byte},
        "modes": found,
        "largest_difference_at_speed": worst,
        "goal": GOAL,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
