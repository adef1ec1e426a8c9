"""zero1: DistributedDataParallel with torch's ZeroRedundancyOptimizer, as its users run them.

Rajbhandari et al., ZeRO (SC 2020, arXiv 1910.02054), stage 1. Parameters and gradients are whole on every rank, and DDP
averages as always. Each parameter belongs to one rank, so that the ranks have about equally many elements. That rank
alone updates it and keeps its optimizer state. After the updates each rank broadcasts its parameters, one by one.

The promise is memory: a rank keeps 1/N of the optimizer's state. The price is time: a step ends with broadcasts of all
parameters, which nothing overlaps. Whole tensors are dealt out, so a rank with a large tensor keeps more than 1/N.

The user's optimizer keeps its groups, its learning rates and its state. Only its `step` is another while the schedule
is attached: ZeroRedundancyOptimizer's, which calls the user's with this rank's parameters in the groups (`OwnPart`).
`Handle.finish` and detaching gather the state of all parameters on all ranks. Between, it cannot be saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from xbench.equal_ranks import on_device
from xbench.errors import AlikeError, UsageError
from xbench.schedules.base import AttachConfig, Handle, guard_copies
from xbench.schedules.checks import group_ids, refuse_joint_updates
from xbench.schedules.ddp import Ddp, DdpHandle
from xbench.schedules.engine import Watch
from xbench.schedules.groups import is_emulated
from xbench.schedules.served_parameters import refuse_ignored
from xbench.schedules.torch_calls import BROADCASTS, watch_calls
from xbench.schedules.twin import replaced


class OwnPart:
    """The user's optimizer over this rank's parameters alone, as ZeroRedundancyOptimizer calls it."""

    def __init__(self, param_groups: list[dict[str, Any]], optimizer: Optimizer) -> None:
        self.param_groups = param_groups
        self._optimizer = optimizer

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step without the optimizer's hooks, which have run around ZeroRedundancyOptimizer's step.

        The closure sees all groups, and so do hooks in a step that is called in this one.
        """
        optimizer, every = self._optimizer, self._optimizer.param_groups

        def with_all(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                with _having(optimizer, param_groups=every):
                    return call(*args, **kwargs)

            return called

        step: Any = type(optimizer).step
        with _having(
            optimizer,
            param_groups=self.param_groups,
            _optimizer_step_pre_hooks=_each(optimizer._optimizer_step_pre_hooks, with_all),
            _optimizer_step_post_hooks=_each(optimizer._optimizer_step_post_hooks, with_all),
        ):
            return getattr(step, "__wrapped__", step)(optimizer, *(() if closure is None else (with_all(closure),)))


def _each(hooks: Mapping[int, Any], changed: Callable[[Any], Any]) -> dict[int, Any]:
    return {key: changed(hook) for key, hook in hooks.items()}


@contextmanager
def _having(owner: Any, **attributes: Any) -> Iterator[None]:
    """Give an object these attributes within the context."""
    before = {name: getattr(owner, name) for name in attributes}
    vars(owner).update(attributes)
    try:
        yield
    finally:
        vars(owner).update(before)


class Zero1Handle(DdpHandle):
    """DDP's wrapper, and an optimizer whose step is that of ZeroRedundancyOptimizer."""

    meets_at_detach = True

    def __init__(self, wrapper: DistributedDataParallel, setup: AttachConfig, zero: Any) -> None:
        super().__init__(wrapper, setup.compress)
        assert isinstance(setup.optimizer, Optimizer)
        self._optimizer = optimizer = setup.optimizer
        self._group = setup.group
        self._zero: Any = zero
        self._groups = group_ids(optimizer)
        self._parameters: list[Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
        self._own = {id(p) for group in zero.optim.param_groups for p in group["params"]}
        self._is_whole = True
        """True if every rank's optimizer has the present state of every parameter."""

        # A bound method, because a learning-rate scheduler wraps `step.__func__`. The decorator runs the user's hooks.
        def step(_: Optimizer, closure: Any = None) -> Any:
            return self._step(closure)

        hooked: Any = Optimizer.profile_hook_step(step)
        hooked._wrapped_by_lr_sched = True  # a learning-rate scheduler is told of steps by `_step`
        self.at_detach(replaced(optimizer, "step", MethodType(hooked, optimizer)))

        # A GradScaler would leave unscaling and skipping to this optimizer, and another one steps.
        fused = vars(optimizer).pop("_step_supports_amp_scaling", None)
        if fused is not None:
            self.at_detach(lambda: vars(optimizer).update(_step_supports_amp_scaling=fused))
        self.at_detach(guard_copies(optimizer, self._check_whole))
        self.at_detach(optimizer.register_state_dict_pre_hook(lambda _: self._check_whole()).remove)
        self.at_detach(optimizer.register_load_state_dict_post_hook(lambda _: self._loaded()).remove)

    def _loaded(self) -> None:
        self._is_whole = True

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise UsageError(
                "the optimizer's state is saved, and zero1 has divided it among the ranks since the last step",
                hint="call handle.finish() on all ranks before",
            )

    def _step(self, closure: Any) -> Any:
        """Step ZeroRedundancyOptimizer over the optimizer's groups and state of now.

        `finish` and loading a state dict bring the state of every parameter to every rank.
        """
        optimizer, zero = self._optimizer, self._zero
        if group_ids(optimizer) != self._groups:
            raise AlikeError(
                "parameters were added to the optimizer's groups, or moved, since zero1 divided them among the ranks",
                hint="detach the schedule, change the groups on all ranks, and attach it again",
            )
        optimizer._opt_called = True  # type: ignore[attr-defined]
        self._is_whole = False
        for parameter in self._parameters:
            if id(parameter) not in self._own:
                optimizer.state.pop(parameter, None)
        zero.param_groups = optimizer.param_groups
        return zero.step(closure)

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`. On a GPU the broadcasts of updated parameters are not watched: its streams wait."""
        if self._parameters[0].device.type == "cpu":
            self.at_detach(watch_calls(watch, BROADCASTS))
        return super().watch(watch)

    def finish(self) -> None:
        """See `Handle.finish`: every rank gets the optimizer state of every parameter. Collective."""
        if self._zero is None:
            return
        state = self._optimizer.state
        mine = {
            place: {key: _described(value) for key, value in state[parameter].items()}
            for place, parameter in enumerate(self._parameters)
            if id(parameter) in self._own and parameter in state
        }
        everyone: list[Any] = [None] * dist.get_world_size(self._group)
        with on_device(self._parameters[0].device):
            dist.all_gather_object(everyone, mine, group=self._group)
        for rank, theirs in enumerate(everyone):
            for place, described in theirs.items():
                self._take(self._parameters[place], rank, described)
        self._is_whole = True

    def _take(self, parameter: Parameter, rank: int, described: dict[str, Any]) -> None:
        """Receive one parameter's state from the rank that has it, or send it."""
        held = self._optimizer.state[parameter]
        for key, value in described.items():
            if not isinstance(value, _Sent):
                held[key] = value
                continue
            # In one layout on all ranks, because a broadcast sends memory as it lies.
            own = id(parameter) in self._own
            empty = torch.empty(value.shape, dtype=value.dtype, device=parameter.device)
            sent = held[key].contiguous() if own else empty
            dist.broadcast(sent, group=self._group, group_src=rank)
            if not own:
                fits = value.shape == tuple(parameter.shape)  # and so has the parameter's layout
                held[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(sent) if fits else sent

    def detach(self) -> None:
        """See `Handle.detach`."""
        try:
            super().detach()
        finally:
            self._zero = None


class _Sent:
    """Shape and dtype of a tensor that is broadcast."""

    def __init__(self, value: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(value.shape), value.dtype


def _described(value: Any) -> Any:
    """A number or a scalar of the host as it is, and what stands for another tensor."""
    return _Sent(value) if torch.is_tensor(value) and (value.dim() or value.device.type != "cpu") else value


class Zero1(Ddp):
    """DDP, and the optimizer's state divided among the ranks."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Ddp.attach`. Also raises UsageError for an optimizer that ZeroRedundancyOptimizer does not take."""
        optimizer = setup.optimizer
        if not dist.is_initialized():
            raise UsageError("zero1 needs an initialised process group", hint="start the script with torchrun")
        if not isinstance(optimizer, Optimizer):
            raise UsageError("zero1 divides the state of a torch optimizer, and none was given")
        refuse_joint_updates(optimizer, "zero1")
        refuse_ignored(setup.model, "zero1")
        if is_emulated(setup.group):
            raise UsageError("zero1 broadcasts over real links, and these are emulated")
        if not getattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched", "step" not in vars(optimizer)):
            raise UsageError("zero1 replaces optimizer.step, and other code has replaced it already")
        if not type(optimizer).__module__.startswith("torch.optim."):
            warnings.warn(
                f"zero1 steps {type(optimizer).__name__} on each rank for some parameters alone, which trains another "
                "network if an update uses other parameters or their gradients",
                stacklevel=4,
            )
        own: Any = partial(OwnPart, optimizer=optimizer)
        try:
            # The groups themselves, so that a new learning rate holds for both.
            self._zero = ZeroRedundancyOptimizer(optimizer.param_groups, own, process_group=setup.group)
        except (TypeError, ValueError) as error:
            said = " ".join(str(error).split())
            raise UsageError(f"ZeroRedundancyOptimizer refuses this optimizer: {said}") from None
        return super().attach(setup)

    def handle(self, wrapper: DistributedDataParallel, setup: AttachConfig) -> Handle:
        """See `Ddp.handle`."""
        return Zero1Handle(wrapper, setup, self._zero)
