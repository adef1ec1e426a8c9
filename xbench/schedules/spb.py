"""spb: structured partial backpropagation (arXiv 2111.10672), with a spatial and a temporal variant (docs/modes.md).

The prefix is left out by setting `requires_grad` of its parameters to False for the step. Then autograd builds no graph
for it, whatever uses the parameters. A tied parameter is ready when its last use is done, so it belongs to its earliest
layer's band. A step that used no parameter of its level has nothing to differentiate, and torch raises an error.

No bucket holds gradients of two bands. A band that all workers computed is all-reduced. Otherwise its workers
all-reduce it in their own group, and one of them broadcasts the average to the rest. The broadcast is launched as soon
as the all-reduce is seen to be complete, at the latest at a wait for it, always in plan order.

**NCCL.** The bands' groups are communicators of their own. Where their kernels share a hardware queue, ranks that
launch them in different orders wait for each other for ever. So on a stream all ranks have one order: all-reduces by
band, then broadcasts by band, the last of them when the backward pass ends. `ModeInfo.own_groups` lets NCCL keep it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from xbench.errors import UsageError
from xbench.planning.partial import Split, bands, split_buckets
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.bucket import Bucket, CommBucket, Work, started
from xbench.schedules.checks import check_names
from xbench.schedules.engine import Engine
from xbench.schedules.groups import workers_of
from xbench.schedules.served_parameters import trainable

_GROUPS: dict[tuple[int, ...], tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}
"""By ranks: the default group at creation, and the group of these ranks. Groups cannot be destroyed one by one."""


class ReduceBroadcast:
    """An average for workers that did not compute it: an all-reduce, and a broadcast after it."""

    def __init__(
        self, relays: deque[ReduceBroadcast], first: Work, buffer: torch.Tensor, group: dist.ProcessGroup
    ) -> None:
        self._relays = relays
        self.first = first
        self._buffer = buffer
        self._group = group
        self._second: dist.Work | None = None
        self._future: torch.futures.Future[None] = torch.futures.Future()
        relays.append(self)

    def wait(self) -> bool:
        """Return when the broadcast has completed: until then the buffer must not be written."""
        while self._second is None:
            self._relays[0].start()
        return self._second.wait()

    def is_completed(self) -> bool:
        """True if `wait` would return at once."""
        advance(self._relays)
        return self._second is not None and self._second.is_completed()

    def get_future(self) -> torch.futures.Future[None]:
        """A future that is done when the broadcast is."""
        return self._future

    def start(self) -> None:
        """Wait for the all-reduce and start the broadcast; this must be the next one in order."""
        assert self._relays[0] is self
        self._relays.popleft()
        self.first.wait()
        self._second = started(dist.broadcast(self._buffer, src=dist.get_rank(), group=self._group, async_op=True))
        self._second.get_future().add_done_callback(lambda _: self._future.set_result(None))


def advance(relays: deque[ReduceBroadcast]) -> None:
    """Start the broadcasts of complete averages, in order."""
    while relays and relays[0].first.is_completed():
        relays[0].start()


class PartialBackpropEngine(Engine):
    """The engine with a level: buckets are in order of their bands, and those beyond the level are not computed.

    `band_of`: the band of every trainable parameter. Raises as `Engine` does.
    """

    def __init__(
        self, setup: AttachConfig, buckets: Sequence[Sequence[str]], band_of: Mapping[str, int], split: Split
    ) -> None:
        self.split = split
        self.band_of = band_of
        self.worker = dist.get_rank(setup.group) if dist.is_initialized() else 0
        self.steps = 0
        self.level = split.levels
        self._left_out: set[str] = set()
        """Names of parameters that do not require a gradient because of the level."""
        self._relays: deque[ReduceBroadcast] = deque()
        plan = split_buckets(buckets, band_of)
        super().__init__(
            setup.model, setup.optimizer, plan, group=setup.group, wait=setup.wait,
            compress=setup.compress,
        )  # fmt: skip
        self.band = {id(bucket): band_of[names[0]] for bucket, names in zip(self.buckets, plan, strict=True)}
        if self.communicate:
            # All ranks make the groups in the same order, whatever their level.
            for band in sorted(set(self.band.values())):
                if split.receivers(band):
                    _group_of(split.members(band), self._device)
                    _group_of(split.receivers(band), self._device)
        self._take_level()

    def _averaged_over(self, names: Sequence[str]) -> int:
        members = self.split.members(self.band_of[names[0]])
        return super()._averaged_over(names) if len(members) == self.split.workers else len(members)

    def _take_level(self) -> None:
        """Set the level of the coming step: autograd leaves out parameters that do not require a gradient."""
        self.level = self.split.level(self.worker, self.steps)
        for name, parameter in self.parameters.items():
            if self.band_of[name] > self.level:
                if parameter.requires_grad:
                    self._left_out.add(name)
                    parameter.requires_grad_(False)
            elif name in self._left_out:  # no parameter that the loop froze while it was computed
                self._left_out.remove(name)
                parameter.requires_grad_(True)

    def launch_in_order(self) -> None:
        """See `Engine.launch_in_order`; pending broadcasts of complete averages go first."""
        self._advance()
        super().launch_in_order()

    def _launch(self, bucket: Bucket) -> None:
        if self.band[id(bucket)] <= self.level:
            super()._launch(bucket)
        else:
            self._start_all()
            self._launch_receive(bucket)
        if bucket is self.buckets[-1]:
            self._start_all()

    def _launch_receive(self, bucket: Bucket) -> None:
        for parameter in bucket.parameters:
            parameter.grad = None  # one of an earlier step, if gradients are zeroed and not dropped
        if self.split.variant == "spatial" and isinstance(bucket, CommBucket):
            if self.watch is None:
                bucket.work = self._receive(bucket)
            else:
                bucket.work = self.watch(bucket.grad_bytes, lambda: self._receive(bucket))

    def _advance(self) -> None:
        """Start broadcasts as averages complete. On a stream ranks would see that at different moments: see the top."""
        if not self._waits_on_stream:
            advance(self._relays)

    def _start_all(self) -> None:
        """On a stream, launch all broadcasts of this rank so far: their waits block no host."""
        while self._waits_on_stream and self._relays:
            self._relays[0].start()

    def _all_reduce(self, bucket: CommBucket) -> Work:
        band = self.band[id(bucket)]
        members, tree = self.split.members(band), self.split.receivers(band)
        if not tree:
            return bucket.send(self.group)
        # In a group of one an all-reduce is complete at once, and the broadcast follows.
        first = bucket.send(_group_of(members))
        if tree[0] != self.worker:
            return first
        relay = ReduceBroadcast(self._relays, first, bucket.flat, _group_of(tree))
        self._advance()
        return relay

    def _receive(self, bucket: CommBucket) -> Work:
        tree = self.split.receivers(self.band[id(bucket)])
        return started(dist.broadcast(bucket.flat, src=tree[0], group=_group_of(tree), async_op=True))

    def _collected(self) -> None:
        """End the step: under the temporal variant the next one has another level."""
        self.steps += 1
        if self.split.variant == "temporal":
            self._take_level()

    def detach(self) -> None:
        """See `Engine.detach`; parameters that were left out require a gradient again."""
        super().detach()
        while self._left_out:
            self.parameters[self._left_out.pop()].requires_grad_(True)


class Spb(Schedule):
    """Partial backpropagation with the options `variant` and `k`."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`. Bands come from `setup.backward_s`, or from bytes where there is none."""
        workers = workers_of(setup.group) if dist.is_initialized() else 1
        split = Split.of(setup.options, workers)
        if split.variant == "spatial" and dist.is_initialized():
            if workers != dist.get_world_size(setup.group):
                raise UsageError(
                    "spb:variant=spatial gives every worker its own depth, and emulated workers all do the same",
                    hint="spb:variant=temporal, or a fabric with real ranks",
                )
            if setup.group not in (None, dist.group.WORLD):
                raise UsageError(
                    "spb:variant=spatial makes groups of its own among all ranks, and takes no process_group",
                    hint="leave process_group out, or take variant=temporal",
                )
        parameters = trainable(setup.model)
        if setup.backward_s:
            seconds = {name: setup.backward_s[name] for name in setup.backward_s if name in parameters}
        else:
            seconds = {name: float(p.numel() * p.element_size()) for name, p in reversed(parameters.items())}
        band_of = bands(seconds, split.levels)
        # Parameters without a gradient in the profile, and new ones, are computed only at full depth.
        band_of |= {name: split.levels for name in parameters if name not in band_of}
        buckets = setup.buckets if setup.buckets is not None else [[name] for name in seconds]
        return Handle(setup.model, PartialBackpropEngine(setup, _whole(buckets, parameters), band_of, split))


def _whole(buckets: Sequence[Sequence[str]], parameters: Mapping[str, object]) -> list[list[str]]:
    """The buckets, and one each for trainable parameters in none. Raises SpecError for a name that is not trainable."""
    check_names(buckets, parameters)
    there = {name for bucket in buckets for name in bucket}
    return [*(list(bucket) for bucket in buckets), *([name] for name in parameters if name not in there)]


def _group_of(ranks: Sequence[int], device: torch.device | None = None) -> dist.ProcessGroup:
    """The group of these ranks, made once, for tensors on `device`. The creation is collective over all ranks.

    NCCL connects a group's ranks at its first collective, where the host waits for all of them. That collective is
    here, so that no group connects while collectives of other groups are in flight.

    All ranks together also get a separate group. On the default group, broadcasts would need a fixed place among
    all-reduces, and the start of a broadcast depends on the rank.
    """
    world = dist.group.WORLD
    assert world is not None
    key = tuple(ranks)
    if key not in _GROUPS or _GROUPS[key][0] is not world:
        made: Any = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            dist.all_reduce(torch.zeros(1, device=device), group=made)
        _GROUPS[key] = (world, made)
    return _GROUPS[key][1]
