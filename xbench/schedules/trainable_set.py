"""Parameters that a schedule serves, and a check that no others are trained."""

from __future__ import annotations

import sys

from torch.nn import Module
from torch.optim import Optimizer

from xbench.errors import UsageError
from xbench.torch_compile import plain_name


class TrainableSet:
    """The parameters that were frozen at attach, and the sizes of the optimizer's groups.

    A parameter that is unfrozen or added later would be trained by each rank alone, because no hook sends its gradient.
    """

    def __init__(self, model: Module, optimizer: Optimizer | None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._frozen = [(plain_name(name), p) for name, p in model.named_parameters() if not p.requires_grad]
        self._served = {id(p) for p in model.parameters() if p.requires_grad}
        self._held = self._sizes()

    def _sizes(self) -> list[int]:
        """Parameters in each group of the optimizer."""
        groups = getattr(self._optimizer, "param_groups", None) or ()
        return [len(group["params"]) for group in groups]

    def check(self) -> None:
        """Raise UsageError for a parameter of the model that has become trainable since."""
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                self._refuse(name)
        if self._sizes() != self._held:
            self._look_for_new()
            self._held = self._sizes()

    def _look_for_new(self) -> None:
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and id(parameter) not in self._served:
                self._refuse(plain_name(name))

    def _refuse(self, name: str) -> None:
        raise UsageError(
            f"parameter {name!r} has become trainable since the schedule was attached, and its gradients are not sent",
            hint="detach the schedule, unfreeze or add parameters on all ranks, and attach it again",
        )


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
