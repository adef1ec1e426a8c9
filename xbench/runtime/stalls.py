"""What buckets cost a short step beyond what the model of contention knows, by how many they are.

The model has times of collectives back to back, which are means over many. In a step of a few milliseconds it also
counts *when* a thread waits: on one core a packet that arrives may let Gloo's event loop run in place of the thread
that holds the lock the loop asks for, and nothing goes on until the scheduler's next tick. More buckets, more such
moments. So short steps are run: the real engine with the gradients in a few equal parts and with one bucket a tensor,
in turn with steps that send nothing. What they take longer than predicted is kept, and added to every prediction. What
they take less is kept too: costs that were measured one by one need not add up, and copies are timed by steps that send
nothing. No more is taken off than meeting, hooks and copies are said to cost.

A step with one bucket a tensor may take less than predicted for another reason. Beside computation, times are those
of a thread that launches and waits, and of the smallest collectives most is that thread waking up. In a step the
computing thread launches, and nobody waits until backward is over. So the loaded time of the smallest size is lowered
until the prediction agrees, to that of a launch at least; times go straight from there to the next size, as ever.

Steps that compute for longer than SHORT_S are much longer than a tick, and nothing is measured for them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from xbench import records
from xbench.planning import merge
from xbench.planning.contention import Contention
from xbench.planning.cost import Curve
from xbench.planning.plans import Planner
from xbench.planning.simulate import Buckets
from xbench.records import Stall
from xbench.runtime.trial import engine_of, steps_of_ranks

if TYPE_CHECKING:
    from xbench.runtime.worker import Rank

SHORT_S = 0.03
PARTS = (1, 3, 8)
ROUNDS, STEPS = 5, 32
QUICK_ROUNDS, QUICK_STEPS = 2, 12
"""Blocks of each kind, and timed steps a block, which a quick run has less of."""

HALVINGS = 12
"""Of the interval in which the loaded time of the smallest size is looked for."""


@dataclass(frozen=True)
class Sending:
    """Steps with these buckets, and what they took longer than steps that send nothing [s]."""

    buckets: Buckets
    beyond_s: float


def measure_sending(rank: Rank, planner: Planner, unused: Sequence[str]) -> list[Sending]:
    """Every rank calls it together and gets the same, fewest buckets first; none for a step that is not short.

    Raises UsageError, as the engine does, for a model that it refuses.
    """
    if planner.step.compute_s > SHORT_S:
        return []
    gradients = planner.step.gradients
    plans = {len(buckets): buckets for buckets in [*(parts(planner, count) for count in PARTS), merge.wfbp(gradients)]}
    kinds: list[Buckets] = [[], *(plans[count] for count in sorted(plans))]
    times: list[list[list[float]]] = [[] for _ in kinds]
    rounds, steps = (QUICK_ROUNDS, QUICK_STEPS) if rank.run.effort.is_quick else (ROUNDS, STEPS)
    for number in range(rounds):
        for offset in range(len(kinds)):
            place = (number + offset) % len(kinds)
            rank.note(f"steps with {len(kinds[place])} buckets, round {number + 1} of {rounds}")
            times[place].append(_block(rank, planner, kinds[place], unused, steps))
    own_s = torch.tensor(times, dtype=torch.float64)
    steps_s = steps_of_ranks(own_s, rank.group)
    dist.all_reduce(own_s, op=dist.ReduceOp.MAX, group=rank.group)
    steps_s[0] = own_s[0]  # those of steps in which nobody waits
    rank.workload.optimizer.zero_grad(set_to_none=True)
    blocks_s: list[list[float]] = steps_s[:, :, 1:].median(dim=2).values.tolist()
    return [
        Sending(buckets, statistics.median(with_s - bare_s for with_s, bare_s in zip(took_s, blocks_s[0], strict=True)))
        for buckets, took_s in zip(kinds[1:], blocks_s[1:], strict=True)
    ]


def as_in_steps(planner: Planner, measured: records.Contention, found: Sequence[Sending]) -> records.Contention:
    """What was measured of the planner's contention, as these steps have it; see the module."""
    if not found:
        return measured
    corrected = _with_small_ones(planner, measured, found[-1])
    own_s = corrected.meeting_s + Contention.of(corrected).hooks_s(planner.step.gradients)
    stalls = [
        Stall(
            buckets=len(sending.buckets),
            seconds=max(-own_s, sending.beyond_s - _known_s(planner, corrected, sending.buckets)),
        )
        for sending in found
    ]
    return corrected.model_copy(update={"stalls": stalls})


def _with_small_ones(planner: Planner, measured: records.Contention, most: Sending) -> records.Contention:
    """The loaded time of the smallest size such that steps with the most buckets take what they took, if they can."""
    smallest = min(point.nbytes for point in measured.points)

    def lowered(share: float) -> records.Contention:
        points = [
            point.model_copy(
                update={
                    "loaded_s": min(point.loaded_s, measured.launch_s + share * (point.loaded_s - measured.launch_s))
                }
            )
            if point.nbytes == smallest
            else point
            for point in measured.points
        ]
        return measured.model_copy(update={"points": points})

    if measured.launch_s <= 0 or _known_s(planner, measured, most.buckets) <= most.beyond_s:
        return measured
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _known_s(planner, lowered(middle), most.buckets) > most.beyond_s:
            high = middle
        else:
            low = middle
    return lowered(low)


def _known_s(planner: Planner, measured: records.Contention, buckets: Buckets) -> float:
    """What a step with these buckets is predicted to take longer than one that sends nothing [s]."""
    assert planner.cost is not None  # what contention was measured by
    told = replace(planner, contention=Contention.of(measured, Curve.of(planner.cost)))
    return told.simulate("auto", buckets).step_s - planner.step.compute_s


def parts(planner: Planner, count: int) -> Buckets:
    """The gradients in ready order in about `count` buckets of about equal bytes, each of one dtype."""
    found: Buckets = [[]]
    carried = 0
    gradients, whole = planner.step.gradients, planner.step.grad_bytes
    for index, gradient in enumerate(gradients):
        full = carried * count >= whole * len(found)
        if found[-1] and (full or gradient.dtype != gradients[index - 1].dtype):
            found.append([])
        found[-1].append(index)
        carried += gradient.nbytes
    return found


def _block(rank: Rank, planner: Planner, buckets: Buckets, unused: Sequence[str], steps: int) -> list[float]:
    """So many steps [s] with these buckets after one that is not to count; without communication for none."""
    engine = engine_of(rank, planner, buckets, unused) if buckets else None
    dist.all_reduce(torch.zeros(1), group=rank.group)
    try:
        return [rank.timed_step() for _ in range(steps + 1)]
    finally:  # a schedule may refuse the model in the middle of a step
        if engine is not None:
            engine.detach()
