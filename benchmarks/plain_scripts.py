"""Rows of xbench without host tuning beside plain training scripts of the same rivals, in one alternating run.

    python benchmarks/plain_scripts.py [--runs 8] [--steps 20] [--rivals ddp,horovod,fsdp,zero1] [--output FILE]

The scripts are those of the tutorials of DDP, Horovod, FSDP2 and ZeroRedundancyOptimizer, on ResNet-18 and a synthetic
batch. torchrun starts them, and horovodrun the one of Horovod. A run is one launch of `xbench compare` under
XBENCH_HOST_TUNING=off and one start of each script. The order within a run alternates: xbench first, then the scripts
first and in reverse. Of a script the median step counts, and of xbench the step of its row. Ratios (row over script)
are paired by run, with 95 % intervals. Both have the same model, batch, optimizer, steps, cores, threads and interface:
a rank has one core and one thread. Real times. At the end it says which rows are within 2 % of their script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RIVALS = ("ddp", "horovod", "fsdp", "zero1")
RANKS = 2
WARMUP = 5
WITHIN = 0.02
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


# --- the scripts -----------------------------------------------------------------------------------------------------


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


# --- the alternating run ---------------------------------------------------------------------------------------------


def script_step_s(rival: str, steps: int, cores: list[int]) -> float:
    """Median step [s] of a script, started as its tutorial starts it."""
    from xbench.stats.steps import steps_of_all

    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "XBENCH_HOST_TUNING": "off"}
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        if rival == "horovod":
            horovodrun = str(Path(sys.executable).parent / "horovodrun")
            start = [horovodrun, "--gloo", "--network-interfaces", "lo", "-np", str(RANKS), sys.executable]
        words = ["--script", rival, "--steps", str(steps), "--folder", folder, "--cores", ",".join(map(str, cores))]
        subprocess.run([*start, __file__, *words], env=env, check=True, stdout=subprocess.DEVNULL)
        per_rank_s = [json.loads((Path(folder) / f"rank{number}.json").read_text()) for number in range(RANKS)]
    return statistics.median(steps_of_all(per_rank_s))


def rows_step_s(rivals: list[str], steps: int, rounds: int) -> dict[str, float]:
    """Step [s] of each rival's row in one launch of `xbench compare` without host tuning."""
    from xbench.records import load, of_kind
    from xbench.records.comparison import Comparison

    with tempfile.TemporaryDirectory() as folder:
        words = ["compare", f"{__file__}:make", "--fabric", f"local:ranks={RANKS}", "--device", "cpu"]
        words += ["--launches", "1", "--rounds", str(rounds), "--steps", str(steps), "--modes", ",".join(rivals)]
        command = [sys.executable, "-m", "xbench", *words, "--output", folder]
        subprocess.run(command, env=os.environ | {"XBENCH_HOST_TUNING": "off"}, check=True, stdout=subprocess.DEVNULL)
        (path,) = Path(folder).glob("*/record.json")
        record = of_kind(load(path), Comparison)
    assert record is not None
    steps_s = {name: mode.step_s for name, mode in record.modes.items()}
    return {name: step_s.median for name, step_s in steps_s.items() if step_s is not None}


def measured(options: argparse.Namespace, cores: list[int]) -> dict[str, dict[str, list[float]]]:
    """Step [s] of every run, by rival, of its script and of its row."""
    rivals = options.rivals.split(",")
    found: dict[str, dict[str, list[float]]] = {rival: {"script": [], "row": []} for rival in rivals}
    for number in range(options.runs):
        turns = ["xbench", *rivals] if number % 2 == 0 else [*reversed(rivals), "xbench"]
        for turn in turns:
            if turn == "xbench":
                for rival, step_s in rows_step_s(rivals, options.steps, options.rounds).items():
                    found[rival]["row"].append(step_s)
            else:
                found[turn]["script"].append(script_step_s(turn, options.steps, cores))
        print(f"run {number + 1} of {options.runs}", json.dumps(found), flush=True)
    return found


def main() -> None:
    """Measure, and print and write the ratio of each row to its script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4, help="blocks of each row in a run")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--script", choices=RIVALS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cores", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.script is not None:
        rank(options.script, options.steps, [int(core) for core in options.cores.split(",")], options.folder)
        return

    from xbench import environment
    from xbench.fabrics.fabric import available_cores
    from xbench.stats.compare import BlockValue, paired_ratio

    found = measured(options, available_cores()[:RANKS])
    table = {}
    for rival, steps_s in found.items():
        script, row = ([BlockValue(run, 0, step_s) for run, step_s in enumerate(steps_s[side])] for side in
                       ("script", "row"))  # fmt: skip
        ratio = paired_ratio(row, script)
        within = abs(ratio.value - 1) <= WITHIN
        table[rival] = {"row_over_script": ratio.model_dump(), "within_2_percent": within, "step_s": steps_s}
        print(f"{rival}: row over script {ratio.value:.3f} {ratio.ci95}, within 2 %: {within}", flush=True)
    words = f"--runs {options.runs} --steps {options.steps} --rounds {options.rounds} --rivals {options.rivals}"
    result = {
        "command": f"python benchmarks/plain_scripts.py {words}",
        "label": "real",
        "image_px": PX,
        "rivals": table,
        "environment": environment.capture().model_dump(),
    }
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
