"""horovod: hvd.DistributedOptimizer with Horovod's defaults (Sergeev and Del Balso, arXiv 1802.05799).

docs/horovod.md says how Horovod packs gradients and why two jobs differ in their scale factors. The user's optimizer
still steps. Before its step the wrapper's `synchronize` is called, as in the wrapper's own `step`. Accumulation is
Horovod's own (`set_backward_passes_per_step`). Gradients are averaged when the optimizer steps, or in
`handle.synchronize()` before they are clipped or unscaled. Until then Horovod's thread writes to them, and any use of
them is refused (`in_flight`).

Horovod never removes its hooks. They are on the nodes that accumulate gradients, and the wrapper keeps those nodes
alive. So detaching releases the nodes, and sets those that a user's graph still holds to never send again.

Models attached at once, such as two jobs in turns, share Horovod's one world, which fuses gradients of equal scale
factors only (`Controller::FuseResponses` in 0.28.1). So model number n divides by the ranks n times before the sum
(`gradient_predivide_factor`). The number is also in the names of its gradients, which must differ. Their wait sleeps,
because it is long and Horovod's own wait takes the core from the thread that sends.

Scripts for Horovod broadcast the optimizer's state before they train, which allocates it. Attaching allocates the
momentum of SGD likewise (`allocate_momentum`), so that a measured step is that of such a script.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module, Parameter
from torch.optim import SGD, Optimizer

from xbench.equal_ranks import on_device
from xbench.errors import UsageError
from xbench.horovod import INSTALL, Settings
from xbench.horovod.world import SENT_BY_HOROVOD, WORLD
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.checks import TrainableSet
from xbench.schedules.hooks import Arguments, BackwardEnd, closure_of, takes_hooks, with_wait
from xbench.schedules.in_flight import InFlight
from xbench.schedules.served_parameters import refuse_ignored, trainable
from xbench.torch_compile import plain_name

NEVER = 2**31 - 1
POLL_S = 50e-6


class HorovodHandle(Handle):
    """An optimizer of Horovod beside the user's own, over the same `parameters`. `number`: its model's in `WORLD`."""

    def __init__(self, model: Module, wrapper: Any, parameters: Iterable[Parameter], number: int) -> None:
        super().__init__(model)
        self._wrapper = wrapper
        self._number = number
        self._parameters = list(parameters)
        self._sends = True
        self._in_flight = InFlight()
        self._backward = BackwardEnd(self._backward_ended)
        for parameter in self._parameters:
            hook: Any = parameter.register_post_accumulate_grad_hook(self._gradient_ready)  # type: ignore[no-untyped-call]
            self.at_detach(hook.remove)

    def _gradient_ready(self, _: Parameter) -> None:
        if self._sends and not self._backward.awaited:
            self._backward.await_end()

    def _backward_ended(self) -> None:
        if self._wrapper._handles:  # none in a world of one
            self._in_flight.take(self._parameters)

    def synchronize(self) -> None:
        """See `Handle.synchronize`; does nothing when no backward pass has run."""
        if self._wrapper is None or not self._wrapper._handles:
            return
        sent = dict(self._in_flight.held)
        changed = self._in_flight.give_back(self._parameters)
        theirs = [(one, one.grad) for one in self._parameters if id(one) in changed]
        for parameter, _ in theirs:  # Horovod writes the average there
            parameter.grad = sent.get(id(parameter))
        if len(WORLD.users) > 1:
            self._arrived()
        self._wrapper.synchronize()
        for parameter, gradient in theirs:
            parameter.grad = gradient

    def _arrived(self) -> None:
        """Return when all gradients have arrived. Horovod's own wait never sleeps, and its threads need the core."""
        poll = importlib.import_module("horovod.torch").poll
        for handle, _ in self._wrapper._handles.values():
            while handle is not None and not poll(handle):
                time.sleep(POLL_S)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `Handle.no_sync`."""
        self._wrapper.set_backward_passes_per_step(NEVER)
        self._sends = False
        try:
            yield
        finally:
            self._sends = True
            self._wrapper.set_backward_passes_per_step(1)

    def detach(self) -> None:
        """See `Handle.detach`: the last to go shuts Horovod down, if this process's schedules started it."""
        if self._wrapper is None:
            return
        try:
            self.synchronize()
        finally:
            self._wrapper.set_backward_passes_per_step(NEVER)
            self._wrapper._grad_accs.clear()
            self._wrapper = None
            super().detach()
            WORLD.leave(self._number)


class Horovod(Schedule):
    """Wrap the optimizer in hvd.DistributedOptimizer."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; every rank must call it together. Also raises UsageError where Horovod is missing."""
        self.check(setup)
        device = next(setup.model.parameters()).device
        with on_device(device):
            hvd, number = WORLD.enter(Settings.of(setup.options))
        optimizer = setup.optimizer
        assert optimizer is not None
        if device.type == "cuda" and not (hvd.nccl_built() or hvd.cuda_built()):
            WORLD.leave(number)
            raise UsageError(
                "this Horovod was built for CPUs, and the model is on a GPU",
                hint=f"{INSTALL} builds one for GPUs where it finds nvcc; or leave the mode out",
            )
        # As users pass them. Horovod sorts them by name and uses shared tensors once.
        prefix = f"{number}." if number else ""
        named = [(prefix + plain_name(name), parameter) for name, parameter in setup.model.named_parameters()]
        factor = float(hvd.size() ** number)
        try:
            wrapper = hvd.DistributedOptimizer(optimizer, named_parameters=named, gradient_predivide_factor=factor)
        except ValueError as error:
            WORLD.leave(number)
            raise UsageError(f"Horovod refuses this model: {error}") from None
        handle = HorovodHandle(setup.model, wrapper, trainable(setup.model).values(), number)
        before = functools.partial(_before_step, handle, TrainableSet(setup.model, optimizer))
        handle.at_detach(optimizer.register_step_pre_hook(before).remove)
        allocate_momentum(optimizer)
        return handle

    def check(self, setup: AttachConfig) -> None:
        """Raise UsageError, on every rank alike, for requests that Horovod cannot serve."""
        if not dist.is_initialized():
            raise UsageError(
                "the ranks meet in torch.distributed before they do in Horovod, and no process group is initialised",
                hint="start the script with torchrun",
            )
        if setup.optimizer is None:
            raise UsageError("Horovod wraps an optimizer, and none was given", hint="attach(model, optimizer, ...)")
        takes_hooks(setup.optimizer)
        refuse_ignored(setup.model, "Horovod")
        if setup.wait != "step":
            raise UsageError("Horovod averages gradients in optimizer.step()", hint='attach(..., wait="step")')
        if setup.compress is not None:
            raise UsageError(f"Horovod compresses gradients to fp16 and not to {setup.compress}")
        if setup.group is not None and dist.get_world_size(setup.group) != dist.get_world_size():
            raise UsageError("Horovod averages over all ranks, and the process group has some of them")
        for name, parameter in trainable(setup.model).items():
            if parameter.dtype not in SENT_BY_HOROVOD:
                dtype = str(parameter.dtype).removeprefix("torch.")
                raise UsageError(f"Horovod sends no {dtype}, which parameter {name!r} is")
            if not parameter.is_contiguous():
                raise UsageError(
                    f"Horovod sends only contiguous memory, and parameter {name!r} has another layout",
                    hint="is the model in channels-last?",
                )


def allocate_momentum(optimizer: Optimizer) -> None:
    """Give SGD zeros as the momentum of parameters that have none yet, where that does not change its first step.

    The first step sets the momentum to the gradient g. From zeros it computes momentum · 0 + (1 - dampening) · g, which
    equals g without dampening. Other optimizers are left alone, and so are subclasses of SGD.
    """
    if type(optimizer) is not SGD:
        return
    for group in optimizer.param_groups:
        if not group["momentum"] or group["dampening"]:
            continue
        for parameter in group["params"]:
            if parameter.requires_grad and not optimizer.state.get(parameter):
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _before_step(
    handle: HorovodHandle, trained: TrainableSet, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Wait for the gradients before the step, or after each backward pass of the step's closure."""

    def wait() -> None:
        trained.check()
        handle.synchronize()

    if closure_of(args, kwargs) is not None:
        return with_wait(args, kwargs, wait)
    wait()
    return None
