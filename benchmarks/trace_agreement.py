"""Profiles from traces of a plain DDP script beside `xbench profile` of the same step on the same link.

    python benchmarks/trace_agreement.py [--steps 8] [--output results/trace-agreement.json]

Each cell is a workload on two network namespaces of one core each, joined at a rate. A plain DDP loop runs there under
torch.profiler, and each rank exports its trace; then `xbench profile` measures the same workload. Compared are the
ready times of the gradients, as a share of backward, and DDP's step: predicted from the traces, against the traced one.
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

from xbench.records import Profile, load
from xbench.traces.record import read_traces

WORKLOADS = {
    "resnet18": {"batch_size": 8, "image_size": 128},
    "densenet121": {"batch_size": 4, "image_size": 96},
    "bert-base": {"batch_size": 2, "seq_len": 32},
}
RATES = ("1gbit", "10gbit")
WARMUP = 3


def rank(workload: str, steps: int, path: str) -> None:
    """One rank: the loop of a training script, under the profiler."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule

    import xbench
    from xbench.workloads.build import build
    from xbench.workloads.parse import parse_workload, resolve

    xbench.tune_host()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    spec = resolve(parse_workload(workload, **WORKLOADS[workload]), "cpu")
    work = build(spec, torch.device("cpu"), rank=dist.get_rank())
    model = DistributedDataParallel(work.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WARMUP, warmup=1, active=steps),
        record_shapes=True,
        on_trace_ready=lambda it: it.export_chrome_trace(path),
    ) as profiler:
        for _ in range(WARMUP + 1 + steps):
            optimizer.zero_grad()
            work.forward_loss(model).backward()
            optimizer.step()
            profiler.step()
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


def measured(workload: str, rate: str, folder: Path) -> Profile:
    """The profile of the same workload on the same link."""
    sizes = [word for key, value in WORKLOADS[workload].items() for word in (f"--{key.replace('_', '-')}", str(value))]
    path = folder / "profile.json"
    words = ["profile", workload, *sizes, "--fabric", f"shaped:hosts=2,rate={rate}", "--json", str(path)]
    words += ["--output", str(folder / "runs")]
    subprocess.run([sys.executable, "-m", "xbench", *words], check=True, stdout=subprocess.DEVNULL)
    record = load(path)
    assert isinstance(record, Profile)
    return record


def ready_s(record: Profile) -> list[float]:
    """Ready times under traffic where they were measured, in order [s]."""
    found = [
        tensor.ready_loaded_s if tensor.ready_loaded_s is not None else tensor.ready_s
        for layer in record.layers
        for tensor in layer.tensors
    ]
    return sorted(found)


def cell(workload: str, rate: str, steps: int) -> dict[str, Any]:
    """Both profiles of one cell and how far they are apart."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        from_trace = read_traces(traced(workload, rate, steps, folder), "benchmarks/trace_agreement.py")
        alone = measured(workload, rate, folder)
    assert from_trace.step is not None
    assert from_trace.traced is not None
    own, other = ready_s(from_trace), ready_s(alone)
    apart = [abs(a - b) / other[-1] for a, b in zip(own, other, strict=True)]
    return {
        "workload": workload,
        "rate": rate,
        "steps": len(from_trace.traced.periods_s),
        "gradients": len(own),
        "backward_traced_s": own[-1],
        "backward_profiled_s": other[-1],
        "ready_apart_median": statistics.median(apart),
        "ready_apart_most": max(apart),
        "step_traced_s": from_trace.step.step_s,
        "step_predicted_s": from_trace.plans["ddp"].predicted_step_s,
        "step_gap": from_trace.plans["ddp"].predicted_step_s / from_trace.step.step_s - 1,
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
