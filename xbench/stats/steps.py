"""Steps of several ranks, steps that took far too long, and steps that are too short to predict.

**Duration.** A step lasts from the end of the previous step on the last rank to its own end on the last rank. Where
gradients carry over, the longest times of any rank would add up to more than the steps took. Ranks of steps without
communication never wait for each other; there the longest time of any rank counts.

**Odd steps** exceed the typical step of their block (the lower median) by more than LONGER_S and by more than
LONGER_SHARE of it: short steps vary by a multiple of themselves on shared machines, long ones by a quarter. No step of
the comparisons under results/ is odd. They are kept and reported, because a block's median hides them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from xbench.records import Sample
from xbench.units import format_seconds

LONGER_S = 0.5
LONGER_SHARE = 0.5
MAX_TOLD = 5
"""Largest number of blocks with their own sentence, those with the longest steps.

One more sentence counts the others.
"""

MIN_PREDICTABLE_S = 0.03
"""Shortest predicted step that is reliable."""


def steps_of_all(per_rank_s: Sequence[Sequence[float]]) -> list[float]:
    """Time of each step [s], from each rank's own times of the same steps [s], begun together.

    They add up to the time of the slowest rank for all of them. Raises ValueError if ranks took different numbers of
    steps.
    """
    ends_s = [list(accumulate(steps_s, initial=0.0)) for steps_s in per_rank_s]
    last_s = [max(ends) for ends in zip(*ends_s, strict=True)]
    return [after - before for before, after in pairwise(last_s)]


def longest_steps(per_rank_s: Sequence[Sequence[float]]) -> list[float]:
    """Longest time [s] of any rank in each step, for ranks that do not wait for each other. Raises as above."""
    return [max(times) for times in zip(*per_rank_s, strict=True)]


def odd_steps(steps_s: Sequence[float], cycle: int = 1) -> dict[int, float]:
    """Index of each odd step of a block, and the typical step [s] of its kind, from the times of all steps [s].

    If steps differ by design and repeat after `cycle` of them, a step is compared with those at its own position of the
    cycle. A step without another to compare it with is not odd.
    """
    odd: dict[int, float] = {}
    for position in range(cycle):
        comparable_s = steps_s[position::cycle]
        if len(comparable_s) < 2:
            continue
        typical_s = statistics.median_low(comparable_s)
        bound_s = typical_s + max(LONGER_S, LONGER_SHARE * typical_s)
        odd |= {position + cycle * turn: typical_s for turn, step_s in enumerate(comparable_s) if step_s > bound_s}
    return odd


def odd_step_sentences(blocks: Iterable[tuple[str, Sequence[float], int]]) -> list[str]:
    """One sentence for each block with odd steps, the longest step first.

    `blocks`: (name, its steps [s], the cycle of its steps).
    """
    ranked: list[tuple[float, str]] = []
    for name, steps_s, cycle in blocks:
        odd = odd_steps(steps_s, cycle)
        if not odd:
            continue
        longest = max(odd, key=lambda index: steps_s[index])
        more = f" ({len(odd)} of the {len(steps_s)} steps were that odd)" if len(odd) > 1 else ""
        sentence = (
            f"{name}: step {longest + 1} took {format_seconds(steps_s[longest])} where a step takes "
            f"{format_seconds(odd[longest])}{more}: a rank, a link or the machine stood still meanwhile"
        )
        ranked.append((steps_s[longest], sentence))
    ranked.sort(key=lambda entry: -entry[0])
    lines = [sentence for _, sentence in ranked[:MAX_TOLD]]
    if len(ranked) > MAX_TOLD:
        lines.append(f"steps of {len(ranked) - MAX_TOLD} more blocks took far longer than the others of their block")
    return lines


def odd_sample_sentences(samples: Sequence[Sample], cycles: Mapping[str, int]) -> list[str]:
    """Sentences on a comparison's blocks; `cycles` by mode. Launch and job are named if there are several."""
    launches, jobs = len({sample.launch for sample in samples}), len({sample.job for sample in samples})
    return odd_step_sentences(
        (
            f"{sample.mode}{f', launch {sample.launch + 1}' if launches > 1 else ''}, round {sample.round + 1}"
            f"{f', job {sample.job}' if jobs > 1 else ''}",
            sample.steps_s,
            cycles.get(sample.mode, 1),
        )
        for sample in samples
    )


def short_step_caution(predicted_s: Iterable[float | None]) -> list[str]:
    """One sentence to show beside predicted steps [s] of which any is too short, else none."""
    if all(step_s is None or step_s >= MIN_PREDICTABLE_S for step_s in predicted_s):
        return []
    return [f"Predictions of steps below {format_seconds(MIN_PREDICTABLE_S, 2)} are not reliable here."]
