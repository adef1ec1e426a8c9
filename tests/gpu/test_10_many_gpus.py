"""Several GPUs over NCCL: every schedule, T(M) against nccl-tests, and two jobs in one process against two.

On one GPU, where NCCL lets two ranks share it, only that they train the same network.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from runs import DEVICE, DRY, Keep, compared, errors, figures, middle

from xbench.gpu_errors import SHARING_VARIABLE, can_share
from xbench.modes import MODES, mode_info
from xbench.planning.cost import CostCurve
from xbench.records import Comparison
from xbench.traces.link import read_link
from xbench.workloads.preflight import software

GPUS = 0 if DRY else torch.cuda.device_count()
RANKS = 2 if DRY else GPUS
FABRIC = f"local:ranks={RANKS}"
WORKLOAD = "transformer-tiny" if DRY else "resnet50"
EFFORT = ("--quick", "--rounds", "1") if DRY else ("--launches", "1", "--rounds", "4")
TURNS = ("--quick", "--rounds", "1") if DRY else ("--launches", "1", "--rounds", "6")
CASES = ["bf16"] if DRY else ["none", "bf16"]
OFF = 0.25

SEVERAL = pytest.mark.skipif(bool(DEVICE) and RANKS < 2, reason="there are fewer than two GPUs")


def schedules() -> list[str]:
    """All schedules of one job, but another library's; some of them where this is small."""
    if DRY:
        return ["ddp", "auto", "spb"]
    ours = [mode for mode in MODES if not mode.paired and mode.library is None and not mode.compiled]
    return [mode.name for mode in ours] + ["spb:variant=temporal"]


def gates_of(record: Comparison) -> dict[str, dict[str, object]]:
    """The parity of each mode that trains, which holds bit for bit on all ranks."""
    trained = {name: mode for name, mode in record.modes.items() if mode_info(mode.mode.partition(":")[0]).trains}
    gates = {name: mode.parity for name, mode in trained.items()}
    assert all(gate is not None and gate.ok and gate.bitwise_across_ranks for gate in gates.values()), gates
    return {name: gate.model_dump() for name, gate in gates.items() if gate is not None}


@functools.cache
def measured(compress: str) -> Comparison:
    modes = ",".join(schedules())
    return compared(DEVICE, WORKLOAD, FABRIC, modes, "--compress", compress, *EFFORT)


@SEVERAL
@pytest.mark.parametrize("compress", CASES)
def test_every_schedule(compress: str, keep: Keep) -> None:
    record = measured(compress)
    found = figures(record)
    assert set(found) == set(schedules())
    gates = gates_of(record)
    steps = {name: mode.step_s.median for name, mode in record.modes.items() if mode.step_s is not None}
    whole = {name: step_s for name, step_s in steps.items() if mode_info(name.partition(":")[0]).equivalent_to_ddp}
    best = min(whole, key=lambda name: whole[name])
    off = errors(found)
    keep(
        f"gpus-{compress}", line=10, goal="every schedule trains what DDP trains, and auto is as fast as DDP",
        held=steps["auto"] <= 1.01 * steps["ddp"],
        finding=f"{WORKLOAD}, {RANKS} ranks over {record.fabric.backend}: auto takes "
        f"{steps['auto'] / steps['ddp']:.3f} of DDP's step, {best} {steps[best] / steps['ddp']:.3f}; median prediction "
        f"error {middle(off):.1%}, worst {max(off):.1%}",
        modes=found, gates=gates,
    )  # fmt: skip


@SEVERAL
@pytest.mark.skipif(DRY, reason="tests/integration/test_sharded.py runs this on a CPU")
def test_modes_of_torch(keep: Keep) -> None:
    modes = ["ddp", "replicate", "fsdp", "auto:shard", "zero1", *(["hsdp"] if RANKS >= 4 else [])]
    record = compared(DEVICE, WORKLOAD, FABRIC, ",".join(modes), *EFFORT)
    found = figures(record)
    assert set(found) == set(modes)
    assert set(gates_of(record)) == set(modes)
    keep(
        "gpus-sharded", line=10, goal="torch's sharded modes train what DDP trains", held=True,
        finding=f"{WORKLOAD}, {RANKS} ranks over {record.fabric.backend}: prediction errors "
        + ", ".join(f"{value:.1%}" for value in errors(found)), modes=found,
    )  # fmt: skip


def nccl() -> str | None:
    return software()["nccl"] if GPUS else None


@pytest.mark.skipif(
    GPUS != 1 or not can_share(nccl()), reason="this is for one GPU and an NCCL that lets ranks share it"
)
@pytest.mark.parametrize("modes", [schedules(), ["ddp", "replicate", "fsdp", "zero1"], ["sequential", "crossover"]])
def test_two_ranks_on_one_gpu_train_one_network(modes: list[str], keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels over NCCL is right. Its times are those of no machine: the ranks share one GPU."""
    monkeypatch.setenv(SHARING_VARIABLE, "1")
    effort = ("--quick", "--rounds", "1")
    record = compared(DEVICE, "transformer-tiny", "local:ranks=2", ",".join(modes), *effort)
    gates = gates_of(record)
    keep(
        f"gpus-shared-{modes[-1].partition(':')[0]}", line=10, goal="two ranks over NCCL train what DDP trains",
        held=True,
        finding=f"{', '.join(gates)}: two ranks over {record.fabric.backend} on one GPU, without times",
        gates=gates,
    )  # fmt: skip


def reference(record: Comparison, folder: Path) -> Path:
    """What nccl-tests says of these GPUs; on a CPU, a file of the very times that were measured."""
    path = folder / "times"
    if DRY:
        rows = [f"{point.nbytes},{point.transfer_s}" for point in record.cost_model.points]
        path.write_text("\n".join(["bytes,seconds", *rows]) + "\n")
        return path
    tool = shutil.which("all_reduce_perf")
    if tool is None:
        pytest.skip("nccl-tests' all_reduce_perf is not on PATH")
    words = [tool, "-b", "1K", "-e", "128M", "-f", "4", "-g", str(RANKS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    path.write_text(done.stdout)
    return path


@SEVERAL
def test_the_link_against_nccl_tests(keep: Keep, tmp_path: Path) -> None:
    record = measured(CASES[0])
    theirs = read_link(reference(record, tmp_path))
    points = record.cost_model.points
    curve = CostCurve.of(record.cost_model)
    sizes = [nbytes for nbytes in sorted(theirs.seconds) if points[0].nbytes <= nbytes <= points[-1].nbytes]
    rows = [{"nbytes": n, "ours_s": curve(float(n)), "theirs_s": middle(theirs.seconds[n])} for n in sizes]
    assert rows
    off = {row["nbytes"]: row["ours_s"] / row["theirs_s"] - 1 for row in rows}
    worst = max(off, key=lambda nbytes: abs(off[nbytes]))
    keep(
        "gpus-link", line=10, goal="T(M) within 25 % of nccl-tests, in place", held=abs(off[worst]) <= OFF,
        finding=f"median {middle([abs(value) for value in off.values()]):.1%} off; worst {off[worst]:+.1%} at "
        f"{worst} B", points=rows,
    )  # fmt: skip


@SEVERAL
def test_two_jobs_in_turns(keep: Keep, thorough: bool) -> None:
    if DRY and not thorough:
        pytest.skip("on a CPU it is run by make test-all")
    record = compared(DEVICE, WORKLOAD, FABRIC, "sequential,crossover", *TURNS)
    took = {name: mode.step_s.median for name, mode in record.modes.items() if mode.step_s is not None}
    gain = took["sequential"] / took["crossover"]
    keep(
        "gpus-crossover", line=10, goal="turns gain", held=gain > 1.0,
        finding=f"{WORKLOAD}, {RANKS} ranks over {record.fabric.backend}: {gain:.2f}× one after the other",
        modes=figures(record), gain=gain,
    )  # fmt: skip
