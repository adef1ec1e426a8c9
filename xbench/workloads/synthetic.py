"""A chain with independent traffic and compute: `synthetic:layers=200,bytes=64k[,width=64][,compute=0]`.

Each layer owns one vector w of exactly `bytes` of fp32 gradient (half of that in bf16) and hardly computes with it:

    z ← sin(z R)         `compute` times, from z = x; R is a fixed width × width matrix, shared, without a gradient
    y = x + 0.1·‖w‖·cos(z)

‖w‖ costs one pass over w forward and one backward, and its gradient w/‖w‖ touches every element. Each unit of `compute`
adds 2·batch·width² FLOP forward and as many backward. The residual form keeps hundreds of layers stable. Gradients
depend on the rank's data through cos(z), so a missing average shows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xbench.spec import WorkloadSpec
from xbench.workloads.batches import Inputs
from xbench.workloads.parse import SyntheticShape, parse_synthetic
from xbench.workloads.workload import Recipe

STEP = 0.1


class NormLayer(nn.Module):
    """One layer of the chain; (batch, width) to the same."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(elements).normal_(std=1 / math.sqrt(elements)))

    def forward(self, x: Tensor, mixing: Tensor | None, repeats: int) -> Tensor:
        """Apply the formula in the module's docstring."""
        z = x
        for _ in range(repeats):
            z = torch.sin(z @ mixing) if mixing is not None else z
        norm: Tensor = torch.linalg.vector_norm(self.weight)
        return x + STEP * norm * torch.cos(z)


class Chain(nn.Module):
    """Equal layers one after the other; (batch, width) to the same."""

    def __init__(self, shape: SyntheticShape) -> None:
        super().__init__()
        self.compute = shape.compute
        self.layers = nn.ModuleList(NormLayer(shape.layer_bytes // 4) for _ in range(shape.layers))
        # A frozen parameter instead of a buffer: DDP would broadcast a buffer before every forward pass.
        mixing = torch.empty(shape.width, shape.width).normal_(std=1 / math.sqrt(shape.width))
        self.mixing = nn.Parameter(mixing, requires_grad=False) if shape.compute else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers."""
        for layer in self.layers:
            x = layer(x, self.mixing, self.compute)
        return x


class SyntheticRecipe(Recipe):
    """A chain on `batch_size` vectors of `width` normal numbers, with mean squared error to others."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__(spec)
        if spec.batch_size is None:
            raise ValueError("the spec is not resolved")
        self.batch_size = spec.batch_size
        self.shape = parse_synthetic(spec.name)

    def model(self) -> nn.Module:
        """The chain with random weights."""
        return Chain(self.shape)

    def batch(self, rank: int) -> tuple[Inputs, Any]:
        """Inputs and targets, each (batch, width)."""
        size = (self.batch_size, self.shape.width)
        return torch.randn(size), torch.randn(size)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(outputs, targets)

    def input_description(self) -> str:
        """'64 numbers'."""
        return f"{self.shape.width} numbers"
