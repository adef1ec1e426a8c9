"""Checks of a model and of a plan: the parameters that a schedule serves, and buckets that cover them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch.nn import Module, Parameter
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import LBFGS, Optimizer

from xbench.errors import AlikeError, SpecError, UsageError, nearest
from xbench.schedules.bucket import grad_dtype
from xbench.torch_compile import plain_name

BUCKET_BYTES = 4 * 1024 * 1024
"""Size of a bucket without a plan."""


def group_ids(optimizer: Optimizer | None) -> list[list[int]]:
    """Return the ids of the parameters in each group of the optimizer; empty for an object without groups."""
    groups = getattr(optimizer, "param_groups", None) or ()
    return [list(map(id, group["params"])) for group in groups]


class _Registrations:
    """The number of parameters and modules that any module of this process has been given since `counted()`."""

    def __init__(self) -> None:
        self.number = 0
        self._hooked = False

    def counted(self) -> int:
        """The number; the first call begins to count."""
        if not self._hooked:
            register_module_parameter_registration_hook(self._count)
            register_module_module_registration_hook(self._count)
            self._hooked = True
        return self.number

    def _count(self, *_: object) -> None:
        self.number += 1


_REGISTRATIONS = _Registrations()


class TrainableSet:
    """The parameters that were frozen at attach, and those that the model and the optimizer's groups had.

    A parameter that is unfrozen or added later would be trained by each rank alone, because no hook sends its gradient.
    """

    def __init__(self, model: Module, optimizer: Optimizer | None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._frozen = [(plain_name(name), p) for name, p in model.named_parameters() if not p.requires_grad]
        self._served = {id(p) for p in model.parameters() if p.requires_grad}
        self._held = group_ids(optimizer)
        self._registered = self._known_at = _REGISTRATIONS.counted()
        self._known = {id(parameter) for parameter in model.parameters()}

    def concerns(self, optimizer: Optimizer) -> bool:
        """True if the optimizer holds a parameter that the model has, or had at attach."""
        if self._known_at != _REGISTRATIONS.number:
            self._known |= {id(parameter) for parameter in self._model.parameters()}
            self._known_at = _REGISTRATIONS.number
        return any(id(parameter) in self._known for group in optimizer.param_groups for parameter in group["params"])

    def check(self) -> None:
        """Raise AlikeError for a parameter of the model that has become trainable since.

        All parameters are looked at only after a module was given a parameter or a module, or the groups have changed.
        """
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                self._refuse(name)
        held, registered = group_ids(self._optimizer), _REGISTRATIONS.number
        if held != self._held or registered != self._registered:
            found = list(self._model.named_parameters())
            if not all(isinstance(parameter, Parameter) for _, parameter in found):
                return  # inside torch.func.functional_call, which lends the model other tensors
            for name, parameter in found:
                if parameter.requires_grad and id(parameter) not in self._served:
                    self._refuse(plain_name(name))
            if held != self._held and isinstance(self._optimizer, Optimizer):
                warn_of_others(self._model, self._optimizer)
            self._held, self._registered = held, registered

    def _refuse(self, name: str) -> None:
        raise AlikeError(
            f"parameter {name!r} has become trainable since the schedule was attached, and its gradients are not sent",
            hint="detach the schedule, unfreeze or add parameters on all ranks, and attach it again",
        )


def warn_of_others(model: Module, optimizer: Optimizer, stacklevel: int = 2) -> None:
    """Warn of trainable parameters in the optimizer that the model does not have, where ranks average gradients."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    known = set(map(id, model.parameters()))
    held = (parameter for group in optimizer.param_groups for parameter in group["params"])
    others = [parameter for parameter in held if parameter.requires_grad and id(parameter) not in known]
    if others:
        warnings.warn(
            f"the optimizer holds {len(others)} trainable parameter(s) that the attached model has not, the first "
            f"of shape {tuple(others[0].shape)}: the schedule does not average their gradients",
            stacklevel=stacklevel + 1,
        )


def refuse_joint_updates(optimizer: Optimizer, name: str) -> None:
    """Raise UsageError for an optimizer that updates all parameters together, where `name` divides them."""
    if isinstance(optimizer, LBFGS):
        raise UsageError(f"{name} divides parameters among the ranks, and LBFGS updates all of them together")


def refuse_wrapped(model: Module) -> None:
    """Raise UsageError for a model whose gradients other code already sends: DDP, FSDP, or sharded parameters."""
    for name, module in model.named_modules():
        for path, kind in _WRAPPERS:
            if _is(module, path, kind):
                what = f"module {name!r}" if name else "the model"
                raise UsageError(
                    f"{what} is wrapped in {kind}, which sends gradients itself",
                    hint="hand in the plain module, before it is wrapped",
                )
    for name, parameter in model.named_parameters():
        if _is(parameter, "torch.distributed.tensor", "DTensor"):
            raise UsageError(
                f"parameter {plain_name(name)!r} is a DTensor, and whoever sharded it sends its gradients",
                hint="hand in the plain module, before fully_shard or another sharding",
            )


_WRAPPERS = (
    ("torch.nn.parallel", "DistributedDataParallel"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
)


def _is(thing: object, path: str, kind: str) -> bool:
    """True if this is an instance of a torch class with a slow import; False if its module is not imported."""
    module = sys.modules.get(path)
    return module is not None and isinstance(thing, getattr(module, kind, ()))


def check_names(buckets: Sequence[Sequence[str]], parameters: Mapping[str, object], made_for: str = "") -> None:
    """Raise SpecError for names of no trainable parameter. `made_for` says where the plan comes from, after a comma."""
    names = [name for bucket in buckets for name in bucket]
    strange = [name for name in names if name not in parameters]
    if not strange:
        return
    close = nearest(strange[0], parameters)
    raise SpecError(
        f"the plan{made_for} names {strange[0]!r}, which is no trainable parameter of this model"
        + (f" ({len(strange)} of its {len(names)} names are not)" if len(strange) > 1 else ""),
        hint=f"did you mean {close!r}?" if close else "was the plan made for another model?",
    )


def check_cover(buckets: Sequence[Sequence[str]], parameters: Mapping[str, Parameter]) -> None:
    """Raise SpecError unless each trainable parameter is in one bucket, with one dtype per bucket."""
    check_names(buckets, parameters)
    seen: set[str] = set()
    for names in buckets:
        if not names:
            raise SpecError("the plan has an empty bucket")
        for name in names:
            if name in seen:
                raise SpecError(f"the plan has parameter {name!r} twice")
            seen.add(name)
        dtypes = {grad_dtype(parameters[name]) for name in names}
        if len(dtypes) > 1:
            raise SpecError(
                f"the bucket that starts with {names[0]!r} mixes dtypes", hint="never two dtypes in a bucket"
            )
    for name in parameters:
        if name not in seen:
            raise SpecError(f"the plan leaves out parameter {name!r}", hint="was the plan made for another model?")


def check_parts(order: Sequence[int], count: int) -> None:
    """Raise SpecError unless the order contains each part once."""
    if sorted(order) != list(range(count)):
        raise SpecError(
            f"the plan's order of parts does not name each of the {count} parts of its buckets once",
            hint="was the plan made for another model?",
        )


def default_buckets(parameters: Mapping[str, Parameter], most_bytes: int = BUCKET_BYTES) -> list[list[str]]:
    """Buckets of one dtype in reverse order of registration, of at most `most_bytes` or one tensor."""
    found: list[list[str]] = []
    dtype, filled = None, 0
    for name, parameter in reversed(list(parameters.items())):
        own = grad_dtype(parameter)
        nbytes = parameter.numel() * own.itemsize
        if own != dtype or filled + nbytes > most_bytes:
            found.append([])
            dtype, filled = own, 0
        found[-1].append(name)
        filled += nbytes
    return found
