"""Next-forward overlap: gradients may travel on while the next forward pass runs, and each layer waits for its own.

What `dear` and `priority` have in common; what is launched, and when, is theirs. A step goes like this:

- backward fills buckets, whose collectives are launched on the way; when it ends, gradients are taken off the
  parameters: they belong to what travels, and nobody can read, clip or zero them by mistake;
- `optimizer.step()` updates nothing. It notes that an update is due, with the learning rate and all other settings of
  this moment, which a scheduler may change before the update happens;
- in the next forward pass each layer waits, before it runs, for what carries its own parameters' gradients (its
  **pieces**: parameters that are updated together), and the optimizer's update is applied to those parameters alone, by
  the optimizer's own code. A piece is updated once, by the first layer that needs it; see `first_use` for which layers
  those are. A layer that has to wait updates what arrives before its own gradients meanwhile, where whoever waits can
  tell.

Promised: parameters, as every layer reads them, are bit for bit those of a step that waits for all gradients first, for
optimizers whose update of a parameter depends on its own gradient and state alone (`PER_PARAMETER`). A forward pass
without gradients (validation) completes everything before its first layer; so do `Handle.finish`, the state dicts of
the model and the optimizer, and detaching. What else reads parameters between a step and the next forward pass (an
average of weights, a regulariser computed outside the model) must call `Handle.finish` first.

`Handle.synchronize` before the step gives up the overlap for this step: gradients are averaged and on the parameters,
for clipping or a GradScaler, and the step is an ordinary one. `wait` means nothing here. A step uses gradients up: what
`zero_grad(set_to_none=True)` would do has been done.

Launches come from several threads (see `departures`), so over Gloo the collectives have a group of their own: nobody
else's collectives get between them. Refused by name: other optimizers, no optimizer, optimizers with hooks or closures
(they would find no gradients), parameters that the optimizer does not have, modules called twice in a forward pass,
models with compiled regions (which have no layers to wait in), `copies="coalesced"`, a GradScaler without
`synchronize`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from xbench.errors import UsageError
from xbench.schedules.base import AttachConfig
from xbench.schedules.bucket import Bucket, FlatBucket, flat_bucket
from xbench.schedules.deferred_update import Carrier, before_state_dicts, carrier_of, check_deferrable, ordinary_mode
from xbench.schedules.engine import TWICE, Engine, trainable
from xbench.schedules.first_use import FirstUse
from xbench.schedules.launch_queue import LaunchQueue, QueuedCollective
from xbench.schedules.optimizer_hooks import closure_of
from xbench.schedules.own_group import own_group
from xbench.schedules.plan_fit import default_buckets
from xbench.schedules.update_groups import UpdateGroup, assign, group_of


class NextForward(Engine):
    """The engine whose updates are put off. See `Engine` for the arguments and for what is raised."""

    name = "next-forward overlap"

    def __init__(self, setup: AttachConfig) -> None:
        optimizer = check_deferrable(setup, self.name)
        buckets = setup.buckets if setup.buckets is not None else default_buckets(trainable(setup.model))
        super().__init__(
            setup.model,
            optimizer,
            buckets,
            group=setup.group,
            wait="backward",
            copies=setup.copies,
            compress=setup.compress,
        )
        self.optimizer = optimizer
        self.pieces: list[UpdateGroup] = []
        self._model = setup.model
        self._held: dict[int, Tensor | None] = {}  # parameter → its gradient, while it travels
        self._travels = False
        self._settings: list[dict[str, Any]] = []
        """The optimizer's settings by parameter group, while an update is due."""
        self._incomplete: set[int] = set()
        """Buckets that may go and are not complete."""
        self._due = 0
        self._next_due = 0  # no piece before this one is due
        self._arriving: list[UpdateGroup] = []  # those that are due, what arrives first at the end
        self._plain_step = type(optimizer).step.__wrapped__  # type: ignore[attr-defined]  # without hooks
        self._first_use: FirstUse | None = None
        self.departures = LaunchQueue((), streams=False)
        self._waiters: list[RemovableHandle] = []
        if self.communicate:
            try:
                self._prepare(setup)
            except BaseException:
                self.detach()
                raise

    def _prepare(self, setup: AttachConfig) -> None:
        """Everything beyond the plain engine."""
        groups = group_of(self.optimizer)
        for name, parameter in self.parameters.items():
            if id(parameter) not in groups:
                raise UsageError(f"{self.name} updates all parameters itself, and the optimizer does not have {name!r}")
        self.carrier: Carrier = carrier_of(self.group, next(iter(self.parameters.values())).device)
        self.lane = own_group(self.group) if self.carrier == "exchange" else self.group
        self.departures = self._plan_departures(setup)
        for bucket in self._flat_buckets():
            self.pieces += self._pieces_of(bucket, {index: [] for index in range(len(bucket.parameters))})
        assign(self.pieces, self.departures.order, self.optimizer)
        self._handles.append(self.optimizer.register_step_pre_hook(self._before_step))
        self._handles += before_state_dicts(self._model, self.optimizer, self.finish)
        self._first_use = FirstUse(self._model, self.parameters, self.name)

    def _flat_buckets(self) -> list[FlatBucket]:
        return [bucket for bucket in self.buckets if isinstance(bucket, FlatBucket)]

    # --- what a schedule says ----------------------------------------------------------------------------------------

    @abstractmethod
    def _plan_departures(self, setup: AttachConfig) -> LaunchQueue:
        """The parcels of a step, in launch order."""

    @abstractmethod
    def _pieces_of(self, bucket: FlatBucket, homes: dict[int, list[Module]]) -> list[UpdateGroup]:
        """A bucket's pieces. `homes`: by index; empty lists as long as they are not known."""

    @abstractmethod
    def _filled(self, bucket: FlatBucket) -> Sequence[QueuedCollective]:
        """What can be sent when a bucket is full."""

    def _learnt(self, first_use: FirstUse) -> None:
        """The first forward pass is over: all ranks get here together, before anything else of this step."""

    # --- backward ----------------------------------------------------------------------------------------------------

    def _bucket(self, parameters: Sequence[Parameter]) -> Bucket:
        if not self.communicate:
            return super()._bucket(parameters)
        return flat_bucket(parameters, 1.0 / self.world_size, self.copies, self.compress, self.world_size)

    def _start(self, parameter: Parameter | Tensor) -> None:
        """See `Engine._start`. Layers that the forward pass left out have not been waited for."""
        if self._travels and not self._due:
            raise UsageError(TWICE, hint="run all backward passes of a step but the last under handle.no_sync()")
        self.finish()
        super()._start(parameter)

    def _full(self, bucket: Bucket) -> None:
        """In which order full buckets are launched is known to the departures."""
        if self.communicate:
            self._depart(bucket)

    def _depart(self, bucket: Bucket) -> None:
        """Gradients are copied when the first of them goes: what is more urgent need not wait for that."""
        assert isinstance(bucket, FlatBucket)
        self._incomplete.add(id(bucket))
        if not self.departures.goes_when_ready:
            self._complete(bucket)  # parameters have no gradients any more when it goes
        self.departures.ready(self._filled(bucket))

    def _complete(self, bucket: FlatBucket) -> None:
        """Before anything of it goes."""
        if id(bucket) in self._incomplete:
            self._incomplete.remove(id(bucket))
            bucket.complete()

    def _backward_ended(self) -> None:
        self._trained.check()
        if self._first_use is not None and self._first_use.inside:
            raise UsageError(
                f"{self.name} learns from the first forward pass where each parameter is used, and a backward pass ran "
                "inside it",
                hint="the other schedules take such a model, as does handle.no_sync() around that backward pass",
            )
        if not self.communicate:
            for bucket in self.buckets:
                bucket.empty()
            return
        for bucket in self.buckets:
            if bucket.waiting:
                self._depart(bucket)
        self._travels = True
        for parameter in self.parameters.values():
            self._held[id(parameter)] = parameter.grad
            parameter.grad = None
        if self._first_use is not None:
            if not self._first_use.seen:
                raise UsageError(
                    f"{self.name} waits when modules are called, and this forward pass called none",
                    hint="call the model, not its forward method",
                )
            self._adopt(self._first_use)
            self._first_use = None

    def _adopt(self, first_use: FirstUse) -> None:
        """From now on each layer waits for itself."""
        first_use.close()
        homes = first_use.homes()
        by_parameter = {id(self.parameters[name]): found for name, found in homes.items()}
        self.pieces = [
            piece
            for bucket in self._flat_buckets()
            for piece in self._pieces_of(
                bucket, {index: by_parameter[id(parameter)] for index, parameter in enumerate(bucket.parameters)}
            )
        ]
        self._learnt(first_use)
        self.pieces.sort(key=lambda piece: min((first_use.place(home) for home in piece.homes), default=-1))
        assign(self.pieces, self.departures.order, self.optimizer)
        waits: dict[int, tuple[Module, list[UpdateGroup]]] = {}
        for piece in self.pieces:
            for home in piece.homes:
                waits.setdefault(id(home), (home, []))[1].append(piece)
        homeless = [piece for piece in self.pieces if not piece.homes]
        for module, pieces in waits.values():
            hook = self._before_layer([*homeless, *pieces])
            self._waiters.append(module.register_forward_pre_hook(hook, prepend=True))
        others = self._model.modules() if homeless else ()
        for module in others:
            if id(module) not in waits:
                self._waiters.append(module.register_forward_pre_hook(self._before_layer(homeless), prepend=True))

    # --- the step, and what is left of it ----------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the optimizer steps: it finds no gradients, and what it would have done with them is due."""
        if closure_of(args, kwargs) is not None:
            raise UsageError(
                f"{self.name} puts the optimizer's step off, which a closure cannot be",
                hint="the other schedules take optimizer.step(closure)",
            )
        self._finish_due()
        if not self._travels:
            return
        if getattr(optimizer, "found_inf", None) is not None or getattr(optimizer, "grad_scale", None) is not None:
            raise UsageError(
                f"a GradScaler looks at gradients that {self.name} still has on their way",
                hint="call handle.synchronize() before scaler.unscale_() and scaler.step()",
            )
        self._settings = [
            {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in optimizer.param_groups
        ]
        for piece in self.pieces:
            piece.due = True
        self._due = len(self.pieces)
        self._next_due = 0
        if self.departures.can_be_counted:
            self._arriving = sorted(self.pieces, key=lambda piece: piece.last, reverse=True)

    def _before_layer(self, pieces: Sequence[UpdateGroup]) -> Callable[[Module, Any], None]:
        def wait(module: Module, inputs: Any) -> None:
            if not self._due:
                return
            if not torch.is_grad_enabled():
                self._finish_due()
                return
            needed = [piece for piece in pieces if piece.due]
            if needed:
                if self._arriving:
                    self._meanwhile(needed)
                self._land(needed)  # before it is asked what else is here: what shares a bucket arrives with it
                self._apply([*needed, *self._here_already(needed)])

        return wait

    def _meanwhile(self, needed: Sequence[UpdateGroup]) -> None:
        """Until these arrive: update what arrives before them, as a layer further on would have to."""
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

    def _are_here(self, pieces: Iterable[UpdateGroup]) -> bool:
        return self.departures.are_here([parcel for piece in pieces for parcel in (*piece.parcels, *piece.flags)])

    def _here_already(self, needed: Sequence[UpdateGroup]) -> Iterator[UpdateGroup]:
        """Pieces that are needed next and have arrived: updated with the needed ones they cost one call less each."""
        while self._next_due < len(self.pieces):
            piece = self.pieces[self._next_due]
            if piece.due and piece not in needed:
                if not self._are_here([piece]):
                    return
                yield piece
            self._next_due += 1

    def _apply(self, pieces: Sequence[UpdateGroup]) -> None:
        """Update the parameters of pieces that have landed as the step that is due would have."""
        groups: dict[int, list[Parameter]] = {}
        for piece in pieces:
            piece.due = False
            for number, parameters in piece.groups.items():
                groups.setdefault(number, []).extend(parameters)
        updated = [parameter for parameters in groups.values() for parameter in parameters]
        before = [parameter.grad for parameter in updated]
        whole = self.optimizer.param_groups
        self.optimizer.param_groups = [
            {**self._settings[number], "params": parameters} for number, parameters in groups.items()
        ]
        try:
            with ordinary_mode(updated[0].device.type):
                for piece in pieces:
                    piece.give(self._held)
                self._plain_step(self.optimizer)
        finally:
            self.optimizer.param_groups = whole
            for parameter, gradient in zip(updated, before, strict=True):
                parameter.grad = gradient
        self._due -= len(pieces)
        if not self._due:
            self._over()

    def _land(self, pieces: Sequence[UpdateGroup]) -> None:
        """Wait until the pieces' averaged gradients are there."""
        if self.note is not None:
            self.note("waiting for gradients")
        for piece in pieces:
            for parcel in piece.parcels:
                self.departures.wait(parcel)
            if piece.bucket.waiting:
                for parcel in piece.flags:
                    self.departures.wait(parcel)

    def _over(self) -> None:
        """The step is complete: its buckets wait for the next one."""
        self.departures.begin_again()
        for bucket in self.buckets:
            bucket.empty()
        self._held.clear()
        self._settings = []
        self._travels = False

    def _finish_due(self) -> None:
        due = [piece for piece in self.pieces if piece.due]
        if due:
            self._land(due)
            self._apply(due)

    def finish(self) -> None:
        """Apply what is left of the last step, if one was taken. Safe to call at any time, and twice."""
        self._finish_due()

    def synchronize(self) -> None:
        """Return when the gradients of this step are averaged and on their parameters; its update is an ordinary one.

        Does nothing when no backward pass has run since the last step.
        """
        if not self.communicate or not self._travels or self._due:
            return
        self._land(self.pieces)
        for piece in self.pieces:
            piece.give(self._held)
        self._over()

    def detach(self) -> None:
        """See `Engine.detach`: the last step is completed, and gradients without a step are averaged.

        After a step that was refused or raised, what is under way is waited for, up to a bound.
        """
        self.finish()
        self.synchronize()
        for waiter in self._waiters:
            waiter.remove()
        self._waiters.clear()
        if self._first_use is not None:
            self._first_use.close()
            self._first_use = None
        self.departures.settle()
        self.departures.forget()
        self.pieces = []
        super().detach()
