"""A rank that pastes snippets of `xbench plan` into a training script and runs them, as a user would.

    paste_snippets.py FOLDER    holds python.txt, file.txt, ddp.txt, step.txt and units.txt

Each is executed around the same small model, from the same seed, and must train what plain DDP trains. step.txt
accumulates two batches under autocast and clips, and the DDP beside it does the same.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)], nn.Linear(64, 8))


def batches_of(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(1 + rank)
    return [(torch.randn(16, 64, generator=made), torch.randint(0, 8, (16,), generator=made)) for _ in range(STEPS)]


def train(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for inputs, targets in batches_of(rank):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()


def train_by_two(module: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for number, (inputs, targets) in enumerate(batches_of(rank)):
        with module.no_sync() if number % 2 == 0 else contextlib.nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(module(inputs), targets) / 2
            loss.backward()
        if number % 2:
            nn.utils.clip_grad_norm_(module.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()


def reference(rank: int, train: Callable[..., None]) -> list[torch.Tensor]:
    model = model_of()
    train(DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1), rank)
    return [parameter.detach() for parameter in model.parameters()]


def whole(parameter: Any) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{os.environ['STORE']}")
    plain, by_two = reference(rank, train), reference(rank, train_by_two)
    for name in ("python", "file", "ddp", "step", "units"):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        names = {
            "model": model,
            "optimizer": optimizer,
            "criterion": nn.CrossEntropyLoss(),
            "batches": batches_of(rank),
        }
        exec((folder / f"{name}.txt").read_text(), names)
        if name == "ddp":
            train(names["model"], optimizer, rank)
            print("DDP's buckets:", names["model"]._get_ddp_logging_data()["rebuilt_bucket_sizes"])
        if name == "units":
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), rank)
        torch.testing.assert_close([whole(p) for p in model.parameters()], by_two if name == "step" else plain)
        print(f"{name}: ok", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
