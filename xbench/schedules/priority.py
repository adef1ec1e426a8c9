"""priority: gradients that the next forward pass needs first are sent first, in parts, a few at a time.

Jayarajan et al.: "Priority-based parameter propagation for distributed DNN training" (P3, MLSys 2019); Peng et al.: "A
generic communication scheduler for distributed DNN training acceleration" (ByteScheduler, SOSP 2019). Each part has its
own all-reduce. A launched part is not cancelled, so the delay of an urgent part depends on the bytes in flight:
`credit_bytes`, ByteScheduler's credit. A layer of the next forward pass waits only for its own (see `next_forward`).

Ranks that chose their own most urgent part would wait for each other's different parts. ByteScheduler asks a
coordinator. Here the order is simulated from the profile, written into the plan (`Parts`), and kept by every rank.
That saves a round trip per part, and is as good as the profile. `planning.next_forward.priority` predicts the step.

Without a plan, half of the bytes are assumed to be sent during backward, in ready order, and the other half in the
order in which the next forward pass needs it. On NCCL a stream keeps the parts in order, and the credit would only make
the host wait. So all parts are launched as they become ready.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from torch.nn import Module

from xbench.records.parts import Parts
from xbench.schedules.base import AttachConfig
from xbench.schedules.bucket import CommBucket, start_all_reduce
from xbench.schedules.checks import BUCKET_BYTES, check_parts
from xbench.schedules.deferred_update import UpdateGroup
from xbench.schedules.launch_queue import LaunchQueue, QueuedCollective
from xbench.schedules.next_forward import DeferredUpdate, NextForward


class PriorityEngine(NextForward):
    """All-reduces of parts, in a planned order, within a credit."""

    name = "priority"

    def _plan_departures(self, setup: AttachConfig) -> LaunchQueue:
        buckets = self._flat_buckets()
        nbytes = setup.parts.nbytes if setup.parts is not None else BUCKET_BYTES
        self._parts: dict[int, list[QueuedCollective]] = {}
        self._bounds: dict[int, list[int]] = {}
        for bucket in buckets:
            bounds, sizes = cuts(bucket, nbytes)
            self._bounds[id(bucket)] = bounds
            self._parts[id(bucket)] = [
                QueuedCollective(
                    size,
                    partial(start_all_reduce, bucket.flat[begin:end], self.lane),
                    prepare=partial(self._complete, bucket),
                )
                for (begin, end), size in zip(itertools.pairwise(bounds), sizes, strict=True)
            ]
        numbered = [part for bucket in buckets for part in self._parts[id(bucket)]]
        parts = setup.parts or default_parts([part.nbytes for part in numbered])
        check_parts(parts.order, len(numbered))
        order = [numbered[number] for number in parts.order]
        return LaunchQueue(order, streams=self.carrier == "streams", credit_bytes=parts.credit_bytes)

    def _pieces_of(self, bucket: CommBucket, homes: Sequence[list[Module]]) -> list[UpdateGroup]:
        """See `NextForward._pieces_of`: parameters of one bucket with the same homes are one update group."""
        parts, bounds = self._parts[id(bucket)], self._bounds[id(bucket)]
        together: dict[tuple[int, ...], UpdateGroup] = {}
        for index in range(len(bucket.parameters)):
            key = tuple(id(module) for module in homes[index])
            piece = together.setdefault(key, UpdateGroup(bucket, [], [], flags=parts[-1:], homes=homes[index]))
            piece.indices.append(index)
            begin, end = bucket.offsets[index], bucket.offsets[index + 1]
            for part, (since, until) in zip(parts, itertools.pairwise(bounds), strict=True):
                if since < end and begin < until and part not in piece.parcels:
                    piece.parcels.append(part)
        return list(together.values())

    def _filled(self, bucket: CommBucket) -> Sequence[QueuedCollective]:
        return self._parts[id(bucket)]


class Priority(DeferredUpdate):
    """Parts of tensors, the most urgent first."""

    engine = PriorityEngine


def cuts(bucket: CommBucket, nbytes: int) -> tuple[list[int], list[int]]:
    """Cut positions of a bucket's buffer [elements], and the bytes of gradients in each part, before compression.

    A part has `nbytes`; the last has the remainder and the flags.
    """
    element = bucket.dtype.itemsize
    each = max(1, nbytes // element)
    full = max(0, -(-bucket.grad_bytes // (each * element)) - 1)
    bounds = [*(number * each for number in range(full + 1)), bucket.flat.numel()]
    return bounds, [each * element] * full + [bucket.grad_bytes - full * each * element]


def default_parts(sizes: Sequence[int]) -> Parts:
    """The order without a plan, as the module describes. `sizes`: bytes of the parts, numbered in ready order."""
    total, passed, first = sum(sizes), 0, 0
    while first < len(sizes) and passed + sizes[first] <= total / 2:
        passed += sizes[first]
        first += 1
    order = [*range(first), *reversed(range(first, len(sizes)))]
    return Parts(nbytes=BUCKET_BYTES, order=order, credit_bytes=2 * BUCKET_BYTES)
