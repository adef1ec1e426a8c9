"""A rank that gives the record of a comparison to `xbench.attach`, for the plan of `auto`.

    attach_record.py RECORD WORKLOAD

It trains what plain DDP trains, and says which module it trained.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from paste_tuned import train, workload
from torch.nn.parallel import DistributedDataParallel

import xbench


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{os.environ['STORE']}")
    plain = workload(rank)
    expected = train(plain, DistributedDataParallel(plain.model, find_unused_parameters=True))
    made = workload(rank)
    told = {"schedule": "auto", "plan": sys.argv[1], "wait": "step", "unused_parameters": True}
    with xbench.attach(made.model, made.optimizer, **told) as handle:
        torch.testing.assert_close(train(made, handle.model), expected, rtol=0, atol=0)
        print(f"{type(handle.model).__name__}: ok", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
