"""Profiles from torch.profiler traces beside xbench's own hooks in the same run, and DDP's step predicted from them.

    python benchmarks/trace_agreement.py [--steps 8] [--output results/trace-agreement.json]

Each cell is a workload on two network namespaces of one core each, joined at a rate. A plain DDP loop runs there, and
`xbench profile`'s hooks (LayerProfiler) mark every step: half of the steps before, all steps under torch.profiler, and
the other half after it. Compared are the ready times of the gradients, as a share of backward: the trace against the
hooks of the same steps (is the trace read right?) and against the hooks of the steps around it (what does the profiler
disturb?). DDP's step is predicted from both ranks' traces and from each rank's alone, against the traced step.
Real times; predictions simulated. Needs root, for the namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from xbench.records import Profile
from xbench.traces.record import read_traces

WORKLOADS = {
    "resnet18": {"batch_size": 8, "image_size": 128},
    "densenet121": {"batch_size": 4, "image_size": 96},
    "bert-base": {"batch_size": 2, "seq_len": 32},
}
RATES = ("1gbit", "10gbit")
WARMUP = 3


def _loop(work: Any) -> Any:
    """Return the step of a DDP loop, for LayerProfiler."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD

    from xbench.workloads.training_step import TrainingStep

    class Loop(TrainingStep):
        def __init__(self) -> None:
            self.model = work.model
            self.optimizer = SGD(self.model.parameters(), lr=1e-3)
            self._ddp = DistributedDataParallel(self.model)

        def forward_loss(self) -> Any:
            return work.forward_loss(self._ddp)

    return Loop()


def rank(workload: str, steps: int, path: str) -> None:
    """One rank: the loop of a training script, under hooks, and in its middle under torch.profiler."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    import xbench
    from xbench.profilers.clock import HostClock
    from xbench.profilers.layers import LayerProfiler
    from xbench.workloads.build import build
    from xbench.workloads.parse import parse_workload, resolve

    xbench.tune_host()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    spec = resolve(parse_workload(workload, **WORKLOADS[workload]), "cpu")
    loop = _loop(build(spec, torch.device("cpu"), rank=dist.get_rank()))
    clock = HostClock()
    hooks = LayerProfiler(loop.model, clock)
    around, inside = [], []
    with hooks:
        around += [hooks.run_step(loop) for _ in range(WARMUP + steps // 2)][WARMUP:]
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=WARMUP, active=steps),
            record_shapes=True,
            on_trace_ready=lambda it: it.export_chrome_trace(path),
        ) as profiler:
            for _ in range(WARMUP + steps):
                inside.append(hooks.run_step(loop))
                profiler.step()
        around += [hooks.run_step(loop) for _ in range(WARMUP + steps - steps // 2)][WARMUP:]
    clock.flush()
    told = {
        name: [hooks.layer_times(step).ready_s for step in marks]
        for name, marks in (("around", around), ("inside", inside[WARMUP:]))
    }
    Path(path + ".hooks").write_text(json.dumps(told), encoding="utf-8")
    dist.destroy_process_group()


def traced(workload: str, rate: str, steps: int, folder: Path) -> list[Path]:
    """Run the loop on two namespaces and return the traces."""
    from xbench.fabrics.shaped import ShapedFabric
    from xbench.spec import FabricSpec

    with ShapedFabric(FabricSpec(name="shaped", hosts=2, rate=rate), secrets.token_hex(3)) as fabric:
        port = str(fabric.free_ports(1)[0])
        paths = [folder / f"rank{host.index}.json.gz" for host in fabric.hosts]
        running = []
        for host, path in zip(fabric.hosts, paths, strict=True):
            place = {"RANK": str(host.index), "WORLD_SIZE": "2", "MASTER_ADDR": fabric.hosts[0].address}
            words = [*host.prefix, sys.executable, __file__, "--rank", workload, str(steps), str(path)]
            running.append(subprocess.Popen(words, env={**os.environ, **host.env, **place, "MASTER_PORT": port}))
        assert [one.wait() for one in running] == [0, 0]
    return paths


def ready_s(record: Profile) -> list[float]:
    """Ready times of a profile, in order [s]."""
    return sorted(tensor.ready_s for layer in record.layers for tensor in layer.tensors)


def hooked_s(path: Path, steps: str) -> list[float]:
    """The median ready time of each gradient in the `steps` of a rank's hooks, in order [s]."""
    told = json.loads(Path(f"{path}.hooks").read_text(encoding="utf-8"))[steps]
    return sorted(statistics.median(same) for same in zip(*told, strict=True))


def apart(own: list[float], other: list[float]) -> dict[str, float]:
    """How far ready times are apart, as a share of backward."""
    shares = [abs(one - two) / other[-1] for one, two in zip(own, other, strict=True)]
    return {"median": statistics.median(shares), "most": max(shares)}


def cell(workload: str, rate: str, steps: int) -> dict[str, Any]:
    """Trace and hooks of one cell, and how far they are apart."""
    with tempfile.TemporaryDirectory() as name:
        paths = traced(workload, rate, steps, Path(name))
        both = read_traces(paths, "benchmarks/trace_agreement.py")
        alone = [read_traces([path], "benchmarks/trace_agreement.py") for path in paths]
        same = [apart(ready_s(own), hooked_s(path, "inside")) for own, path in zip(alone, paths, strict=True)]
        near = [apart(ready_s(own), hooked_s(path, "around")) for own, path in zip(alone, paths, strict=True)]
    assert both.step is not None
    assert both.traced is not None
    predicted_s = both.plans["ddp"].predicted_step_s
    return {
        "workload": workload,
        "rate": rate,
        "steps": len(both.traced.periods_s),
        "gradients": len(ready_s(both)),
        "ready_to_same_steps": same,
        "ready_to_steps_around": near,
        "step_traced_s": both.step.step_s,
        "step_predicted_s": predicted_s,
        "step_gap": predicted_s / both.step.step_s - 1,
        "step_gap_of_one_rank": [
            one.plans["ddp"].predicted_step_s / one.step.step_s - 1 for one in alone if one.step is not None
        ],
    }


def main() -> None:
    """Run every cell and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("results/trace-agreement.json"))
    parser.add_argument("--rank", nargs=3, metavar=("WORKLOAD", "STEPS", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        return rank(given.rank[0], int(given.rank[1]), given.rank[2])
    cells = []
    for workload in WORKLOADS:
        for rate in RATES:
            cells.append(cell(workload, rate, given.steps))
            print(json.dumps(cells[-1]), flush=True)
            told = {"label": "real; predictions simulated", "cells": cells}
            given.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
