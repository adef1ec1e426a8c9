"""The engine of xbench's schedules: it marks gradients ready and launches full buckets in plan order.

A bucket is a set of parameters and a count of missing gradients. When the count is zero, the bucket is full. Full
buckets are launched in the plan's order on every rank, whatever the order of the hooks is. So ranks never wait for each
other's different collectives. A gradient is scaled by 1/world before it is sent. The sum over ranks is therefore the
exact mean that DDP computes, in the same operations (except with `compress`). `bucket` defines how gradients are copied
into a bucket's collective and back.

Invariants

- Every rank launches one collective per bucket and step, even when a parameter has no gradient here. It sends zeros for
  that parameter. One flag per parameter at the end of the bucket shows whether any other rank had a gradient. A
  parameter that no rank used keeps its earlier gradient (usually None), as in DDP with `find_unused_parameters`.
- A bucket's memory is written again only after the wait for its collective.
- `loss.backward()` returns with averaged gradients, so clipping, GradScaler and skipped steps need no special care.
  With `wait="step"` it returns at once, and `synchronize()` or the optimizer's step waits. Until then a use of the
  gradients is refused (`in_flight`). While the step waits, it updates the parameters of buckets that have arrived
  (`early_update`), with bit-identical results. An optimizer with other step hooks updates everything after the wait,
  because its hooks see the gradients that its step sees.
- A world of one has nothing to average: gradients stay in place, and only the cost of the hooks remains.
- Inside `no_sync()` gradients accumulate locally and nothing is launched. The next pass outside it sends them, also
  where it computes no gradient of their parameter.
- A gradient that an earlier pass left on a parameter stays if no rank used the parameter since. If some rank did, all
  ranks average the sum of both, as DDP does.
- A step ends with the outermost backward pass: a nested one (checkpointing with `use_reentrant=True`) ends nothing.
- With a closure in `optimizer.step`, the wait of `wait="step"` follows the closure instead of preceding the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from xbench.equal_ranks import on_device
from xbench.errors import UsageError
from xbench.schedules.bucket import Bucket, CommBucket, Work, finish
from xbench.schedules.checks import check_cover
from xbench.schedules.early_update import PER_PARAMETER, EarlyUpdates, first_half, group_of
from xbench.schedules.groups import waits_on_stream, workers_of
from xbench.schedules.hooks import Arguments, BackwardEnd, closure_of, takes_hooks, untraced, with_wait
from xbench.schedules.in_flight import InFlight
from xbench.schedules.loop_guard import LoopGuard, refuse_node_hooks
from xbench.schedules.served_parameters import ENGINES, engine_of, own_gradients, refuse_sparse, trainable
from xbench.spec import Compress

Wait = Literal["backward", "step"]
TWICE = "a backward pass began before the gradients of the last one were waited for"
TWICE_HINT = "call handle.synchronize() where no step follows a backward pass; accumulate under handle.no_sync()"


class Watch(Protocol):
    """Callback that calls `start`, which starts a collective of `nbytes` bytes, and observes it.

    `kind` names what travels: a bucket of gradients, or the collective of another library's schedule.
    """

    def __call__(self, nbytes: int, start: Callable[[], Work], kind: str = "bucket") -> Work:
        """Start the collective, and return it."""


class Engine:
    """Hooks on a model's parameters, buckets in plan order, and one process group.

    `buckets` are lists of parameter names in launch order and must cover every trainable parameter exactly once. With
    None the engine starts with one bucket per tensor in reverse order of registration. It learns the real ready order
    from the first backward pass on rank 0 and then keeps it. `compress` sends fp32 gradients as bf16.

    Raises UsageError for a model that it cannot serve and SpecError for buckets that do not fit the model.
    """

    cuts_buckets = False
    """True if a bucket's buffer must have a piece of equal size for each rank."""

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | None,
        buckets: Sequence[Sequence[str]] | None,
        *,
        group: dist.ProcessGroup | None = None,
        overlap: bool = True,
        wait: Wait = "backward",
        compress: Compress | None = None,
    ) -> None:
        self.group = group if group is not None else (dist.group.WORLD if dist.is_initialized() else None)
        self.world_size = dist.get_world_size(self.group) if dist.is_initialized() else 1
        self.overlap = overlap
        self.wait: Wait = wait
        self.communicate = dist.is_initialized() and workers_of(self.group) > 1
        self.compress = compress
        self.parameters = trainable(model)
        self._device = next(iter(self.parameters.values())).device
        self._waits_on_stream = waits_on_stream(self.group, self._device)
        self._learn_order = buckets is None
        self._seen: list[str] = []
        self._kept: dict[str, None] = {}
        """Names of parameters with gradients of passes under `no_sync` that were not sent yet."""
        self.note: Callable[[str], None] | None = None
        self.watch: Watch | None = None
        plan = [[name] for name in reversed(self.parameters)] if buckets is None else buckets
        check_cover(plan, self.parameters)
        self._build(plan)
        self._next = 0
        self._end = BackwardEnd(self._backward_ended)
        refuse_node_hooks(self.parameters)
        self._enabled = True
        self._early = EarlyUpdates()
        self._in_flight = InFlight()
        self._handles: list[RemovableHandle] = []
        if optimizer is not None and wait == "step":
            takes_hooks(optimizer)
            self._handles.append(optimizer.register_step_pre_hook(untraced(self._before_step)))
            self._handles.append(optimizer.register_step_post_hook(untraced(self._after_step)))
        self.takes_later_hooks = False
        """True for hooks that are registered later and only mark the time."""
        self._hooks: list[dict[int, Any]] = []
        """Hooks of each parameter by id, in their order; ours have the ids `_hook_ids`."""
        self._hook_ids: list[int] = []
        self._guard = LoopGuard(
            model, optimizer, self.parameters, averages=self.communicate, check_ended=self._check_ended
        )
        for name, parameter in self.parameters.items():
            ENGINES[id(parameter)] = self
            handle = parameter.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]
            hooks: Any = parameter._post_accumulate_grad_hooks
            self._hooks.append(hooks)
            self._hook_ids.append(handle.id)
            self._handles.append(handle)

    def _build(self, plan: Sequence[Sequence[str]]) -> None:
        self.buckets = [self._bucket(names) for names in plan]
        self.place = {
            name: (bucket, index)
            for bucket, names in zip(self.buckets, plan, strict=True)
            for index, name in enumerate(names)
        }

    def _bucket(self, names: Sequence[str]) -> Bucket:
        parameters = [self.parameters[name] for name in names]
        if not self.communicate:
            return Bucket(parameters, 1.0)
        pieces = self.world_size if self.cuts_buckets else 1
        return CommBucket(parameters, 1.0 / self._averaged_over(names), self.compress, pieces)

    def _averaged_over(self, names: Sequence[str]) -> int:
        """Number of ranks over which gradients of these parameters are averaged."""
        return self.world_size

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        place = self.place  # updated with the learnt order

        def ready(parameter: Tensor) -> None:
            if not self._enabled:
                self._guard.passes += 1
                self._kept[name] = None
                return
            if not self._end.awaited:
                self._guard.passes += 1
                self._start(parameter)
            if parameter.grad is None:  # an autograd function returned None: no gradient on this rank
                return
            refuse_sparse(name, parameter)
            bucket, index = place[name]
            self.mark_ready(bucket, index)
            if self._learn_order:
                self._seen.append(name)

        return ready

    def _start(self, parameter: Tensor) -> None:
        """Prepare for the first gradient of a step: await the end of the outermost backward pass."""
        if parameter.grad is not None and parameter.grad.requires_grad:
            raise UsageError("backward(create_graph=True) is not supported by xbench's schedules")
        if self._next:  # the last pass has sent all buckets without a wait for them
            raise UsageError(TWICE, hint=TWICE_HINT)
        self._end.await_end()

    def mark_ready(self, bucket: Bucket, index: int) -> None:
        """Mark one accumulated gradient; launch full buckets in order."""
        if bucket.filled[index]:
            raise UsageError(
                "a gradient was accumulated twice before its bucket was sent",
                hint="nested backward passes share a parameter: checkpoint with use_reentrant=False",
            )
        bucket.fill(index)
        if not bucket.waiting:
            self._full(bucket)

    def _mark_kept(self) -> None:
        """Mark gradients of passes under `no_sync` whose parameters this pass did not use."""
        for name in self._kept:
            bucket, index = self.place[name]
            if not bucket.filled[index] and self.parameters[name].grad is not None:
                refuse_sparse(name, self.parameters[name])
                self.mark_ready(bucket, index)
        self._kept.clear()

    def forget_kept(self) -> None:
        """Take gradients of passes under `no_sync` for dropped."""
        self._kept.clear()

    def _full(self, bucket: Bucket) -> None:
        """Handle a bucket whose gradients are all ready."""
        if self.overlap:
            self.launch_in_order()

    def launch_in_order(self) -> None:
        """Launch every full bucket before the first that is not full."""
        while self._next < len(self.buckets) and not self.buckets[self._next].waiting:
            self._launch(self.buckets[self._next])
            self._next += 1

    def _launch(self, bucket: Bucket) -> None:
        if not isinstance(bucket, CommBucket):
            return
        bucket.complete()
        if self.watch is None:
            bucket.work = self._all_reduce(bucket)
        else:
            bucket.work = self.watch(bucket.grad_bytes, lambda: self._all_reduce(bucket))

    def _all_reduce(self, bucket: CommBucket) -> Work:
        return bucket.send(self.group)

    def _check_served(self) -> None:
        """Raise UsageError for a parameter that has become trainable, or has got a hook, since the schedule attached.

        A later hook runs after the gradient was handed to its collective.
        """
        self._guard.trained.check()
        if self.takes_later_hooks or sum(map(len, self._hooks)) == len(self._hooks):
            return
        for name, hooks, own in zip(self.parameters, self._hooks, self._hook_ids, strict=True):
            if next(reversed(hooks)) != own:
                raise UsageError(
                    f"parameter {name!r} got a hook after the schedule was attached, which would change or read its "
                    "gradient while that is sent",
                    hint="register hooks before the schedule is attached",
                )

    def _backward_ended(self) -> None:
        self._check_served()
        self._mark_kept()
        for bucket in self.buckets[self._next :]:  # mostly none: all are in flight
            self._launch(bucket)
        self._next = len(self.buckets)
        if self.wait == "backward":
            self.synchronize()
        elif self.communicate:
            self._in_flight.take(self.parameters.values())

    def synchronize(self) -> None:
        """Return when every gradient of this step is averaged. Does nothing when no backward pass has run.

        Raises UsageError while a backward pass is under way, or after one that raised.
        """
        self._check_ended()
        if self._next == 0:
            return
        if self.note is not None:
            self.note("waiting for gradients")
        self._finish([bucket for bucket in self._comm_buckets() if bucket.work is not None])
        self._ended()
        if self._learn_order:
            self._adopt_order()

    def _comm_buckets(self) -> list[CommBucket]:
        return [bucket for bucket in self.buckets if isinstance(bucket, CommBucket)]

    def _finish(self, buckets: Sequence[CommBucket]) -> None:
        """Wait for these buckets; their gradients are averaged and on the parameters."""
        changed = [self._in_flight.give_back(bucket.parameters) for bucket in buckets]
        finish(buckets, set().union(*changed))

    def _ended(self) -> None:
        """End the step: buckets that were not sent are empty again, too, and their stand-ins are gone."""
        self._in_flight.give_back(self.parameters.values())
        for bucket in self.buckets:
            bucket.empty()
        self._next = 0
        self._collected()

    def _check_ended(self) -> None:
        """Raise UsageError while a backward pass is under way, or after one that raised."""
        if self._end.awaited:
            raise UsageError("gradients are not averaged before the backward pass that computes them has ended")

    def _check_step(self) -> None:
        """Raise UsageError before a step whose gradients were not averaged."""
        self._check_ended()
        self._guard.trained.check()

    def _synchronize_step(self) -> None:
        """Wait for the gradients of a closure's backward pass."""
        self._check_step()
        self.synchronize()

    def _collected(self) -> None:
        """Hook for engines whose steps differ; called when every gradient of this step is averaged."""

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Wait for the gradients before the optimizer steps, and update arrived buckets meanwhile.

        Afterwards only parameters that the optimizer's own step still has to update have gradients. `_after_step`
        restores the others.
        """
        if closure_of(args, kwargs) is not None:
            return with_wait(args, kwargs, self._synchronize_step)
        self._wait_and_update(optimizer)
        return None

    def _wait_and_update(self, optimizer: Optimizer) -> None:
        self._check_step()
        # Other hooks of the optimizer see the gradients that its step sees: all of them.
        alone = len(optimizer._optimizer_step_pre_hooks) == 1 and len(optimizer._optimizer_step_post_hooks) == 1
        early = alone and type(optimizer) in PER_PARAMETER and self.communicate
        if not early or self._next == 0 or self._learn_order:
            self.synchronize()
            return
        if self.note is not None:
            self.note("waiting for gradients")
        sent = [bucket for bucket in self._comm_buckets() if bucket.work is not None]
        groups = group_of(optimizer)
        if self._waits_on_stream:
            first = first_half(sent)
            self._finish(first)
            if first:
                self._update(first, optimizer, groups)
            self._finish([bucket for bucket in sent if bucket.work is not None])
        else:
            arrived: list[CommBucket] = []
            for bucket in sent:
                if arrived and not bucket.has_arrived():
                    self._update(arrived, optimizer, groups)
                    arrived = []
                self._finish([bucket])
                arrived.append(bucket)
        self._ended()

    def _update(self, arrived: Sequence[CommBucket], optimizer: Optimizer, groups: Mapping[int, int]) -> None:
        """Step the optimizer for the parameters of some buckets alone."""
        self._early.update([parameter for bucket in arrived for parameter in bucket.parameters], optimizer, groups)

    def _after_step(self, *_: Any) -> None:
        """Restore the gradients of parameters that were updated early."""
        self._early.restore()

    def _adopt_order(self) -> None:
        """Rebuild one bucket per tensor in rank 0's order, which every rank must share."""
        missing = [name for name in reversed(self.parameters) if name not in set(self._seen)]
        order: list[Any] = [self._seen + missing]
        if self.communicate:
            source = dist.get_process_group_ranks(self.group)[0] if self.group is not None else 0
            with on_device(self._device):
                dist.broadcast_object_list(order, src=source, group=self.group)
        place = self.place
        self._build([[name] for name in order[0]])
        place.update(self.place)
        self.place = place  # the hooks have it
        self._learn_order = False
        self._seen = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally inside this context: nothing is sent."""
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def detach(self) -> None:
        """Remove every hook after a wait for gradients in flight, also if the wait raises. Safe to call twice.

        After a backward pass that raised there is no wait: other ranks may have sent other buckets.
        """
        if self._handles:
            self._end.forget()
            self._guard.remove()
            try:
                if self._next == len(self.buckets):
                    self.synchronize()
            finally:
                for handle in self._handles:
                    handle.remove()
                self._handles.clear()
                for parameter in self.parameters.values():
                    if engine_of(parameter) is self:
                        del ENGINES[id(parameter)]
                self._in_flight.remove(self.parameters.values())
                own_gradients(self.parameters.values())
                self.buckets = []
