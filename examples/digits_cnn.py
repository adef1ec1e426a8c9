"""A small residual network for `xbench converge examples/digits_cnn.py:make`: 16 × 16 grey images, ten classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 32
BLOCKS = 6
BATCH = 32


class Block(nn.Module):
    """Two convolutions beside a straight way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(WIDTH)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, WIDTH, height, width) to the same."""
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(inner)))


class DigitsNet(nn.Module):
    """Equal blocks, so that a share of the layers is about the same share of the time."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Images (batch, 1, 16, 16) to scores (batch, 10)."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def make() -> tuple[nn.Module, tuple[Tensor, Tensor], nn.Module]:
    """Model, batch, loss. `converge` puts the digits in the batch's place."""
    return DigitsNet(), (torch.randn(BATCH, 1, 16, 16), torch.randint(10, (BATCH,))), nn.CrossEntropyLoss()
