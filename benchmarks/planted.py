"""Workload with a fault on rank 1, for `slow_ranks.py` and the tests: benchmarks/planted.py:make.

XBENCH_PLANT says which, and how many milliseconds longer a step takes: `backward:10` makes the backward pass slow
before the gradients of `layers.2`, `input:10` makes the loader slow, and `workers:60` the worker of a DataLoader
(benchmarks/planted.py:make_loader), whose batches take 60 ms then. Without it there is no fault.

The model reads its batch itself: the indices that it is given select samples, as a loader would. A step takes some
30 ms on one core.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, BATCH, CLASSES = 512, 6, 128, 10
PLANT, _, SLOWER_MS = (os.environ.get("XBENCH_PLANT", "") if os.environ.get("RANK") == "1" else "").partition(":")
SLOWER_S = float(SLOWER_MS or 0) / 1000


def burn(seconds: float) -> None:
    """Use so much time of the processor."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


class SlowBackward(torch.autograd.Function):
    """Identity, whose backward pass takes SLOWER_S longer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return a view of the input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Return the gradient, late."""
        burn(SLOWER_S)
        return gradient


class Net(nn.Module):
    """Linear layers behind a loader of random samples."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = torch.randn(4 * BATCH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def load(self, indices: Tensor) -> Tensor:
        """Return the samples of a batch."""
        if PLANT == "input":
            time.sleep(SLOWER_S)
        return self.samples[indices]

    def forward(self, indices: Tensor) -> Tensor:
        """Return the scores of each class."""
        x = self.load(indices)
        for number, layer in enumerate(self.layers):
            if number == 3 and PLANT == "backward":
                x = SlowBackward.apply(x)  # type: ignore[no-untyped-call]
            x = torch.relu(layer(x))
        scores: Tensor = self.head(x)
        return scores


def make() -> tuple[nn.Module, tuple[Tensor, Tensor], nn.Module]:
    """Return model, batch and loss."""
    indices = torch.randperm(4 * BATCH)[:BATCH]
    return Net(), (indices, torch.randint(0, CLASSES, (BATCH,))), nn.CrossEntropyLoss()


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Indices of samples and their classes, which take a worker SLOWER_S a batch."""

    def __len__(self) -> int:
        """Return the number of samples: those of 1000 steps."""
        return 1000 * BATCH

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        """Return a sample, late."""
        if PLANT == "workers":
            time.sleep(SLOWER_S / BATCH)
        return torch.tensor(place % (4 * BATCH)), torch.tensor(place % CLASSES)


def make_loader() -> tuple[nn.Module, DataLoader[tuple[Tensor, Tensor]], nn.Module]:
    """Return model, loader with a worker, and loss."""
    return Net(), DataLoader(Samples(), batch_size=BATCH, num_workers=1, drop_last=True), nn.CrossEntropyLoss()
