"""A parameter of a sharded mode in its two forms: whole on the plain model, and in shards on the model that trains.

Exactly one form has the values. The other one has another class meanwhile (`WithoutValues`): it says what it is, and
every other use of it raises UsageError. Code that reaches the plain parameter's memory without torch's Python functions
finds NaN.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Replicate as Copied
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module, Parameter
from torch.utils.hooks import RemovableHandle

from xbench.errors import AlikeError, UsageError
from xbench.schedules.in_flight import DESCRIPTION
from xbench.torch_compile import plain_name


class WithoutValues:
    """The class of a tensor while its values are elsewhere. Any use of them raises UsageError with SAID and HINT."""

    __slots__ = ()
    SAID: ClassVar[str]
    HINT: ClassVar[str]

    @classmethod
    def refuse(cls) -> NoReturn:
        """Raise the UsageError."""
        raise UsageError(cls.SAID, hint=cls.HINT)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in DESCRIPTION:
            cls.refuse()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    def __repr__(self) -> str:
        return f"<{self.SAID}>"


class ParameterInShards(WithoutValues, Parameter):  # type: ignore[misc]
    """A parameter of the plain model whose values are in shards."""

    SAID = "parameters or gradients of the plain model are used, and the schedule has them in shards"
    HINT = (
        "take those of handle.model, as in clip_grad_norm_(handle.model.parameters(), 1.0), or call handle.finish() on "
        "all ranks before"
    )


class ShardOfWhole(WithoutValues, DTensor):  # type: ignore[misc]
    """A shard whose values are on the plain model."""

    SAID = "parameters or gradients of handle.model are used, and handle.finish() has given them to the plain model"
    HINT = "call handle.finish() between a step and the next forward pass, and use the plain model until that pass"


class ShardOfState(DTensor):
    """A shard in a state dict of the optimizer. It is used as any DTensor, but a file would have one rank's part."""

    @classmethod
    def of(cls, value: DTensor) -> ShardOfState:
        """The same memory."""
        shard: Any = value.detach()
        shard.__class__ = cls
        return shard  # type: ignore[no-any-return]

    @staticmethod
    def refuse() -> NoReturn:
        """Raise the UsageError."""
        raise UsageError(
            "the optimizer's state is saved, and the schedule has it in shards",
            hint="save it after handle.finish() on all ranks, or through get_state_dict of "
            "torch.distributed.checkpoint with handle.model",
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.refuse()

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardOfState:
        copied: Any = self.clone()
        return self.of(copied)


class WholeValues:
    """The memory of a whole parameter. It is free while `taken`, unless other code has a view of it.

    Such a view then shows NaN, and the values again afterwards.
    """

    def __init__(self, parameter: Parameter) -> None:
        storage = parameter.untyped_storage()
        self._parameter, self._class = parameter, type(parameter)
        self._layout = parameter.storage_offset(), parameter.size(), parameter.stride()
        self._storage = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        other_processes = storage.device.type == "cpu" and storage.is_shared()
        self._kept = storage if other_processes else None
        self._nothing = torch.full(
            (), torch.nan if parameter.is_floating_point() or parameter.is_complex() else 0,
            dtype=parameter.dtype, device=parameter.device,
        )  # fmt: skip
        parameter.data = self._nothing.expand(parameter.size())
        parameter.__class__ = ParameterInShards

    def spoil_views(self) -> None:
        """Let views that other code has show NaN."""
        seen = self._seen()
        if seen is not None:
            seen.copy_(self._nothing)

    def give_back(self) -> None:
        """Let the parameter have memory again, for values that are written next."""
        seen, (_, size, stride) = self._seen(), self._layout
        self._parameter.__class__ = self._class
        nothing = self._nothing
        self._parameter.data = (
            torch.empty_strided(size, stride, dtype=nothing.dtype, device=nothing.device) if seen is None else seen
        )

    def _seen(self) -> Tensor | None:
        """The values, if other code has a view of them."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        return None if storage is None else torch.empty_like(self._nothing).set_(storage, *self._layout)


class ShardPair:
    """Both forms of one parameter. `fsdp` is torch's object that gathers and frees the shard."""

    def __init__(self, name: str, whole: Parameter, shard: Any, fsdp: Any) -> None:
        self.name, self.whole, self.shard = name, whole, shard
        self._fsdp = fsdp
        self._class = type(shard)
        self._values: WholeValues | None = None

    def check(self) -> None:
        """Raise AlikeError if the parameter was changed in a way that only one of its forms has."""
        name, whole, shard = self.name, self.whole, self.shard
        with torch._C.DisableTorchFunctionSubclass():
            if whole.requires_grad != shard.requires_grad:
                what = "was frozen or unfrozen"
            elif (whole.dtype, whole.device, whole.shape) != (shard.dtype, shard.device, shard.shape):
                what = "was converted"
            elif has_hooks(whole) or shard._backward_hooks:
                what = "got a hook, which would not be called,"
            else:
                return
        raise AlikeError(
            f"parameter {plain_name(name)!r} {what} after the schedule was attached, and only one of model and "
            "handle.model has the change",
            hint="detach the schedule, change the model on all ranks, and attach it again",
        )

    def refuse_passes(self) -> RemovableHandle:
        """Refuse backward passes that reach the whole parameter, whose gradient would not be averaged, from now on."""

        def refuse(_: Tensor) -> None:
            raise UsageError(
                f"a backward pass through the plain model reached parameter {plain_name(self.name)!r}, and the "
                "schedule averages only gradients of passes through handle.model",
                hint="call handle.model in training",
            )

        refuse.only_observes = True  # type: ignore[attr-defined]
        with torch._C.DisableTorchFunctionSubclass():
            return self.whole.register_post_accumulate_grad_hook(refuse)  # type: ignore[no-any-return, no-untyped-call]

    def refuse_lost_gradient(self) -> None:
        """Raise AlikeError if a backward pass has left a gradient that is not the whole parameter's."""
        if self._unsent() is not None:
            raise AlikeError(
                "handle.finish() between a forward pass and its backward pass, or before the step, loses the step's "
                "gradients",
                hint="call it between a step and the next forward pass",
            )

    def to_shard(self) -> None:
        """Move the whole parameter's values and gradient into this rank's shard. No rank waits."""
        whole, shard = self.whole, self.shard
        shard.__class__ = self._class
        shard.to_local().copy_(part_of(whole, shard).to_local())
        shard.grad = None if whole.grad is None else part_of(whole.grad, shard)
        whole.grad = None

    def free(self) -> None:
        """Free the whole parameter's values."""
        self._values = WholeValues(self.whole)

    def spoil_views(self) -> None:
        """See `WholeValues.spoil_views`, after all parameters are freed: some may lie in the same memory."""
        assert self._values is not None
        self._values.spoil_views()

    def to_whole(self) -> None:
        """Gather values and gradient on the whole parameter. Collective."""
        whole, shard = self.whole, self.shard
        values, gradient = shard.full_tensor(), None if shard.grad is None else shard.grad.full_tensor()
        assert self._values is not None
        self._values.give_back()
        self._values = None
        whole.copy_(values)
        if gradient is not None and shard.dtype != whole.dtype:  # handle.model was converted
            gradient = gradient.to(whole.dtype)
        whole.grad, shard.grad = gradient, None
        shard.__class__ = ShardOfWhole

    @property
    def forms(self) -> tuple[Any, Any, Any]:
        """The whole parameter, the shard, and the gathered shard, which is None before the first forward pass."""
        return self.whole, self.shard, self._gathered()

    def zero_grad(self, set_to_none: bool) -> None:
        """Clear the gradient in every form, also what `no_sync` has accumulated."""
        forms = (self.whole if self._values is None else self.shard, self._gathered())
        for form in forms:
            if form is None or form.grad is None:
                continue
            if set_to_none:
                form.grad = None
            else:
                form.grad.zero_()
        if self._unsent() is not None and set_to_none:
            self._fsdp.unsharded_accumulated_grad = None  # torch 2.11 has it beside the gathered parameter

    def _gathered(self) -> Any:
        return getattr(self._fsdp, "_unsharded_param", None)

    def _unsent(self) -> Tensor | None:
        """The gradient that passes under `no_sync` have accumulated on this rank."""
        found: Tensor | None = getattr(self._fsdp, "unsharded_accumulated_grad", None)
        return found


def pairs_of(plain: Module, twin: Module) -> list[ShardPair]:
    """The parameters of a model and of its twin, which `fully_shard` has wrapped."""
    states: list[Any] = [module._get_fsdp_state() for module in twin.modules() if isinstance(module, FSDPModule)]
    groups = [group for state in states for group in _groups_of(state)]
    fsdp = {id(one.sharded_param): one for group in groups for one in group.fsdp_params}
    shards = dict(twin.named_parameters())
    return [
        ShardPair(name, whole, shards[name], fsdp.get(id(shards[name]))) for name, whole in plain.named_parameters()
    ]


def _groups_of(state: Any) -> list[Any]:
    """The groups of parameters of a wrapped module, which older versions of torch have one of."""
    found: list[Any] | None = getattr(state, "_fsdp_param_groups", None)
    return [one for one in (state._fsdp_param_group,) if one is not None] if found is None else found


def has_hooks(parameter: Any) -> bool:
    """True if a hook may change the parameter's gradient: any but our own."""
    every = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    return any(not getattr(hook, "only_observes", False) for hooks in every if hooks for hook in hooks.values())


def part_of(whole: Tensor, shard: Any) -> Any:
    """This rank's part of a tensor, as `shard` is cut: a DTensor."""
    mesh, placements = shard.device_mesh, shard.placements
    copied = DTensor.from_local(whole.detach(), mesh, [Copied()] * mesh.ndim, run_check=False)
    cut = copied.redistribute(placements=placements)
    return DTensor.from_local(
        cut.to_local().clone(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def whole_of(value: Any) -> Tensor:
    """The whole tensor of a DTensor, which is collective, or the tensor itself."""
    found: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return found
