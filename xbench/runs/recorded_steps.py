"""Conversion of recorded steps and turns to the record's timelines. Pure, as `build_records` is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from xbench.records import Label, RankTimeline, Slice, Timeline, TurnTaken


class RecordedStep(NamedTuple):
    """A step on one rank: its start by rank 0's clock [s], and its two lanes from there."""

    began_s: float
    compute: list[Slice]
    communication: list[Slice]


def timeline(steps: Mapping[int, RecordedStep], label: Label) -> Timeline | None:
    """Return rank 0's step with the fabric's label; None without one. `steps` is by rank."""
    first = steps.get(0)
    if first is None:
        return None
    return Timeline(label=label, compute=first.compute, communication=first.communication)


def other_ranks(steps: Mapping[int, RecordedStep], label: Label) -> list[RankTimeline]:
    """Return the same step on the other ranks that kept it; empty if rank 0 has none."""
    if 0 not in steps:
        return []
    return [
        RankTimeline(
            label=label,
            compute=step.compute,
            communication=step.communication,
            rank=rank,
            starts_s=round(step.began_s - steps[0].began_s, 7),
        )
        for rank, step in sorted(steps.items())
        if rank > 0
    ]


def in_order(turns: Iterable[TurnTaken]) -> list[TurnTaken]:
    """Return turns of all jobs by their start, relative to the first one's."""
    taken = sorted(turns, key=lambda turn: turn.start_s)
    if not taken:
        return []
    began_s = taken[0].start_s
    return [
        TurnTaken(
            job=turn.job,
            start_s=round(turn.start_s - began_s, 7),
            computed_s=round(turn.computed_s - began_s, 7),
            arrived_s=round(turn.arrived_s - began_s, 7) if turn.arrived_s is not None else None,
        )
        for turn in taken
    ]
