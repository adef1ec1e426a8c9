"""One period of a step that leaves gradients on their way: the device works through tasks, the link through parcels.

Tasks run one after the other, and one waits until all parcels that it needs have arrived. The first task is backward:
parcels are released as it proceeds, and what is not released before it ends is released by its end. Of what has been
released the parcel with the least rank is launched next, as long as the credit allows; what was launched is served
first in, first out, and never called back.

Both are a fluid, as in `planning.contention`: while a parcel is in service the computation proceeds at 1/σ, and while
something computes the parcel proceeds at 1/(ρ·T), else at 1/(κ·T). Between two events all rates are constant, and every
event ends something (a stretch of backward, a task, a parcel), so there are no more events than those.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.planning.contention import Contention, Saved


@dataclass(frozen=True)
class Parcel:
    """Something to send: no earlier than `release_s` of backward's own progress; of those waiting the least rank.

    It takes `alone_s`, or less where the link has rested, but `least_s`.
    """

    name: str
    release_s: float
    rank: int
    nbytes: int
    alone_s: float
    least_s: float = 0.0


@dataclass(frozen=True)
class Task:
    """Computation that starts when the parcels `needs` have arrived and the task before it is done."""

    name: str
    took_s: float
    needs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Period:
    """What happened, times [s] since the start of the first task.

    `computed`: (start, end) of each task. `sent`: (parcel, start, end) in the order in which parcels were launched.
    """

    end_s: float
    computed: list[tuple[float, float]]
    sent: list[tuple[int, float, float]]


def run(
    tasks: Sequence[Task], parcels: Sequence[Parcel], contention: Contention, *, credit_bytes: float = math.inf
) -> Period:
    """Run one period. `credit_bytes` [B] may be under way at once, and one parcel always may."""
    sizes = np.array([parcel.nbytes for parcel in parcels], dtype=np.float64)
    rho: list[list[float]] = contention.collective_slowdown(sizes).tolist()
    sigma: list[list[float]] = contention.compute_slowdown(sizes).tolist()
    quiet: list[list[float]] = contention.paired_quiet(sizes).tolist()
    coming = sorted(range(len(parcels)), key=lambda at: (parcels[at].release_s, parcels[at].rank))
    releases_s = [parcels[at].release_s for at in coming]
    missing = [len(task.needs) for task in tasks]
    wanted_by: list[list[int]] = [[] for _ in parcels]
    for place, task in enumerate(tasks):
        for at in task.needs:
            wanted_by[at].append(place)

    saved = Saved(contention.rest_s)
    now_s = progress_s = left_s = since_sent_s = 0.0  # left: of the parcel in service, as if it were alone
    released = flying_bytes = place = 0
    waiting: list[tuple[int, int]] = []  # (rank, parcel)
    flying: deque[int] = deque()
    since_s: float | None = None  # when the task started; None: it waits
    computed: list[tuple[float, float]] = []
    sent: list[tuple[int, float, float]] = []
    while place < len(tasks):
        reached_s = progress_s if place == 0 else math.inf
        while released < len(coming) and releases_s[released] <= reached_s:
            heapq.heappush(waiting, (parcels[coming[released]].rank, coming[released]))
            released += 1
        while waiting and (not flying or flying_bytes + parcels[waiting[0][1]].nbytes <= credit_bytes):
            at = heapq.heappop(waiting)[1]
            if not flying:
                left_s, since_sent_s = _takes_s(parcels[at], saved, now_s), now_s
            flying.append(at)
            flying_bytes += parcels[at].nbytes
        computing = missing[place] == 0
        if computing and since_s is None:
            since_s = now_s
        link_s = compute_s = math.inf
        slower = stretched = 1.0
        if flying:
            crowd, at = 1 if len(flying) > 1 else 0, flying[0]
            slower, stretched = (rho if computing else quiet)[crowd][at], sigma[crowd][at]
            link_s = left_s * slower
        mark_s = tasks[place].took_s
        if computing:
            if place == 0 and released < len(coming):
                mark_s = min(mark_s, releases_s[released])
            compute_s = max(0.0, mark_s - progress_s) * stretched
        passed_s = min(compute_s, link_s)
        if passed_s == math.inf:
            raise ValueError(f"{tasks[place].name!r} waits for what is never sent")
        now_s += passed_s
        if computing:
            progress_s = mark_s if compute_s <= link_s else progress_s + passed_s / stretched
        if flying and link_s <= compute_s:
            at = flying.popleft()
            flying_bytes -= parcels[at].nbytes
            sent.append((at, since_sent_s, now_s))
            for waiter in wanted_by[at]:
                missing[waiter] -= 1
            saved.since(now_s)
            if flying:
                left_s, since_sent_s = _takes_s(parcels[flying[0]], saved, now_s), now_s
        elif flying:
            left_s = max(0.0, left_s - passed_s / slower)
        if computing and compute_s <= link_s and mark_s == tasks[place].took_s:
            computed.append((since_s if since_s is not None else now_s, now_s))
            place, progress_s, since_s = place + 1, 0.0, None
    return Period(now_s, computed, sent)


def _takes_s(parcel: Parcel, saved: Saved, now_s: float) -> float:
    """What a parcel takes that goes into service now, if it is alone [s]."""
    return parcel.alone_s - saved.spent(now_s, parcel.alone_s - parcel.least_s)
