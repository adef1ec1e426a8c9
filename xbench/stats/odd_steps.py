"""Find steps that took far longer than the other steps of their block, and say so.

A block counts by its median, which hides a step during which a rank was stopped or a link was down. Such a step is
kept, and told. A step is odd when it exceeds the typical step of its block by more than LONGER_S and by more than
LONGER_SHARE of it. The typical step is the median; of an even number of steps the lower of the two in the middle, so
that one odd step of two is found.

Both bounds are needed on shared machines: short steps vary by a multiple of themselves, long ones by a quarter. In the
1,480 blocks of the comparisons under results/, no step exceeds the typical one of its block by more than 0.4 s, and
none of those of a second or more by more than a third of it: nothing there is odd. A TCP connection that loses its
link for a moment resumes after 0.2 s at the earliest, and mostly after more than a second.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from xbench.records import Sample
from xbench.units import format_seconds

LONGER_S = 0.5
LONGER_SHARE = 0.5
MAX_TOLD = 5
"""Blocks that get a sentence each, those with the longest steps; the others are counted in one more."""


def odd_steps(steps_s: Sequence[float], cycle: int = 1) -> dict[int, float]:
    """Index of each odd step of a block and the typical step [s] it is compared with, from the times of all steps [s].

    Where steps differ by design and repeat after `cycle` of them, a step is compared with those at its own place of the
    cycle. A step without another to compare it with is not odd.
    """
    found: dict[int, float] = {}
    for place in range(cycle):
        alike_s = steps_s[place::cycle]
        if len(alike_s) < 2:
            continue
        typical_s = statistics.median_low(alike_s)
        bound_s = typical_s + max(LONGER_S, LONGER_SHARE * typical_s)
        found |= {place + cycle * turn: typical_s for turn, step_s in enumerate(alike_s) if step_s > bound_s}
    return found


def sentences(blocks: Iterable[tuple[str, Sequence[float], int]]) -> list[str]:
    """One sentence for each block with odd steps, the longest step first.

    `blocks`: (name, its steps [s], the cycle of its steps).
    """
    found: list[tuple[float, str]] = []
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
        found.append((steps_s[longest], sentence))
    found.sort(key=lambda one: -one[0])
    told = [sentence for _, sentence in found[:MAX_TOLD]]
    if len(found) > MAX_TOLD:
        told.append(f"steps of {len(found) - MAX_TOLD} more blocks took far longer than the others of their block")
    return told


def sentences_of(samples: Sequence[Sample], cycles: Mapping[str, int]) -> list[str]:
    """The same of a comparison's blocks; `cycles` by mode. Launch and job are named where there are several."""
    launches, jobs = len({one.launch for one in samples}), len({one.job for one in samples})
    return sentences(
        (
            f"{one.mode}{f', launch {one.launch + 1}' if launches > 1 else ''}, round {one.round + 1}"
            f"{f', job {one.job}' if jobs > 1 else ''}",
            one.steps_s,
            cycles.get(one.mode, 1),
        )
        for one in samples
    )
