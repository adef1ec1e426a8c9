"""Plain training scripts: DDP, Horovod, FSDP2 and ZeroRedundancyOptimizer as their tutorials write them.

`plain_scripts.py` times them beside the rows of xbench. They train ResNet-18 on a synthetic batch. torchrun or
horovodrun starts a rank:

    torchrun --standalone --nproc-per-node 2 benchmarks/tutorial_scripts.py --script ddp --folder . --cores 0,1

Nothing here imports xbench: its modules would change the memory of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WARMUP = 5
PX = int(os.environ.get("PLAIN_SCRIPTS_PX", "128"))
"""Width and height of the images. They are in the environment because xbench calls `make` without arguments."""

BATCH = 8
LR, MOMENTUM = 0.01, 0.9
"""Those of xbench's SGD."""


def make() -> tuple[Any, tuple[Any, Any], Any]:
    """Model, batch and loss of both sides; a factory for `xbench compare`."""
    import torch
    from torch import nn
    from torchvision.models import resnet18

    return resnet18(), (torch.randn(BATCH, 3, PX, PX), torch.randint(1000, (BATCH,))), nn.CrossEntropyLoss()


def ddp(steps: int) -> Iterator[None]:
    """DDP, as in "Getting Started with Distributed Data Parallel" of the PyTorch tutorials."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, (images, labels), criterion = make()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
        yield
    dist.destroy_process_group()


def horovod(steps: int) -> Iterator[None]:
    """Horovod, as in "Horovod with PyTorch" of its documentation."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(0)
    model, (images, labels), criterion = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
        yield
    hvd.shutdown()


def fsdp(steps: int) -> Iterator[None]:
    """FSDP2, as in "Getting Started with Fully Sharded Data Parallel" of the PyTorch tutorials."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, (images, labels), criterion = make()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in layer:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # Gloo has no average
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
        yield
    dist.destroy_process_group()


def zero1(steps: int) -> Iterator[None]:
    """ZeRO's first stage, as in "Shard Optimizer States with ZeroRedundancyOptimizer" of the PyTorch tutorials."""
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, (images, labels), criterion = make()
    model = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=LR, momentum=MOMENTUM)
    for _ in range(steps):
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
        yield
    dist.destroy_process_group()


SCRIPTS: dict[str, Callable[[int], Iterator[None]]] = {"ddp": ddp, "horovod": horovod, "fsdp": fsdp, "zero1": zero1}


def rank(rival: str, steps: int, cores: list[int], folder: Path) -> None:
    """One rank of a script: its own core and thread, and the time of each step [s] in a file of its own."""
    import torch

    local = int(os.environ.get("LOCAL_RANK") or os.environ["HOROVOD_LOCAL_RANK"])
    os.sched_setaffinity(0, {cores[local]})
    torch.set_num_threads(1)
    took_s, since_s = [], time.perf_counter()
    for _ in SCRIPTS[rival](WARMUP + steps):
        now_s = time.perf_counter()
        took_s.append(now_s - since_s)
        since_s = now_s
    (folder / f"rank{local}.json").write_text(json.dumps(took_s[WARMUP:]))


def main() -> None:
    """Be one rank of a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", choices=SCRIPTS, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--folder", type=Path, required=True, help="of the times of the steps, a file a rank")
    parser.add_argument("--cores", required=True, help="one a rank")
    options = parser.parse_args()
    rank(options.script, options.steps, [int(core) for core in options.cores.split(",")], options.folder)


if __name__ == "__main__":
    main()
