"""Buffers under schedules that leave them to each rank: broadcast on request, else a warning where a pass changes them.

DDP broadcasts the first rank's buffers before each forward pass. The other schedules send gradients alone, so each rank
keeps statistics of its own batches. Batch-norm layers do not read these in training. Where a forward pass reads buffers
that it makes from the batch (a codebook, centres), ranks compute with different ones, and train another network than
under DDP.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils.hooks import RemovableHandle

from xbench.schedules.module_hooks import uncopied
from xbench.schedules.served_parameters import ignored
from xbench.torch_compile import plain_name


def broadcast_before_passes(model: Module, group: dist.ProcessGroup | None) -> Callable[[], None]:
    """Copy the first rank's buffers to all before each pass with gradients; return the function that ends it."""
    source = dist.get_process_group_ranks(group)[0] if group is not None else 0
    left_out = ignored(model)

    def broadcast(*_: Any) -> None:
        if not torch.is_grad_enabled():
            return
        by_device: dict[torch.device, list[Tensor]] = {}
        for name, buffer in model.named_buffers():
            if name not in left_out and buffer.numel():
                by_device.setdefault(buffer.device, []).append(buffer)
        with torch.no_grad():
            for buffers in by_device.values():
                buffers.sort(key=Tensor.element_size, reverse=True)  # then each begins at a multiple of its size
                pieces = [buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers]
                flat = torch.cat(pieces)
                dist.broadcast(flat, src=source, group=group)
                for buffer, piece in zip(buffers, torch.split(flat, [one.numel() for one in pieces]), strict=True):
                    buffer.copy_(piece.view(buffer.dtype).view(buffer.shape))

    untraced: Any = torch.compiler.disable(broadcast)  # type: ignore[no-untyped-call]
    return uncopied(model.register_forward_pre_hook(untraced)).remove


def warn_of_changing(model: Module, schedule: str) -> Callable[[], None]:
    """Warn once if the first pass with gradients changes buffers of each rank's own; return the function that ends it.

    A model without floating-point buffers outside of normalisation gets no hook.
    """
    before: dict[str, tuple[Tensor, int]] = {}
    hooks: list[RemovableHandle] = []

    def end() -> None:
        while hooks:
            hooks.pop().remove()

    def look(*_: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            before.update((name, (buffer, buffer._version)) for name, buffer in _own_buffers(model))

    def compare(*_: Any) -> None:
        if not before:
            return
        end()
        changed = [
            name
            for name, buffer in _own_buffers(model)
            if name in before and (buffer is not before[name][0] or buffer._version != before[name][1])
        ]
        before.clear()
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            warnings.warn(
                f"the forward pass changes buffer {changed[0]!r}{more}, and under {schedule} each rank keeps its own: "
                "if it is made from the batch, ranks train different networks; attach(..., buffers='broadcast') copies "
                "the first rank's before each pass, as DDP does",
                stacklevel=2,
            )

    if any(True for _ in _own_buffers(model)):
        hooks.append(uncopied(model.register_forward_pre_hook(look)))
        hooks.append(uncopied(model.register_forward_hook(compare)))
    return end


def _own_buffers(model: Module) -> Iterator[tuple[str, Tensor]]:
    """Floating-point buffers by name, without those of normalisation, which are no function of the batch in training.

    Spectral norms are a function of the parameters alone.
    """
    for path, module in model.named_modules():
        if isinstance(module, (_NormBase, _SpectralNorm)):
            continue
        norms = [hook.name for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
        known = {f"{name}_{end}" for name in norms for end in "uv"} | set(norms)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in known and buffer.is_floating_point() and not buffer.is_inference():
                yield plain_name(f"{path}.{name}" if path else name), buffer
