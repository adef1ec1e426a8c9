"""A rank that puts what `xbench tune` kept under the workload that was tuned, as the pasted line does.

    paste_tuned.py FILE WORKLOAD [auto]

It trains what plain DDP trains, and another model is refused by the names of its parameters. With `auto` the file is
the record of a comparison, which gives the plan of `auto`; the rank says which module it trained.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import xbench
from xbench.spec import WorkloadSpec
from xbench.workloads import resolve
from xbench.workloads.build import build
from xbench.workloads.workload import Workload

STEPS = 3


def workload(rank: int) -> Workload:
    return build(resolve(WorkloadSpec(name=sys.argv[2]), "cpu"), torch.device("cpu"), rank=rank)


def train(made: Workload, module: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(1 + int(os.environ["RANK"]))  # the same dropout each time
    for _ in range(STEPS):
        made.optimizer.zero_grad()
        made.forward_loss(module).backward()
        made.optimizer.step()
    return [parameter.detach().clone() for parameter in made.model.parameters()]


def paste(rank: int) -> None:
    plain = workload(rank)
    expected = train(plain, DistributedDataParallel(plain.model))
    for wait in ("backward", "step"):
        made = workload(rank)
        with xbench.attach(made.model, made.optimizer, plan=sys.argv[1], wait=wait) as handle:
            torch.testing.assert_close(train(made, handle.model), expected)
            print(f"{wait}: ok, buckets {len(handle.buckets or [])}", flush=True)
    try:
        xbench.attach(nn.Sequential(nn.Linear(2, 2)), plan=sys.argv[1])
    except xbench.XbenchError as error:
        print(f"refused: {error}", flush=True)


def paste_auto(rank: int) -> None:
    plain = workload(rank)
    expected = train(plain, DistributedDataParallel(plain.model, find_unused_parameters=True))
    made = workload(rank)
    told = {"schedule": "auto", "plan": sys.argv[1], "wait": "step", "unused_parameters": True}
    with xbench.attach(made.model, made.optimizer, **told) as handle:
        torch.testing.assert_close(train(made, handle.model), expected, rtol=0, atol=0)
        print(f"{type(handle.model).__name__}: ok", flush=True)


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{os.environ['STORE']}")
    paste_auto(rank) if sys.argv[3:] == ["auto"] else paste(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
