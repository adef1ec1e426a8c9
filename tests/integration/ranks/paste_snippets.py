"""A rank that pastes snippets of `xbench plan` into a training script and runs them, as a user would.

    paste_snippets.py FOLDER    holds python.txt, file.txt and ddp.txt

Each is executed around the same small model, from the same seed, and must train what plain DDP trains.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
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


def reference(rank: int) -> list[torch.Tensor]:
    model = model_of()
    train(DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1), rank)
    return [parameter.detach() for parameter in model.parameters()]


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{os.environ['STORE']}")
    expected = reference(rank)
    for name in ("python", "file", "ddp"):
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
        torch.testing.assert_close([p.detach() for p in model.parameters()], expected)
        print(f"{name}: ok", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
