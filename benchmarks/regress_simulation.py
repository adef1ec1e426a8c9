"""How often would the gate be wrong? Whole checks, played through with noise that was recorded on real machines.

    python benchmarks/regress_simulation.py [--checks 4000] [--noise results/baselines/MACHINE/noise.json]
                                            [--output results/regress-simulation.json]

A check here is what `xbench regress check --base` does with its launches: a noise floor from 20 A/A pairs, `cases`
wall-clock cases of `pairs` launch pairs each, thresholds, tests, Holm, then fresh pairs of the suspected cases alone.
It runs through `xbench.stats.regression`, as the gate itself does. Each pair's log ratio is drawn from recorded ones,
with a random sign, because both of its launches ran the same code; a slow-down is added to one case.

Recorded are: `one launch`, ratios of DDP to itself inside a launch (results/aa.json); `launches`, ratios of one
launch's median to the next one's of the same mode, from the comparisons with two launches; `restless machine`, the
same of results/resnet50-one-rank.json, during which the machine changed its speed by 20 to 30 %; and the A/A pairs of
a noise record, where one is given. Draws are independent, which launches on one machine only nearly are.

`found` is a slow-down that ends as `regressed`, or, where nothing was slowed, a false alarm: any case of the check that
does. `line at the threshold` is the same with an interval whose lower end has to pass the whole threshold. Simulated.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binomtest

from xbench import environment
from xbench.records import Comparison, load
from xbench.regress.baseline import read_baseline
from xbench.regress.metrics import SLOWER
from xbench.stats.regression import agrees, log_ratios, noise_floor, verdicts

RESULTS = Path("results")
RESTLESS = "resnet50-one-rank.json"
ALPHA = 0.01
CALIBRATION_PAIRS = 20
CALIBRATIONS = 100
CASES = 4
PAIRS = (9, 10, 12, 16, 20)


class Scenario(NamedTuple):
    """What is done to one case of the check."""

    slow_down: float
    or_twice_the_floor: bool = False
    """Whether twice the floor is the slow-down where that is more."""
    calibrated: bool = True
    """Whether thresholds know the noise floor."""


SCENARIOS = {
    "none": Scenario(0.0),
    "none, never calibrated": Scenario(0.0, calibrated=False),
    "5 %": Scenario(0.05),
    "10 %": Scenario(0.10),
    "the larger of 5 % and twice the floor": Scenario(0.05, or_twice_the_floor=True),
    "the larger of 10 % and twice the floor": Scenario(0.10, or_twice_the_floor=True),
}


def recorded(noise: Path | None) -> dict[str, list[float]]:
    """Log ratios of two launches (or blocks of them) of the same code, by where they come from."""
    found: dict[str, list[float]] = defaultdict(list)
    aa = json.loads((RESULTS / "aa.json").read_text())
    found["one launch"] = [math.log(run["value"]) for run in aa["runs"]]
    for path in sorted(RESULTS.glob("*.json")):
        if json.loads(path.read_text()).get("kind") != "comparison":
            continue
        record = load(path)
        assert isinstance(record, Comparison)
        found["restless machine" if path.name == RESTLESS else "launches"] += from_launch_to_launch(record)
    if noise is not None:
        aa_pairs = read_baseline(noise)
        for case in {one.case for pair in aa_pairs.pairs for one in pair.base}:
            ratios = [ratio for pair in aa_pairs.pairs if (ratio := pair.ratio(case)) is not None]
            found[f"{noise}: {case.check}/{case.mode} {case.metric}"] = log_ratios(ratios)
    return dict(found)


def from_launch_to_launch(record: Comparison) -> list[float]:
    """log of a launch's median step over that of the launch before, for every mode."""
    steps: dict[tuple[str, int], list[float]] = defaultdict(list)
    for sample in record.samples:
        if sample.job == 0:
            steps[sample.mode, sample.launch].append(sample.step_s)
    launches = sorted({launch for _, launch in steps})
    return [
        math.log(statistics.median(steps[mode, after]) / statistics.median(steps[mode, before]))
        for mode in record.modes
        for before, after in pairwise(launches)
        if (mode, before) in steps and (mode, after) in steps
    ]


class Machine:
    """Draws what launch pairs of one source might show."""

    def __init__(self, ratios: list[float], seed: int) -> None:
        self.ratios = np.asarray(ratios)
        self.random = np.random.default_rng(seed)

    def draw(self, pairs: int, slow_down: float = 0.0) -> list[float]:
        """Log ratios of so many pairs, head slower by that share."""
        drawn = self.random.choice(self.ratios, pairs) * self.random.choice([-1.0, 1.0], pairs)
        return [math.log1p(slow_down) + float(value) for value in drawn]

    def floors(self, pairs: int) -> list[float]:
        """Floors that calibrations of this machine might have found."""
        found = [noise_floor(self.draw(CALIBRATION_PAIRS), pairs) for _ in range(CALIBRATIONS)]
        return [floor for floor in found if floor is not None]


def checked(machine: Machine, pairs: int, slow_down: float, floor: float, line: float) -> tuple[bool, bool]:
    """One check: whether it suspects, and whether fresh launches agree."""
    threshold = max(SLOWER, 2 * floor)
    slowed = [slow_down, *[0.0] * (CASES - 1)]
    first = verdicts([machine.draw(pairs, share) for share in slowed], [threshold] * CASES, ALPHA, line=line)
    suspects = [share for share, verdict in zip(slowed, first, strict=True) if verdict.word == "regressed"]
    if slow_down and (not suspects or suspects[0] != slow_down):
        return False, False
    if not suspects:
        return False, False
    again = verdicts([machine.draw(pairs, share) for share in suspects], [threshold] * len(suspects), ALPHA, line=line)
    agree = [agrees(verdict, threshold, ALPHA, line=line) for verdict in again]
    return True, agree[0] if slow_down else any(agree)


def cell(machine: Machine, pairs: int, name: str, checks: int) -> dict[str, Any]:
    """The share of checks that find this slow-down, with exact 95 % intervals."""
    scenario = SCENARIOS[name]
    floors = machine.floors(pairs)
    counts: dict[float, list[int]] = {0.5: [0, 0], 1.0: [0, 0]}
    for line, count in counts.items():
        for number in range(checks):
            floor = floors[number % len(floors)]
            slow_down = max(scenario.slow_down, 2 * floor * scenario.or_twice_the_floor)
            suspected, agreed = checked(machine, pairs, slow_down, floor if scenario.calibrated else 0.0, line)
            count[0] += suspected
            count[1] += agreed
    interval = binomtest(counts[0.5][1], checks).proportion_ci(0.95)
    return {
        "pairs": pairs,
        "slow_down": name,
        "median_floor": statistics.median(floors),
        "found": counts[0.5][1] / checks,
        "found_ci95": [interval.low, interval.high],
        "suspected_before_confirmation": counts[0.5][0] / checks,
        "found_with_the_line_at_the_threshold": counts[1.0][1] / checks,
    }


def main() -> None:
    """Every source, number of pairs and slow-down; prints a table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=2000)
    parser.add_argument("--noise", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS / "regress-simulation.json")
    options = parser.parse_args()
    sources = recorded(options.noise)
    cells: dict[str, list[dict[str, Any]]] = {}
    for source, ratios in sources.items():
        print(f"{source}: {len(ratios)} recorded ratios, median {100 * statistics.median(map(abs, ratios)):.1f} %")
        cells[source] = []
        for pairs in PAIRS:
            for name in SCENARIOS:
                found = cell(Machine(ratios, seed=pairs), pairs, name, options.checks)
                cells[source].append(found)
                low, high = found["found_ci95"]
                print(
                    f"  {pairs} pairs, {name}: floor {100 * found['median_floor']:.1f} %, found "
                    f"{100 * found['found']:.2f} % [{100 * low:.2f}, {100 * high:.2f}], suspected "
                    f"{100 * found['suspected_before_confirmation']:.2f} %, line at the threshold "
                    f"{100 * found['found_with_the_line_at_the_threshold']:.2f} %",
                    flush=True,
                )
    result = {
        "label": "simulated, from recorded samples",
        "made_by": f"python benchmarks/regress_simulation.py --checks {options.checks}"
        + (f" --noise {options.noise}" if options.noise else ""),
        "environment": environment.capture().model_dump(),
        "alpha": ALPHA,
        "cases": CASES,
        "calibration_pairs": CALIBRATION_PAIRS,
        "checks": options.checks,
        "recorded_log_ratios": sources,
        "cells": cells,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
