"""Blocks of a comparison: their order in a round, the progress of jobs that share devices, and the metric of a block.

**Order** is balanced, so that no mode gains from its position or its predecessor: a Williams design (Williams 1949),
one square of n rows for even n, the square and its mirror image for odd n. There are often fewer rounds than rows. So
rows come in mirrored pairs (ABDC, then CDBA), and a drift that is linear over two rounds cancels from every comparison.

**Metric**: seconds per sample over all jobs that share the devices. For one job, or twins of which one represents both,
it is the step over the batch of all ranks; for two different jobs in sequence the sum of their steps over the sum of
their batches; for jobs at once the sequential metric over the weighted progress, Σ rate_j · s_j, counted in the window
in which every job ran steps.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import numpy as np

from xbench.modes import IN_SEQUENCE, mode_info
from xbench.records import Sample
from xbench.spec import ModeSpec, RunSpec
from xbench.stats.compare import BlockValue


def balanced_orders(items: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """The order of `items` in each of `rounds` rounds: `rounds` lists, each a permutation. Same seed, same orders.

    Over a whole cycle (n rounds for even n, 2n for odd) each item is in each position equally often and directly
    follows each other item equally often. Inside a cycle these counts differ by at most one for even n and two for odd
    n. Further cycles are shuffled anew.

    Raises ValueError for no items, a duplicate item, or a negative number of rounds.
    """
    if not items or len(set(items)) != len(items):
        raise ValueError(f"items to order must be there and be distinct: {list(items)}")
    if rounds < 0:
        raise ValueError(f"{rounds} rounds cannot be ordered")
    generator = random.Random(seed)
    orders: list[list[str]] = []
    while len(orders) < rounds:
        labels = list(items)
        generator.shuffle(labels)
        pairs = _mirrored_pairs(len(labels))
        generator.shuffle(pairs)
        for pair in pairs:
            orders += [[labels[index] for index in row] for row in pair]
    return orders[:rounds]


def _mirrored_pairs(count: int) -> list[list[list[int]]]:
    """Rows of the design for `count` items, as pairs of a row and its mirror image."""
    if count == 1:
        return [[[0]]]
    # 0, 1, n-1, 2, n-2, ...: neighbours differ by each of 1..n-1 once (even n), or by half of them twice (odd n).
    zigzag = [(index + 1) // 2 if index % 2 else (count - index // 2) % count for index in range(count)]
    rows = [[(index + shift) % count for index in zigzag] for shift in range(count)]
    # Reversing an even zigzag shifts it by n/2, so half of the rows are the mirror images of the other half.
    firsts = rows[: count // 2] if count % 2 == 0 else rows
    return [[row, row[::-1]] for row in firsts]


def overlap_rates(boundaries_s: Sequence[Sequence[float]]) -> list[float]:
    """Steps a second of each job over the window in which all jobs ran steps.

    `boundaries_s[j]`: the increasing stamps of job j's step ends on a common clock, preceded by the start of its first
    timed step; n steps are n + 1 stamps. The window goes from the latest first stamp to the earliest last one. A step
    that crosses an edge counts by the share of its time that lies inside.

    Raises ValueError for no jobs, for a job of fewer than two stamps, stamps that do not increase or are not finite,
    and jobs that never ran at the same time.
    """
    if not boundaries_s:
        raise ValueError("a window needs at least one job")
    jobs = [np.asarray(stamps, dtype=np.float64) for stamps in boundaries_s]
    for job, stamps in enumerate(jobs):
        if len(stamps) < 2:
            raise ValueError(f"job {job} has {len(stamps)} step boundaries, and one step needs two")
        if not np.all(np.isfinite(stamps)) or not np.all(np.diff(stamps) > 0):
            raise ValueError(f"the step boundaries of job {job} do not increase")
    start_s = max(float(stamps[0]) for stamps in jobs)
    end_s = min(float(stamps[-1]) for stamps in jobs)
    if end_s <= start_s:
        raise ValueError(f"the jobs never ran together: the last began at {start_s} s, the first ended at {end_s} s")
    rates = []
    for stamps in jobs:
        done_at_start, done_at_end = np.interp([start_s, end_s], stamps, np.arange(len(stamps)))
        rates.append(float(done_at_end - done_at_start) / (end_s - start_s))
    return rates


def weighted_progress(rates_per_s: Sequence[float], alone_step_s: Sequence[float]) -> float:
    """Σ_j rate_j · s_j: seconds of lone-job work done in each second of sharing (1 = as good as one job at a time).

    Steps of different jobs are different amounts of work, and adding steps (or samples) a second would reward a
    preference for the cheap job. Measured in the time s_j that it takes with the devices to itself, every step has the
    same worth: rate_j · s_j is the fraction of its lone speed that job j keeps. Jobs that take turns in any proportion,
    without overlap, give 1; two that do not disturb each other at all give 2. This is the weighted speed-up of Snavely
    & Tullsen 2000.

    `alone_step_s`: each job's step time [s] with the devices to itself. Raises ValueError for no jobs, lists of unequal
    length, a negative rate or a step time that is not above zero.
    """
    if not rates_per_s or len(rates_per_s) != len(alone_step_s):
        raise ValueError(f"{len(rates_per_s)} rates and {len(alone_step_s)} lone step times cannot be combined")
    if not all(rate >= 0 for rate in rates_per_s) or not all(step_s > 0 for step_s in alone_step_s):
        raise ValueError(f"rates {list(rates_per_s)} with lone step times {list(alone_step_s)} s are no progress")
    return float(sum(rate * step_s for rate, step_s in zip(rates_per_s, alone_step_s, strict=True)))


def twins(run: RunSpec) -> bool:
    """True if all jobs are the same workload, so that one of them represents all in single-job modes."""
    return len(set(run.workloads)) == 1


def mode_values(run: RunSpec, mode: ModeSpec, samples: Sequence[Sample]) -> list[BlockValue]:
    """Seconds per sample of every block of a mode, as (launch, round, value)."""
    blocks: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        if sample.mode == mode.text:
            blocks.setdefault((sample.launch, sample.round), []).append(sample)
    jobs = len(run.workloads)
    needed_jobs = 1 if twins(run) and not mode.paired else jobs
    together = mode_info(mode.name).together
    alone_s = _alone_step_s(run, samples) if together and not twins(run) else None
    result = []
    for (launch, round_), parts in sorted(blocks.items()):
        if len(parts) < needed_jobs or not all(part.samples_per_step for part in parts):
            continue
        if not together:
            value = sum(p.step_s for p in parts) / sum(p.samples_per_step for p in parts)
        elif twins(run):
            value = 1.0 / sum(p.samples_per_step / p.step_s for p in parts)
        elif alone_s is not None:
            alone = [alone_s[p.job] for p in parts]
            sequential = sum(alone) / sum(p.samples_per_step for p in parts)
            value = sequential / weighted_progress([1.0 / p.step_s for p in parts], alone)
        else:
            continue
        result.append(BlockValue(launch, round_, value))
    return result


def _alone_step_s(run: RunSpec, samples: Sequence[Sample]) -> dict[int, float] | None:
    """Each job's step [s] with the device to itself: one job after the other, else under the reference."""
    names = [m.text for m in run.modes if m.name == IN_SEQUENCE]
    names += [m.text for m in run.modes if not mode_info(m.name).together and m.name != "compute"]
    for name in names:
        steps = {j: [s.step_s for s in samples if s.mode == name and s.job == j] for j in range(len(run.workloads))}
        if all(steps.values()):
            return {job: statistics.median(values) for job, values in steps.items()}
    return None
