"""Activation checkpointing of a model's blocks (`--checkpoint blocks`).

A checkpointed block keeps its inputs alone. The backward pass runs its forward pass again for the activations (Chen et
al., arXiv 1604.06174; `torch.utils.checkpoint` with `use_reentrant=False`). So backward takes longer, and gradients of
a block are ready later.

A block's class becomes a subclass of the same name. Names of modules and parameters stay, and so do hooks, which run
once in forward.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from xbench.errors import WorkloadError
from xbench.model_blocks import blocks_of
from xbench.torch_compile import regions


class Checkpointed(nn.Module):
    """Forward pass of a block that keeps its inputs alone."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the block. Without gradients nothing is kept in any case."""
        own = partial(super().forward, **options)
        return checkpoint(own, *inputs, use_reentrant=False) if torch.is_grad_enabled() else own(*inputs)


def checkpoint_blocks(model: nn.Module, title: str) -> None:
    """Checkpoint every block of the model, in place. Raises WorkloadError for a model without blocks."""
    if regions(model):
        raise WorkloadError(
            f"{title}: --checkpoint blocks recomputes modules one by one, and torch.compile has made one of several",
            hint="leave --checkpoint or the compilation out",
        )
    blocks = blocks_of(model)
    if not blocks:
        raise WorkloadError(
            f"{title}: the model has no blocks to checkpoint, which are members of a ModuleList or a Sequential",
            hint="leave --checkpoint out",
        )
    for block in blocks.values():
        kind = type(block)
        block.__class__ = type(kind.__name__, (Checkpointed, kind), {"__module__": kind.__module__})
