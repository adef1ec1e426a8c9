"""Simulation of the error rates of the verdicts of a comparison, and of their power to find a difference.

    python benchmarks/verdict_simulation.py [--runs 150] [--output results/verdict-simulation.json]

A run here is what `xbench compare` times: launches of rounds, in each one block of every mode, in the order of
`stats.blocks`. It is judged by `xbench.stats` itself. Every situation has block noise of 1 %; the others add one thing:

- `correlated 0.5`, `correlated 0.8`: each mode's noise is an AR(1) process over rounds;
- `drift`: the machine gets 5 % slower within a launch, and wanders by 5 % (AR(1), 0.8 a round), for all modes;
- `bursts`: at one block in 50 something begins that makes one to three blocks 1.2 to 1.6 times as long;
- `offset 0.5 %`, `1 %`, `2 %`: each mode has its own offset in each launch;
- `unequal noise`: the last mode's noise is 3 %;
- `all`: correlated 0.5, drift, bursts and an offset of 0.5 %.

Where no mode differs: `covers` is the share of 95 % intervals that contain the truth (of one launch: that launch's,
with its offset), `step_covers` the same of the step, `any_wrong` the share of runs that call any mode faster or slower
than the first although it is not, `fastest_wrong` the share that calls one fastest (also if it is, in the one launch
that there is). `equivalent` is the share of modes
with that word. One mode is then 3 % or 5 % faster: `finds_3`, `finds_5` are the shares of runs that say so.

`noise_floors`: the share of checks of unchanged code whose interval lies within the floor. With outliers, one pair in
twenty is five times as far from zero; another day's noise differs by a lognormal factor of 0.2. `converge`: the share
of runs that call a mode different which loses so many standard deviations of the seeds' differences.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench import environment
from xbench.stats.blocks import balanced_orders
from xbench.stats.compare import judge
from xbench.stats.convergence import mean_of, where
from xbench.stats.location import Location, located
from xbench.stats.regression import noise_floor, signed_rank
from xbench.stats.summary import grouped_estimate

Vector = NDArray[np.float64]
DESIGNS = ((1, 4), (1, 6), (2, 6), (3, 6), (4, 4), (6, 4), (8, 4))
MODES = (2, 8)
STEP_S = 0.5
GAINS = (0.03, 0.05)


@dataclass(frozen=True)
class Situation:
    """Noise of the machine, as standard deviations of logarithms."""

    noise: float = 0.01
    last_noise: float = 0.01
    correlation: float = 0.0
    drift: float = 0.0
    bursts: float = 0.0
    offset: float = 0.0


SITUATIONS = {
    "independent": Situation(),
    "correlated 0.5": Situation(correlation=0.5),
    "correlated 0.8": Situation(correlation=0.8),
    "drift": Situation(drift=0.05),
    "bursts": Situation(bursts=0.02),
    "offset 0.5 %": Situation(offset=0.005),
    "offset 1 %": Situation(offset=0.01),
    "offset 2 %": Situation(offset=0.02),
    "unequal noise": Situation(last_noise=0.03),
    "all": Situation(correlation=0.5, drift=0.05, bursts=0.02, offset=0.005),
}


def autoregressive(random: np.random.Generator, shape: tuple[int, ...], correlation: float) -> Vector:
    """Stationary AR(1) of unit variance along the last axis."""
    values = random.normal(size=shape)
    if correlation:
        for place in range(1, shape[-1]):
            fresh = math.sqrt(1 - correlation**2) * values[..., place]
            values[..., place] = correlation * values[..., place - 1] + fresh
    return values


def drawn(
    random: np.random.Generator, of: Situation, runs: int, launches: int, rounds: int, modes: int
) -> tuple[Vector, Vector]:
    """Logs of block values, runs × launches × modes × rounds, and each mode's offset in each launch."""
    noise = of.noise * autoregressive(random, (runs, launches, modes, rounds), of.correlation)
    noise[:, :, -1] *= of.last_noise / of.noise
    offsets = of.offset * random.normal(size=(runs, launches, modes))
    blocks = modes * rounds
    common = of.drift * (
        np.linspace(-0.5, 0.5, blocks) + autoregressive(random, (runs, launches, blocks), 0.8 ** (1 / modes))
    )
    begins = random.random((runs, launches, blocks)) < of.bursts
    lengths, factors = random.integers(1, 4, begins.shape), random.uniform(1.2, 1.6, begins.shape)
    burst = np.zeros(begins.shape)
    for late in range(3):
        hit = np.where(begins & (lengths > late), np.log(factors), 0.0)
        burst[..., late:] = np.maximum(burst[..., late:], hit[..., : blocks - late])
    names = [str(mode) for mode in range(modes)]
    for launch in range(launches):
        for turn, order in enumerate(balanced_orders(names, rounds, launch)):
            for position, name in enumerate(order):
                at = turn * modes + position
                noise[:, launch, int(name), turn] += common[:, launch, at] + burst[:, launch, at]
    return noise + offsets[..., None], offsets


def moved(location: Location, by: float) -> Location:
    """The location of values that are all larger by `by`."""
    of = location.of._replace(centers=location.of.centers + by)
    return replace(location, center=location.center + by, of=of)


def called_fastest(logs: Vector, centers: Sequence[float]) -> bool:
    """True if the best of modes × (launches × rounds) is shown to be faster than each other one."""
    best, second = np.argsort(centers)[:2]
    if located(logs[second] - logs[best]).p_zero >= 0.05:
        return False
    others = {str(mode): located(logs[mode] - logs[best]) for mode in range(len(logs)) if mode != best}
    return all(ratio.verdict == "slower" for ratio in judge(others).values())


def cell(situation: Situation, launches: int, rounds: int, modes: int, runs: int, seed: int) -> dict[str, float]:
    """Shares of runs (or of modes in them) by what they say."""
    logs, offsets = drawn(np.random.default_rng(seed), situation, runs, launches, rounds, modes)
    counts = dict.fromkeys(("covers", "step_covers", "any_wrong", "fastest_wrong", "equivalent"), 0.0)
    counts |= {f"finds_{100 * gain:.0f}": 0.0 for gain in GAINS}
    halves = []
    for run in range(runs):
        one = np.moveaxis(logs[run], 1, 0)  # modes × launches × rounds
        found = {str(mode): located(one[mode] - one[0]) for mode in range(1, modes)}
        ratios = judge(found)
        wrong = False
        for name, ratio in ratios.items():
            truth = offsets[run, 0, int(name)] - offsets[run, 0, 0] if launches == 1 else 0.0
            low, high = map(math.log, ratio.ci95)
            counts["covers"] += (low <= truth <= high) / len(ratios)
            counts["equivalent"] += (ratio.verdict == "equivalent") / len(ratios)
            halves.append((high - low) / 2)
            wrong = wrong or (ratio.verdict == "faster" and truth >= 0) or (ratio.verdict == "slower" and truth <= 0)
        counts["any_wrong"] += wrong
        centers = [0.0, *(location.center for location in found.values())]
        counts["fastest_wrong"] += called_fastest(one, centers)
        step = grouped_estimate(STEP_S * np.exp(one[0]))
        truth_s = STEP_S * math.exp(offsets[run, 0, 0] if launches == 1 else 0.0)
        counts["step_covers"] += step.ci95[0] <= truth_s <= step.ci95[1]
        for gain in GAINS:
            faster = judge(found | {"1": moved(found["1"], math.log1p(-gain))})["1"]
            counts[f"finds_{100 * gain:.0f}"] += faster.verdict == "faster"
    shares = {name: round(count / runs, 4) for name, count in counts.items()}
    return shares | {"half_width": round(math.expm1(float(np.median(halves))), 4)}


def floor_cell(measured: int, checked: int, situation: str, checks: int, seed: int) -> float:
    """Share of checks of unchanged code whose interval lies within the floor that as many A/A pairs gave."""
    random = np.random.default_rng(seed)
    within = 0
    for _ in range(checks):
        days = np.exp(0.2 * random.normal(size=2)) if situation == "another day" else (1.0, 1.0)
        pairs, again = (
            0.01 * day * tailed(random, n, situation) for day, n in zip(days, (measured, checked), strict=True)
        )
        floor = noise_floor(pairs.tolist(), checked)
        interval = signed_rank(again.tolist()).interval
        assert floor is not None
        assert interval is not None
        within += -math.log1p(floor) < interval[0] and interval[1] < math.log1p(floor)
    return within / checks


def tailed(random: np.random.Generator, count: int, situation: str) -> Vector:
    """Log ratios of A/A pairs of unit scale; with `outliers` one in twenty is five times as far from zero."""
    values = random.normal(size=count)
    if situation == "outliers":
        values *= np.where(random.random(count) < 0.05, 5.0, 1.0)
    return values


def converge_cell(seeds: int, loss: float, runs: int, seed: int) -> float:
    """Share of runs that call a mode different whose accuracy is `loss` standard deviations lower, seed by seed."""
    differences = np.random.default_rng(seed).normal(size=(runs, seeds)) - loss
    return sum(where(mean_of(row.tolist())) != "within" for row in differences) / runs


def main() -> None:
    """Simulate everything, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--output", type=Path, default=Path("results/verdict-simulation.json"))
    options = parser.parse_args()
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    for name, situation in SITUATIONS.items():
        for launches, rounds in DESIGNS:
            for modes in MODES:
                shares = cell(situation, launches, rounds, modes, options.runs, seed=len(rows))
                rows.append({"situation": name, "launches": launches, "rounds": rounds, "modes": modes} | shares)
                print(rows[-1], f"{time.monotonic() - began:.0f} s", flush=True)
    floors = [
        {"measured_pairs": measured, "checked_pairs": checked, "situation": situation,
         "within": floor_cell(measured, checked, situation, 3 * options.runs, seed=len(situation))}
        for situation in ("independent", "outliers", "another day")
        for measured in (6, 10, 20)
        for checked in (7, 10)
    ]  # fmt: skip
    seeds = [
        {"seeds": count, "loss_sd": loss, "called_different": converge_cell(count, loss, 3 * options.runs, seed=count)}
        for count in (2, 3, 5, 10)
        for loss in (0.0, 1.0, 2.0)
    ]
    for row in [*floors, *seeds]:
        print(row)
    record = {
        "label": "simulated",
        "environment": environment.capture().model_dump(),
        "runs": options.runs,
        "comparisons": rows,
        "noise_floors": floors,
        "converge": seeds,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
