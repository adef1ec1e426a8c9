"""Does an emulated link give the steps of the link that it was measured on?

    python benchmarks/emulated_agreement.py [--workload "resnet18 --batch-size 8 --image-size 128"] [--rate 1gbit]
        [--modes compute,ddp,...] [--output results/emulated-agreement.json]

Shaped, emulated, emulated, shaped, in one go, so that a machine that changes its speed slants both alike: first a
comparison on two shaped hosts, whose cost model and contention the emulated ones are then as (`emulated:from=`). Two
shaped hosts compute beside each other, each on its share of the cores, and that makes both slower; so an emulated run
is two at once, each on the cores of one of the hosts, that know nothing of each other. A step on shaped hosts takes
what it takes on the slower of them; so does one of two emulated runs at once, step by step, in single-job modes. Of
each mode the step on the emulated link over the step on the shaped one, means of all; and for single-job modes the same
at speed: each step over what the model says of it at the speed that the computation had in that very run. Shaped steps
are real.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study.cells import cell_of

from xbench import environment
from xbench.record_files import RESULTS
from xbench.records import Comparison, load
from xbench.records.parts import Estimate
from xbench.runs.event_collector import block_step_s
from xbench.stats.summary import median_estimate

MODES = "compute,ddp,single,wfbp,mgwfbp,optimal,auto"
GOAL = 0.05


def compared(
    workload: str, fabric: str, modes: str, folder: Path, effort: list[str], beside: list[list[int]] | None = None
) -> list[tuple[Comparison, Path]]:
    """Comparisons on this fabric, one for each of the sets of cores in `beside`, at once; and where their records are.

    Raises SystemExit with what it printed when one fails.
    """
    words = ["compare", *shlex.split(workload), "--fabric", fabric, "--modes", modes, *effort]
    everywhere = sorted(os.sched_getaffinity(0))
    running = []
    for number, cores in enumerate(beside or [everywhere]):
        print(f"xbench {' '.join(words)}" + (f"  (on cores {cores})" if beside else ""), flush=True)
        os.sched_setaffinity(0, cores)  # which a child inherits
        own = folder / str(number)
        own.mkdir(parents=True)
        with (own / "said").open("w") as said:
            command = [sys.executable, "-m", "xbench", *words]
            env = os.environ | {RESULTS: str(own)}
            running.append((own, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=env)))
    os.sched_setaffinity(0, everywhere)
    codes = [process.wait() for _, process in running]
    found = []
    for (own, _), code in zip(running, codes, strict=True):
        if code != 0:
            raise SystemExit((own / "said").read_text()[-3000:])
        (path,) = own.glob("*/record.json")
        record = load(path)
        assert isinstance(record, Comparison)
        found.append((record, path))
    return found


def steps_of(run: Sequence[Comparison], mode: str) -> list[Estimate]:
    """A mode's step in one run: on the slower host of each step, or on each host where two jobs are timed by a mean."""
    if len(run) == 1 or any(asked.paired for asked in run[0].spec.modes if asked.text == mode):
        return [found for found in (record.modes[mode].step_s for record in run) if found is not None]
    blocks: dict[tuple[int, int], list[Sequence[float]]] = {}
    for sample in (sample for record in run for sample in record.samples if sample.mode == mode):
        blocks.setdefault((sample.launch, sample.round), []).append(sample.steps_s)
    return [
        median_estimate(
            [block_step_s(mode, [max(hosts) for hosts in zip(*block, strict=True)]) for block in blocks.values()]
        )
    ]


def at_speed(record: Comparison, mode: str) -> float | None:
    """The mode's step over the model's, at the speed of the computation in this run; None without the control mode."""
    if "compute" not in record.modes:
        return None
    (point,) = (point for point in cell_of(record)["points"] if point["mode"] == mode)
    return None if point["error_at_speed"] is None else 1 / (1 + point["error_at_speed"])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="resnet18 --batch-size 8 --image-size 128")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--modes", default=MODES)
    parser.add_argument("--rounds", default="12", help="of blocks of 4 steps: runs at once are paired by their steps")
    parser.add_argument("--output", type=Path, default=Path("results/emulated-agreement.json"))
    options = parser.parse_args()
    shaped = f"shaped:hosts=2,rate={options.rate}"
    effort = ["--quick", "--rounds", options.rounds]
    runs: dict[str, list[list[Comparison]]] = {"shaped": [], "emulated": []}
    with tempfile.TemporaryDirectory() as base:
        ((first, source),) = compared(options.workload, shaped, options.modes, Path(base) / "0", effort)
        runs["shaped"].append([first])
        apart = [cores for cores in first.fabric.cores_per_rank if cores]
        for number, kind in enumerate(("emulated", "emulated", "shaped"), start=1):
            fabric, beside = (shaped, None) if kind == "shaped" else (f"emulated:from={source}", apart)
            found_here = compared(options.workload, fabric, options.modes, Path(base) / str(number), effort, beside)
            runs[kind].append([record for record, _ in found_here])
    found: dict[str, dict[str, Any]] = {}
    for mode in options.modes.split(","):
        steps = {kind: [step for run in each for step in steps_of(run, mode)] for kind, each in runs.items()}
        means = {kind: statistics.fmean(step.median for step in each) for kind, each in steps.items()}
        over = means["emulated"] / means["shaped"]
        against = {kind: [at_speed(r, mode) for run in each for r in run] for kind, each in runs.items()}
        known = {kind: [each for each in values if each is not None] for kind, values in against.items()}
        found[mode] = {
            "steps_s": {kind: [step.model_dump() for step in each] for kind, each in steps.items()},
            "emulated_over_shaped": over,
        }
        line = f"{mode:10} shaped {means['shaped']:.4f} s  emulated {means['emulated']:.4f} s  ratio {over:.3f}"
        if all(known.values()):
            speed = statistics.fmean(known["emulated"]) / statistics.fmean(known["shaped"])
            found[mode]["at_speed"] = speed
            line += f", at speed {speed:.3f}"
        print(line, flush=True)
    worst = max(abs(row["emulated_over_shaped"] - 1) for row in found.values())
    print(f"largest difference {worst:.1%} (goal {GOAL:.0%})")
    speeds = [abs(row["at_speed"] - 1) for row in found.values() if "at_speed" in row]
    if speeds:
        print(f"largest difference at speed {max(speeds):.1%}")
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
        "largest_difference": worst,
        "largest_difference_at_speed": max(speeds) if speeds else None,
        "goal": GOAL,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
