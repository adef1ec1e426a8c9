"""Rows of xbench without host tuning beside plain training scripts of the same rivals, in one alternating run.

    python benchmarks/plain_scripts.py [--runs 8] [--steps 10] [--rivals ddp,horovod,fsdp,zero1] [--output FILE]

The scripts are those of the tutorials of DDP, Horovod, FSDP2 and ZeroRedundancyOptimizer, on ResNet-18 and a synthetic
batch. torchrun starts them, and horovodrun the one of Horovod, which is left out if it is not built. In a run each
rival's script starts before and after an `xbench compare` of this mode alone, with one timed launch, under
XBENCH_HOST_TUNING=off. So a machine whose speed changes steadily is equally fast for both sides. Of a script the mean
of its steps counts, as in a timed block of xbench, and of xbench the step of its row. Ratios (row over script) are
paired by run, with 95 % intervals (Student's, over runs, as over launches in a comparison).

The mode is alone because memory belongs to a process: after the buffers of `fsdp` have been freed in it, the steps of
`ddp` have fewer page faults there.

Both sides have the same model, batch, loss, optimizer, dtype, units of FSDP2, cores, threads and network interface:
two ranks, a core and a thread each. Both time whole steps without a barrier between them. One thing differs, and is
what is tested: xbench's own loop, which notes each step in a file. Real times.

At the end it says which rows are within 2 % of their script, by their ratio and by their whole interval. FILE is
written after each run. If it is there, the same command goes on behind its last run.
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
    """Mean step [s] of a script, started as its tutorial starts it."""
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
    return statistics.fmean(steps_of_all(per_rank_s))


def row_step_s(rival: str, steps: int, rounds: int) -> float:
    """Step [s] of a rival's row in one timed launch of `xbench compare` without host tuning."""
    from xbench.records import load, of_kind
    from xbench.records.comparison import Comparison

    with tempfile.TemporaryDirectory() as folder:
        words = ["compare", f"{__file__}:make", "--fabric", f"local:ranks={RANKS}", "--device", "cpu", "--quick"]
        words += ["--launches", "1", "--rounds", str(rounds), "--steps", str(steps), "--modes", rival]
        command = [sys.executable, "-m", "xbench", *words, "--output", folder]
        settings = {"XBENCH_HOST_TUNING": "off", "XBENCH_PROFILE_SHARE": "0.1"}  # no rival is planned from a profile
        subprocess.run(command, env=os.environ | settings, check=True, stdout=subprocess.DEVNULL)
        (path,) = Path(folder).glob("*/record.json")
        record = of_kind(load(path), Comparison)
    assert record is not None
    step_s = record.modes[rival].step_s
    assert step_s is not None
    return step_s.median


def one_run(options: argparse.Namespace, cores: list[int]) -> dict[str, dict[str, float]]:
    """Step [s] of each rival's script and row in one run."""
    found = {}
    for rival in options.rivals:
        before_s = script_step_s(rival, options.steps, cores)
        row_s = row_step_s(rival, options.steps, options.rounds)
        found[rival] = {"row": row_s, "script": (before_s + script_step_s(rival, options.steps, cores)) / 2}
    return found


def judged(runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Ratio of each rival's row to its script over all runs, and whether it is within 2 %."""
    from xbench.stats.compare import BlockValue, paired_ratio

    table = {}
    for rival in runs[0]:
        script, row = (
            [BlockValue(number, 0, run[rival][side]) for number, run in enumerate(runs)] for side in ("script", "row")
        )
        ratio = paired_ratio(row, script, WITHIN)
        low, high = ratio.ci95
        table[rival] = {
            "row_over_script": ratio.model_dump(),
            "within_2_percent": abs(ratio.value - 1) <= WITHIN,
            "interval_within_2_percent": low >= 1 - WITHIN and high <= 1 + WITHIN,
        }
    return table


def kept_runs(path: Path | None, command: str) -> list[dict[str, dict[str, float]]]:
    """Runs that an interrupted benchmark has written to `path`. Exits if they are those of another command."""
    if path is None or not path.exists():
        return []
    kept = json.loads(path.read_text())
    if (kept["command"], kept["image_px"]) != (command, PX):
        sys.exit(f"{path} is of another benchmark ({kept['command']}, {kept['image_px']} px): name another --output")
    runs: list[dict[str, dict[str, float]]] = kept["runs"]
    return runs


def rivals_here(text: str) -> list[str]:
    """The rivals that are named and can run here. Raises ArgumentTypeError for an unknown one."""
    named = text.split(",")
    unknown = [rival for rival in named if rival not in RIVALS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(RIVALS)}")
    from xbench import horovod

    why = horovod.obstacle() if "horovod" in named else None
    if why is not None:
        print(f"horovod is left out: {why}", flush=True)
    return [rival for rival in named if rival != "horovod" or why is None]


def measure(options: argparse.Namespace) -> None:
    """Run what is left of the benchmark, write it after each run, and print the ratios."""
    from xbench import environment
    from xbench.fabrics.fabric import available_cores

    cores = available_cores()[:RANKS]
    os.sched_setaffinity(0, cores)  # else xbench gives a rank all cores of its share, and a script one
    options.rivals = rivals_here(options.rivals)
    words = f"--runs {options.runs} --steps {options.steps} --rounds {options.rounds} --rivals"
    command = f"python benchmarks/plain_scripts.py {words} {','.join(options.rivals)}"
    runs = kept_runs(options.output, command)
    result = {"command": command, "label": "real", "image_px": PX}
    for number in range(len(runs), options.runs):
        since_s = time.monotonic()
        runs.append(one_run(options, cores))
        told = ", ".join(f"{rival} {run['row'] / run['script']:.3f}" for rival, run in runs[-1].items())
        print(f"run {number + 1} of {options.runs}, {time.monotonic() - since_s:.0f} s: {told}", flush=True)
        if options.output is not None:
            captured = environment.capture().model_dump()
            kept = result | {"rivals": judged(runs), "runs": runs, "environment": captured}
            options.output.write_text(json.dumps(kept, indent=1) + "\n")
    for rival, row in judged(runs).items():
        ratio, whole = row["row_over_script"], row["interval_within_2_percent"]
        low, high = ratio["ci95"]
        print(f"{rival}: row over script {ratio['value']:.3f} [{low:.3f}, {high:.3f}], "
              f"within 2 %: {row['within_2_percent']}, the whole interval: {whole}")  # fmt: skip


def main() -> None:
    """Be one rank of a script, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2, help="blocks of each row in a run")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--script", choices=RIVALS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cores", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.script is not None:
        rank(options.script, options.steps, [int(core) for core in options.cores.split(",")], options.folder)
    else:
        measure(options)


if __name__ == "__main__":
    main()
