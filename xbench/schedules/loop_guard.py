"""Checks of a training loop while a schedule is attached: before forward passes, in backward, and at optimizers' steps.

A schedule sees gradients through hooks on the parameters that it serves. Code that trains past these hooks would train
each rank alone: a layer that was added later, gradients of `torch.autograd.grad`, a step inside the backward pass,
another wrapper around the model. So the guard also looks at every forward pass of the model with gradients, and at
every step of a torch optimizer that holds a parameter of the model, whoever made that optimizer.

Code that torch.compile traces is not looked at: hooks of a compiled forward pass return at once.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from xbench.errors import AlikeError, UsageError
from xbench.schedules.checks import TrainableSet
from xbench.schedules.hooks import Arguments, closure_of, uncopied, untraced, with_wait

_GUARDS: weakref.WeakSet[LoopGuard] = weakref.WeakSet()
_STEP_HOOKS: list[RemovableHandle] = []
"""Hooks of every optimizer's step, while there are guards."""


class _LastStep(NamedTuple):
    """State at the last step of an optimizer: backward passes so far, and the first gradient with its version."""

    passes: int
    gradient: weakref.ref[Tensor] | None = None
    version: int = 0

    @classmethod
    def with_gradient(cls, passes: int, first: Tensor | None) -> _LastStep:
        """The state with this gradient as it is now."""
        return cls(passes) if first is None else cls(passes, weakref.ref(first), first._version)

    def has(self, first: Tensor) -> bool:
        """True if the gradient is the same as then, and has not changed."""
        return self.gradient is not None and self.gradient() is first and self.version == first._version


class LoopGuard:
    """Guard of the loop that trains `model`, until `remove`. `parameters` are those that the schedule serves.

    `averages`: gradients are averaged with other ranks. `wrapper`: the DistributedDataParallel that the schedule itself
    has put around the model. `check_ended` raises while a backward pass is under way.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | None,
        parameters: Mapping[str, Parameter],
        *,
        averages: bool,
        wrapper: Module | None = None,
        check_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.passes = 0
        """A number that grows with every backward pass that hooks see."""
        self.trained = TrainableSet(model, optimizer)
        self._model = model
        self._parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._averages = averages
        self._wrapper = wrapper
        self._check_ended = check_ended
        self._kinds = [(parameter.dtype, parameter.device) for parameter in parameters.values()]
        self._addresses = _addresses(parameters)
        self._nodes = [] if wrapper is None else [_node_of(parameter) for parameter in parameters.values()]
        """The AccumulateGrad nodes, on which DDP has its hooks."""
        self._steps: weakref.WeakKeyDictionary[Optimizer, _LastStep] = weakref.WeakKeyDictionary()
        self._probes: dict[int, RemovableHandle] = {}
        self._excused = _LastStep(0)
        """The gradient of the last backward pass that the one hook may have missed. zero1 checks a step twice."""
        self._handles = [uncopied(model.register_forward_pre_hook(self._before_forward))]
        for name, parameter in parameters.items():
            if parameter._post_accumulate_grad_hooks:
                self._handles += _refuse_removal(name, parameter)
        if not _STEP_HOOKS:
            _STEP_HOOKS.append(register_optimizer_step_pre_hook(untraced(_before_steps)))
            _STEP_HOOKS.append(register_optimizer_step_post_hook(untraced(_after_steps)))
        _GUARDS.add(self)

    def probe(self) -> None:
        """See backward passes through a hook on each parameter, for a schedule without hooks of its own.

        Hooks cost time, so only the one that is called first stays. A step before which it was not called puts the
        others on again, and the step after it is refused if none of them was called.
        """

        def seen(parameter: Tensor) -> None:
            if torch.compiler.is_compiling():
                return
            self.passes += 1
            for key in [key for key in self._probes if key != id(parameter)]:
                self._probes.pop(key).remove()

        for parameter in self._trainable() if self._averages else ():
            if id(parameter) not in self._probes:
                self._probes[id(parameter)] = parameter.register_post_accumulate_grad_hook(seen)  # type: ignore[no-untyped-call]

    def _trainable(self) -> list[Parameter]:
        return [parameter for parameter in self._parameters.values() if parameter.requires_grad]

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in (*self._handles, *self._probes.values()):
            handle.remove()
        _GUARDS.discard(self)
        while _STEP_HOOKS and not _GUARDS:
            _STEP_HOOKS.pop().remove()

    def _before_forward(self, *_: Any) -> None:
        """Raise UsageError for a forward pass whose gradients the schedule would not average.

        A pass that torch.compile traces is not looked at.
        """
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        self.trained.check()
        active = DistributedDataParallel._active_ddp_module
        other = active if active is not self._wrapper else None
        if other is not None and any(module is self._model for module in other.modules()):
            raise AlikeError(
                "the model is wrapped in DistributedDataParallel, which averages the gradients that the attached "
                "schedule averages",
                hint="call handle.model itself, or attach no schedule where a trainer wraps the model",
            )
        if active is not None and active is self._wrapper and active.require_backward_grad_sync:
            self._refuse_frozen(active)
        addresses = _addresses(self._parameters)
        if addresses != self._addresses:  # a conversion makes other memory
            self._refuse_converted()
            self._addresses = addresses

    def _refuse_frozen(self, wrapper: DistributedDataParallel) -> None:
        """Raise AlikeError for a parameter whose gradient DDP would wait for, with the rest of its bucket.

        A wholly frozen model has no gradients to wait for.
        """
        frozen = [name for name, parameter in self._parameters.items() if not parameter.requires_grad]
        if frozen and len(frozen) < len(self._parameters) and not wrapper.find_unused_parameters:
            raise AlikeError(
                f"parameter {frozen[0]!r} was frozen after the schedule was attached, and DDP waits for its gradient",
                hint="detach the schedule, freeze parameters on all ranks, and attach it again, or attach it with "
                "unused_parameters=True",
            )

    def _refuse_converted(self) -> None:
        """Raise AlikeError for a parameter of another kind, and for one that was converted and back under DDP."""
        for (name, parameter), (dtype, device) in zip(self._parameters.items(), self._kinds, strict=True):
            if (parameter.dtype, parameter.device) != (dtype, device):
                raise AlikeError(
                    f"parameter {name!r} was {dtype} on {device} when the schedule was attached, and now it is "
                    f"{parameter.dtype} on {parameter.device}",
                    hint="detach the schedule, convert or move the model on all ranks, and attach it again",
                )
        for (name, parameter), node in zip(self._parameters.items(), self._nodes, strict=False):
            if parameter.requires_grad and _node_of(parameter) is not node:
                raise AlikeError(
                    f"parameter {name!r} was converted and converted back after the schedule was attached, which has "
                    "removed DDP's hook",
                    hint="detach the schedule before, and attach it again",
                )

    def before_step(self, optimizer: Optimizer) -> None:
        """Raise UsageError before a step on gradients that are not averaged."""
        if not self.trained.concerns(optimizer):
            return
        if torch._C._current_graph_task_id() >= 0 and self._averages:
            self._refuse_step_in_backward(optimizer)
        self._check_ended()
        self.trained.check()

    def check_gradients(self, optimizer: Optimizer) -> None:
        """Raise UsageError before an update by gradients that no backward pass has computed."""
        last = self._steps.get(optimizer, _LastStep(0))
        if self._averages and self.passes == last.passes and self.trained.concerns(optimizer):
            self._refuse_unseen(optimizer, last)

    def _refuse_step_in_backward(self, optimizer: Optimizer) -> None:
        for parameter in _held(optimizer):
            if parameter.grad is not None and (name := self._names.get(id(parameter))) is not None:
                raise UsageError(
                    f"an optimizer steps inside the backward pass, in a hook of parameter {name!r} or of another one, "
                    "on gradients that are not averaged yet",
                    hint="step after the backward pass",
                )

    def _refuse_unseen(self, optimizer: Optimizer, last: _LastStep) -> None:
        """Raise UsageError for gradients that no backward pass has brought since the last step.

        Those of the last step may be used again, and zeros may stand in the place of gradients.
        """
        served = [p for p in _held(optimizer) if p.grad is not None and id(p) in self._names]
        if not served:
            return
        first = served[0].grad
        assert first is not None
        if last.has(first) or self._excused.has(first):
            return
        if self._probes and any(id(parameter) not in self._probes for parameter in self._trainable()):
            self.probe()
            self._excused = _LastStep.with_gradient(last.passes, first)
            return
        for parameter in served:
            if parameter.grad is not None and bool(parameter.grad.any()):
                raise UsageError(
                    f"parameter {self._names[id(parameter)]!r} has a gradient, and no backward pass since the last "
                    "step has computed it, so it is not averaged over ranks",
                    hint="compute gradients by loss.backward() while the schedule is attached, and not by "
                    "torch.autograd.grad",
                )

    def after_step(self, optimizer: Optimizer) -> None:
        """Note what this step has used."""
        if self._averages and self.trained.concerns(optimizer):
            self._note(optimizer, self.passes)

    def completed(self, optimizer: Optimizer) -> None:
        """Note the gradients of the last step once more, where averages have taken the place of their stand-ins."""
        if optimizer in self._steps:
            self._note(optimizer, self._steps[optimizer].passes)

    def _note(self, optimizer: Optimizer, passes: int) -> None:
        served = (p.grad for p in _held(optimizer) if p.grad is not None and id(p) in self._names)
        self._steps[optimizer] = _LastStep.with_gradient(passes, next(served, None))


def _before_steps(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """Check the step. A closure computes the gradients inside the step, so they are looked at after it."""
    guards = list(_GUARDS)
    for guard in guards:
        guard.before_step(optimizer)

    def check_gradients() -> None:
        for guard in guards:
            guard.check_gradients(optimizer)

    if closure_of(args, kwargs) is not None:
        return with_wait(args, kwargs, check_gradients)
    check_gradients()
    return None


def _after_steps(optimizer: Optimizer, *_: Any) -> None:
    for guard in list(_GUARDS):
        guard.after_step(optimizer)


def has_step_hooks_of_others() -> bool:
    """True if there are hooks of every optimizer's step beside those of guards."""
    own = {handle.id for handle in _STEP_HOOKS}
    return any(number not in own for number in (*_global_optimizer_pre_hooks, *_global_optimizer_post_hooks))


def refuse_node_hooks(parameters: Mapping[str, Parameter]) -> None:
    """Raise UsageError for a parameter whose AccumulateGrad node has a hook.

    It runs after every hook of the parameter itself, and would use a gradient that is being sent.
    """
    for name, parameter in parameters.items():
        node = _node_of(parameter)
        own = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        for hooks in gc.get_referents(node):
            if isinstance(hooks, dict) and hooks and not any(hooks is one for one in own):
                raise UsageError(
                    f"the AccumulateGrad node of parameter {name!r} has a hook, which would use the gradient while "
                    "that is sent",
                    hint="register it by parameter.register_post_accumulate_grad_hook, before the schedule is attached",
                )


def _held(optimizer: Optimizer) -> chain[Parameter]:
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def _node_of(parameter: Parameter) -> Any:
    """The AccumulateGrad node. Torch makes another one when the parameter's dtype or device changes."""
    with torch.enable_grad():
        grad_fn: Any = parameter.expand_as(parameter).grad_fn
    return grad_fn.next_functions[0][0]


def _addresses(parameters: Mapping[str, Parameter]) -> list[int]:
    with torch._C.DisableTorchFunction():  # no use of a parameter, whoever looks at uses
        return list(map(Tensor.data_ptr, parameters.values()))


def _refuse_removal(name: str, parameter: Parameter) -> list[RemovableHandle]:
    """Hooks before and after those of a parameter, which raise UsageError if one between removes the gradient."""
    there = False

    def before(_: Tensor) -> None:
        nonlocal there
        there = parameter.grad is not None

    def after(_: Tensor) -> None:
        if there and parameter.grad is None:
            raise UsageError(
                f"a hook of parameter {name!r} removes its gradient in the backward pass, before it is averaged",
                hint="use gradients after the backward pass, and freeze parameters by requires_grad_(False)",
            )

    hooks: Any = parameter._post_accumulate_grad_hooks
    earlier = dict(hooks)
    hooks.clear()
    register: Any = parameter.register_post_accumulate_grad_hook
    first = register(before)
    hooks.update(earlier)  # torch calls hooks in the order of insertion
    return [first, register(after)]
