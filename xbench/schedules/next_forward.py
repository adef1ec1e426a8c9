"""Next-forward overlap: gradients may still be sent during the next forward pass, and each layer waits for its own.

This is the common part of `dear` and `priority`, which define the collectives and their launches; docs/modes.md says
what a user sees of it. A step has three phases:

- Backward fills buckets, and their collectives are launched meanwhile. At its end, gradients are in flight, and every
  use of them is refused (`in_flight`).
- `optimizer.step()` updates nothing. It records that an update is due, with the current learning rate and all other
  settings, which a scheduler may change before the update happens.
- In the next forward pass each layer waits, before it runs, for its **update groups**: parameters that are updated
  together, by the optimizer's own code. The first layer that needs a group updates it, once; `first_use` finds these
  layers. While a layer waits, it updates groups that arrive before its own, where arrivals are visible to the waiting
  thread. On a stream they are not, and groups share calls (`on_a_stream`).

Promise: parameters, as every layer reads them, are bit-identical to those of a step that waits for all gradients first.
This holds for optimizers whose update of a parameter uses only its own gradient and state (`PER_PARAMETER`). Any other
use of a parameter completes the step first (`due_updates`). `wait` has no effect here.

Launches come from several threads (see `launch_queue`), so over Gloo the collectives have their own group, without
other collectives in between.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from xbench.errors import UsageError
from xbench.schedules import deferred_update
from xbench.schedules.base import AttachConfig, Handle, Schedule, guard_copies
from xbench.schedules.bucket import Bucket, CommBucket
from xbench.schedules.checks import default_buckets, group_ids
from xbench.schedules.due_updates import DueUpdates, UsedGradient, no_longer_due
from xbench.schedules.engine import TWICE, TWICE_HINT, Engine, Watch
from xbench.schedules.first_use import FirstUse
from xbench.schedules.hooks import closure_of, uncopied
from xbench.schedules.launch_queue import LaunchQueue, QueuedCollective
from xbench.schedules.served_parameters import trainable


class NextForward(Engine):
    """The engine with deferred updates. Arguments and errors are those of `Engine`."""

    name = "next-forward overlap"
    cuts_buckets = True

    def __init__(self, setup: AttachConfig) -> None:
        optimizer = deferred_update.check_deferrable(setup, self.name)
        buckets = setup.buckets if setup.buckets is not None else default_buckets(trainable(setup.model))
        super().__init__(setup.model, optimizer, buckets, group=setup.group, compress=setup.compress)
        self.optimizer = optimizer
        self.pieces: list[deferred_update.UpdateGroup] = []
        self._model = setup.model
        self._travels = False
        self._settings: list[dict[str, Any]] = []
        """The optimizer's settings by parameter group, while an update is due."""
        self._incomplete: set[int] = set()
        """Ids of buckets that may be launched and are not complete yet."""
        self._due = 0
        self._updates = DueUpdates()
        self._were_replaced = False
        """True if other code has put gradients in the place of those that the last step has used."""
        self._next_due = 0  # no update group before this one is due
        self._arriving: list[deferred_update.UpdateGroup] = []  # due groups, the first to arrive at the end
        self._plain_step = type(optimizer).step.__wrapped__  # type: ignore[attr-defined]  # without hooks
        self._first_use: FirstUse | None = None
        self.departures = LaunchQueue((), streams=False)
        self.lane: dist.ProcessGroup | None = None
        self._waiters: list[RemovableHandle] = []
        if self.communicate:
            try:
                self._prepare(setup)
            except BaseException:
                self.detach()
                raise

    def _prepare(self, setup: AttachConfig) -> None:
        """Set up the parts beyond the plain engine."""
        self._groups = deferred_update.check_groups(self.parameters, self.optimizer, self.name)
        self.carrier: deferred_update.Carrier = deferred_update.carrier_of(self.group, self._device)
        self.lane = deferred_update.own_group(self.group) if self.carrier == "exchange" else self.group
        self.departures = self._plan_departures(setup)
        for bucket in self._flat_buckets():
            self.pieces += self._pieces_of(bucket, [[] for _ in bucket.parameters])
        deferred_update.assign(self.pieces, self.departures.order, self.optimizer)
        self._handles.append(self.optimizer.register_step_pre_hook(self._before_step))
        self._handles.append(self.optimizer.register_step_post_hook(self._after_step))
        self._own_hooks = len(self.optimizer._optimizer_step_pre_hooks)
        self._handles += deferred_update.before_state_dicts(self._model, self.optimizer, self.finish)
        self._first_use = FirstUse(self._model, self.parameters, self.name)

    def _flat_buckets(self) -> list[CommBucket]:
        return [bucket for bucket in self.buckets if isinstance(bucket, CommBucket)]

    @abstractmethod
    def _plan_departures(self, setup: AttachConfig) -> LaunchQueue:
        """The collectives of a step, in launch order."""

    @abstractmethod
    def _pieces_of(self, bucket: CommBucket, homes: Sequence[list[Module]]) -> list[deferred_update.UpdateGroup]:
        """A bucket's update groups. `homes`: of each parameter; empty until they are known."""

    @abstractmethod
    def _filled(self, bucket: CommBucket) -> Sequence[QueuedCollective]:
        """Collectives that a full bucket makes ready."""

    def _learnt(self, first_use: FirstUse) -> None:
        """Hook after the first forward pass: all ranks call it together, before any other work of this step."""

    def _start(self, parameter: Parameter | Tensor) -> None:
        """See `Engine._start`. Updates of layers that the forward pass left out are completed here."""
        if self._travels and not self._due:
            raise UsageError(TWICE, hint=TWICE_HINT)
        self.finish()
        super()._start(parameter)

    def _full(self, bucket: Bucket) -> None:
        """See `Engine._full`; the launch queue keeps the order of full buckets."""
        if self.communicate:
            self._depart(bucket)

    def _depart(self, bucket: Bucket) -> None:
        """Queue a bucket's collectives. Gradients are copied at its first launch, so more urgent ones need not wait."""
        assert isinstance(bucket, CommBucket)
        self._incomplete.add(id(bucket))
        if not self.departures.goes_when_ready:
            self._complete(bucket)  # parameters have no gradients any more at a later launch
        self.departures.ready(self._filled(bucket))

    def _complete(self, bucket: CommBucket) -> None:
        """Complete the bucket before its first launch."""
        if id(bucket) in self._incomplete:
            self._incomplete.remove(id(bucket))
            bucket.complete()

    def _backward_ended(self) -> None:
        self._check_served()
        if self._first_use is not None and self._first_use.inside:
            raise UsageError(
                f"{self.name} learns from the first forward pass where each parameter is used, and a backward pass ran "
                "inside it",
                hint="the other schedules take such a model, as does handle.no_sync() around that backward pass",
            )
        if not self.communicate:
            self._kept.clear()
            for bucket in self.buckets:
                bucket.empty()
            return
        self._mark_kept()
        for bucket in self.buckets:
            if bucket.waiting:
                self._depart(bucket)
        self._travels = True
        self._in_flight.take(self.parameters.values())
        if self._first_use is not None:
            if not self._first_use.seen:
                raise UsageError(
                    f"{self.name} waits when modules are called, and this forward pass called none",
                    hint="call the model, not its forward method",
                )
            self._adopt(self._first_use)
            self._first_use = None

    def _adopt(self, first_use: FirstUse) -> None:
        """Make each layer wait for its own update groups from now on."""
        first_use.close()
        homes = {id(self.parameters[name]): found for name, found in first_use.homes().items()}
        self.pieces = [
            piece
            for bucket in self._flat_buckets()
            for piece in self._pieces_of(bucket, [homes[id(parameter)] for parameter in bucket.parameters])
        ]
        self._learnt(first_use)
        self.pieces.sort(key=lambda piece: min((first_use.place(home) for home in piece.homes), default=-1))
        deferred_update.assign(self.pieces, self.departures.order, self.optimizer)
        waits: dict[int, list[deferred_update.UpdateGroup]] = {}  # module → the groups that it waits for
        for piece in self.pieces:
            for home in piece.homes:
                waits.setdefault(id(home), []).append(piece)
        homeless = [piece for piece in self.pieces if not piece.homes]
        for module in self._model.modules():
            if pieces := [*homeless, *waits.get(id(module), ())]:
                # Not traced in a model that is compiled after attach.
                wait = torch.compiler.disable(self._before_layer(pieces))  # type: ignore[no-untyped-call]
                self._waiters.append(uncopied(module.register_forward_pre_hook(wait, prepend=True)))

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the deferred update before the optimizer steps, which then finds no gradients."""
        if closure_of(args, kwargs) is not None:
            raise UsageError(
                f"{self.name} puts the optimizer's step off, which a closure cannot be",
                hint="the other schedules take optimizer.step(closure)",
            )
        self.finish()
        if not self._travels:
            return
        deferred_update.refuse_step_hooks(optimizer, self.name, own=self._own_hooks)
        if getattr(optimizer, "found_inf", None) is not None or getattr(optimizer, "grad_scale", None) is not None:
            raise UsageError(
                f"a GradScaler looks at gradients that {self.name} still has on their way",
                hint="call handle.synchronize() before scaler.unscale_() and scaler.step()",
            )
        if self._in_flight.changed(self.parameters.values()):
            raise UsageError(
                f"gradients were removed or replaced while {self.name} had them on their way",
                hint="call handle.synchronize() between the backward pass and that",
            )
        self._settings = [
            {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items()}
            for group in optimizer.param_groups
        ]
        self._in_flight.remove(self.parameters.values())
        if self._groups != group_ids(optimizer):  # parameters were moved or added
            self._groups = deferred_update.check_groups(self.parameters, optimizer, self.name)
            deferred_update.assign(self.pieces, self.departures.order, optimizer)
        for piece in self.pieces:
            piece.due = True
        self._due = len(self.pieces)
        self._next_due = 0
        self._were_replaced = False
        if self.departures.can_be_counted:
            self._arriving = sorted(self.pieces, key=lambda piece: piece.last, reverse=True)

    def _after_step(self, *_: Any) -> None:
        """See `Engine._after_step`. After a step whose updates are due, uses of parameters and gradients are seen."""
        if self._due:
            self._updates.mark(self.parameters.values(), self._in_flight.held)

    def _before_layer(self, pieces: Sequence[deferred_update.UpdateGroup]) -> Callable[[Module, Any], None]:
        def wait(module: Module, inputs: Any) -> None:
            if not self._due:
                return
            if not torch.is_grad_enabled():
                self.finish()
                return
            needed = [piece for piece in pieces if piece.due]
            if not needed:
                return
            if self._waits_on_stream:
                for together in deferred_update.on_a_stream(needed, self.pieces):
                    self._land(together)
                    self._apply(together)
                return
            if self._arriving:
                self._meanwhile(needed)
            self._land(needed)  # first, because groups of a shared bucket arrive together
            self._apply([*needed, *self._here_already(needed)])

        return wait

    def _meanwhile(self, needed: Sequence[deferred_update.UpdateGroup]) -> None:
        """Until the needed groups arrive, update groups that arrive before them."""
        if self.note is not None:
            self.note("waiting for gradients")
        last = max(piece.last for piece in needed)
        landed = self.departures.landed(wait=False)
        while landed <= last:
            here = []
            while self._arriving and self._arriving[-1].last < landed:
                piece = self._arriving.pop()
                if piece.due and piece not in needed:
                    here.append(piece)
            if here:
                self._apply(here)
            elif self._are_here(needed):  # a backend need not keep the order
                return
            landed = self.departures.landed(wait=not here)

    def _are_here(self, pieces: Iterable[deferred_update.UpdateGroup]) -> bool:
        return self.departures.are_here([parcel for piece in pieces for parcel in (*piece.parcels, *piece.flags)])

    def _here_already(self, needed: Sequence[deferred_update.UpdateGroup]) -> Iterator[deferred_update.UpdateGroup]:
        """Groups that are needed next and have arrived; updating them with the needed ones saves a call each."""
        while self._next_due < len(self.pieces):
            piece = self.pieces[self._next_due]
            if piece.due and piece not in needed:
                if not self._are_here([piece]):
                    return
                yield piece
            self._next_due += 1

    def _apply(self, pieces: Sequence[deferred_update.UpdateGroup]) -> None:
        """Update the parameters of arrived groups as the due step would have."""
        groups: dict[int, list[Parameter]] = {}
        for piece in pieces:
            piece.due = False
            for number, parameters in piece.groups.items():
                groups.setdefault(number, []).extend(parameters)
        updated = [parameter for parameters in groups.values() for parameter in parameters]
        no_longer_due(updated)
        before = [parameter.grad for parameter in updated]
        whole = self.optimizer.param_groups
        self.optimizer.param_groups = [
            {**self._settings[number], "params": parameters} for number, parameters in groups.items()
        ]
        try:
            with deferred_update.ordinary_mode(updated[0].device.type):
                deferred_update.give_all(pieces, self._in_flight.held)
                self._plain_step(self.optimizer)
        finally:
            self.optimizer.param_groups = whole
            for parameter, gradient in zip(updated, before, strict=True):
                if type(gradient) is not UsedGradient:  # other code has removed it, or put another one there
                    parameter.grad = gradient
                    self._were_replaced |= gradient is not None
        self._due -= len(pieces)
        if not self._due:
            self._over()
            if not self._were_replaced:
                self._guard.completed(self.optimizer)

    def _land(self, pieces: Sequence[deferred_update.UpdateGroup]) -> None:
        """Wait until the groups' averaged gradients have arrived."""
        if self.note is not None:
            self.note("waiting for gradients")
        for piece in pieces:
            for parcel in piece.parcels:
                self.departures.wait(parcel)
            if piece.bucket.waiting:
                for parcel in piece.flags:
                    self.departures.wait(parcel)

    def _over(self) -> None:
        """End the step and prepare its buckets for the next one."""
        self.departures.begin_again()
        for bucket in self.buckets:
            bucket.empty()
        self._in_flight.held.clear()
        self._settings = []
        self._travels = False

    def finish(self) -> None:
        """Apply the remaining updates of the last step, if one was taken. Safe to call at any time, and twice."""
        due = [piece for piece in self.pieces if piece.due]
        if due:
            self._land(due)
            self._apply(due)

    def synchronize(self) -> None:
        """Return when the gradients of this step are averaged and on their parameters; its update is an ordinary one.

        What other code has put in the place of a gradient stays. Does nothing when no backward pass has run since the
        last step.
        """
        if not self.communicate or not self._travels or self._due:
            return
        self._land(self.pieces)
        changed = self._in_flight.changed(self.parameters.values())
        self._in_flight.remove(self.parameters.values())
        deferred_update.give_all(self.pieces, self._in_flight.held)
        for parameter, gradient in changed:
            parameter.grad = gradient
        self._over()

    def detach(self) -> None:
        """See `Engine.detach`: the last step is completed, and gradients without a step are averaged.

        After a step that was refused or raised, the wait for collectives in flight has a limit.
        """
        whole = False
        try:
            self.finish()
            self.synchronize()
            whole = True
        finally:
            for waiter in self._waiters:
                waiter.remove()
            self._waiters.clear()
            if self._first_use is not None:
                self._first_use.close()
                self._first_use = None
            self._updates.forget(self.parameters.values())
            self.departures.settle()
            self.departures.forget()
            self.pieces = []
            super().detach()
            if self.lane is not None and whole:  # else ranks may have launched different numbers of collectives on it
                deferred_update.give_back(self.group, self.lane)
            self.lane = None


class NextForwardHandle(Handle):
    """An attached schedule with next-forward overlap."""

    engine: NextForward

    def finish(self) -> None:
        """See `Handle.finish`."""
        self.engine.finish()

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`."""
        if self.engine.communicate:
            self.engine.departures.watch = watch
        return True

    def watch_waits(self, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        """See `Handle.watch_waits`."""
        if self.engine.communicate:
            self.engine.departures.waiting = waiting


class DeferredUpdate(Schedule):
    """A schedule that defers updates into the next forward pass."""

    engine: type[NextForward]

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; `wait` is ignored."""
        engine = self.engine(setup)
        handle = NextForwardHandle(setup.model, engine)
        handle.at_detach(guard_copies(engine.optimizer, engine.finish))
        return handle
