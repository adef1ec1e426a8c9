"""A rank that prints what the profilers measure on it, as JSON: clocks, all-reduces, and a step.

Its argument is a list of sizes of all-reduces [B], in JSON.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from xbench.profilers.clock import clock_for
from xbench.profilers.collectives import clock_offsets, measure_all_reduce
from xbench.profilers.layers import profile_step
from xbench.workloads.training_step import TrainingStep


class Workload(TrainingStep):
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.inputs = torch.randn(16, 32)

    def forward_loss(self) -> torch.Tensor:
        return self.model(self.inputs).square().mean()


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=2)
    cpu = torch.device("cpu")
    asked, trusted = clock_offsets(None, cpu, trust_kernel=False), clock_offsets(None, cpu)
    notes: list[str] = []
    points = measure_all_reduce(
        json.loads(sys.argv[1]), cpu, None, repetitions=8, seconds_budget=1.0, clock=clock_for(cpu), note=notes.append
    )
    result = {
        "asked": [asked.at_s, asked.offset_s, asked.error_s],
        "trusted": [trusted.offset_s, trusted.error_s],
        "points": points,
        "notes": len(notes),
        "profile": profile_step(Workload(), clock_for(cpu), steps=6).raw(),
    }
    print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
