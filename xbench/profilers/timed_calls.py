"""Calls of the collectives that are timed, each on a part of one buffer.

M is the size of the whole tensor: the input of a reduce-scatter and the output of an all-gather. A rank has one N-th of
it. They are called as `fully_shard` calls them: the all-gather in place, the reduce-scatter into another tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.schedules.bucket import start_all_reduce, started
from xbench.schedules.groups import workers_of

ELEMENT_BYTES = 4

MOST_AT_ONCE, AT_ONCE_BYTES = 8, 1 << 20
"""Limits of the calls of a repetition: their number, and their bytes together."""


class TimedCall(ABC):
    """A collective over `group`, on fp32 zeros of up to `most_bytes`, or on as many elements of `dtype`."""

    name: str
    of_shards = False
    """True if each rank has one N-th of the tensor."""

    staggered = False
    """True if ranks on CPUs start one after the other, as they do in a step."""

    def __init__(
        self,
        most_bytes: int,
        device: torch.device,
        group: dist.ProcessGroup | None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._group = group
        self._cut = workers_of(group) if self.of_shards else 1
        self._buffer = torch.zeros(self._elements(most_bytes), device=device, dtype=dtype)
        self._shard = self._buffer.new_zeros(len(self._buffer) // self._cut) if self.of_shards else None
        self._on_gpu = device.type == "cuda"

    def _elements(self, nbytes: int) -> int:
        """Elements of a tensor of so many bytes of fp32, rounded up to equal parts for all ranks."""
        return -(-nbytes // (ELEMENT_BYTES * self._cut)) * self._cut

    @property
    def title(self) -> str:
        """The name as people write it: 'all-reduce'."""
        return self.name.replace("_", "-")

    def at_once(self, nbytes: int) -> int:
        """Number of calls on `nbytes` [B] that are timed together, each of which counts for its share of the time."""
        return 1

    def run(self, nbytes: int) -> None:
        """Run it on `nbytes` [B]. On a GPU it uses the current stream; on a CPU it returns when it is done."""
        self._run(self._buffer[: self._elements(nbytes)])

    @abstractmethod
    def _run(self, part: Tensor) -> None:
        """Run it on a part of the buffer."""


class AllReduce(TimedCall):
    """An all-reduce, called as the schedules call it."""

    name = "all_reduce"

    def _run(self, part: Tensor) -> None:
        if self._on_gpu:
            dist.all_reduce(part, group=self._group)
        else:
            start_all_reduce(part, self._group).wait()


class AllReduceInTurn(AllReduce):
    """The same where ranks wait for each one, and start the next one after the other."""

    staggered = True


class Broadcast(TimedCall):
    """Broadcasts from the first rank. Small ones are started together, as ZeroRedundancyOptimizer starts them."""

    name = "broadcast"

    def at_once(self, nbytes: int) -> int:
        """See `TimedCall.at_once`."""
        return max(1, min(MOST_AT_ONCE, AT_ONCE_BYTES // nbytes))

    def _run(self, part: Tensor) -> None:
        count = self.at_once(part.numel() * ELEMENT_BYTES)
        works = [dist.broadcast(part, group=self._group, group_src=0, async_op=True) for _ in range(count)]
        for work in map(started, works):
            work.wait()


class ReduceScatter(TimedCall):
    """A reduce-scatter."""

    name = "reduce_scatter"
    of_shards = True
    staggered = True

    def _run(self, part: Tensor) -> None:
        assert self._shard is not None
        dist.reduce_scatter_tensor(self._shard[: len(part) // self._cut], part, group=self._group)


class AllGather(TimedCall):
    """An all-gather."""

    name = "all_gather"
    of_shards = True
    staggered = True

    def _run(self, part: Tensor) -> None:
        own = part.chunk(self._cut)[dist.get_rank(self._group)]
        dist.all_gather_into_tensor(part, own, group=self._group)


CALLS: dict[str, type[TimedCall]] = {call.name: call for call in (AllReduceInTurn, ReduceScatter, AllGather, Broadcast)}
