"""Predicted memory and operations of a step's backward pass under `spb`, from the bands of layers that it reaches.

One step at full depth is recorded band by band. In the forward pass the bands of layers only fall, from k at the inputs
to 1 at the loss. So the lowest band so far is the level from which current work belongs to the graph. Each piece of
memory that autograd keeps counts from the lowest level that uses it. A layer that multiplies needs as many operations
for its weights' gradient as in its forward pass, from its own band on. It needs as many again for its inputs' gradient,
from the band on at which its inputs have one.

Memory is nearly exact. Operations are exact for layers in a row. If branches part, both are assumed to need the
gradient of their common input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from xbench.torch_compile import plain_name


@dataclass(frozen=True)
class WorkByBand:
    """Work by band: levels from b on keep `kept_bytes[b-1]` and compute `flops[b-1]` in backward; lower ones do not."""

    kept_bytes: list[int]
    flops: list[int]

    def up_to(self, level: int) -> tuple[int, int]:
        """Return the memory [B] and the backward operations [floating-point operations] of a worker of this level."""
        return sum(self.kept_bytes[:level]), sum(self.flops[:level])


def work_by_band(
    model: nn.Module, band_of: Mapping[str, int], levels: int, forward: Callable[[], Tensor]
) -> WorkByBand:
    """Observe `forward()`, a forward pass of `model` in which all parameters of `band_of` require gradients."""
    watch = _Watch(model, levels)
    own: dict[nn.Module, list[int]] = {}
    modules = {plain_name(name): module for name, module in model.named_modules()}
    for name, band in band_of.items():
        own.setdefault(modules[name.rpartition(".")[0]], []).append(band)
    with ExitStack() as stack:
        stack.enter_context(watch.counter)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda tensor: tensor))
        for module, bands in own.items():
            for handle in watch.follow(module, min(bands)):
                stack.callback(handle.remove)
        forward()
    watch.others()
    return WorkByBand(
        [sum(size for size, since in watch.kept.values() if since == band) for band in range(1, levels + 1)],
        watch.flops[1:-1],
    )


def kept_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """Return the result of `forward()`, and the bytes that autograd keeps for backward.

    Each piece of memory counts once; parameters do not count.
    """
    watch = _Watch(model, 1)
    with torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda tensor: tensor):
        result = forward()
    watch.alive.clear()
    return result, sum(size for size, _ in watch.kept.values())


class _Watch:
    """Observer of a forward pass. `since` is the lowest band so far, k + 1 before the first layer."""

    def __init__(self, model: nn.Module, levels: int) -> None:
        self.counter = FlopCounterMode(display=False)
        self.since = levels + 1
        self.kept: dict[int, tuple[int, int]] = {}
        self.flops = [0] * (levels + 2)
        self._counted = 0
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.alive: list[Tensor] = []
        """Tensors that were kept, during the forward pass: freed memory could be reused, and counted again."""

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept = tensor.detach()  # an output that is saved with its graph would keep the graph, and so itself
        if storage.data_ptr() not in self._parameters:
            self.kept[storage.data_ptr()] = (storage.nbytes(), self.since)  # the last use is the lowest
            self.alive.append(kept)
        return kept

    def others(self) -> None:
        """Count operations outside of layers, such as attention's products: both operands have gradients."""
        self.flops[self.since] += 2 * self._new()

    def follow(self, module: nn.Module, band: int) -> list[Any]:
        inputs_since: list[int] = []

        def begins(*_: Any) -> None:
            self.others()
            inputs_since.append(self.since)
            self.since = min(self.since, band)

        def ends(*_: Any) -> None:
            flops = self._new()
            self.flops[self.since] += flops
            self.flops[inputs_since.pop()] += flops

        return [module.register_forward_pre_hook(begins), module.register_forward_hook(ends)]

    def _new(self) -> int:
        before, self._counted = self._counted, int(self.counter.get_total_flops())
        return self._counted - before
