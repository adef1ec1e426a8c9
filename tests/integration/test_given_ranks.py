"""Ranks that other engines started: torchrun by hand in network namespaces, mpirun, srun's and mpiexec's variables.

Nothing of our launcher is involved: namespaces are made with plain `ip`, processes with plain `subprocess`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from typed_commands import NETNS, TINY, command, comparison, events, only_record, results_in

from xbench.records import load

pytestmark = pytest.mark.integration
SHORT = ("--quick", "--rounds", "1", "--seq-len", "8", "--batch-size", "2")
LAUNCH = Path(__file__).parents[2] / "examples" / "launch"
MPIRUN = shutil.which("mpirun")
AROUND = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "HOROVOD_", "TORCHELASTIC_")


def clean_environment(results: Path, **more: str) -> dict[str, str]:
    """Ours with a folder for runs, without what another engine around the tests may have set."""
    kept = {name: value for name, value in results_in(results).items() if not name.startswith(AROUND)}
    return kept | {"OMP_NUM_THREADS": "1"} | more


@contextmanager
def running(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> Iterator[list]:
    """Processes, each in a session of its own, of which none outlives the body."""
    started = [
        subprocess.Popen(
            list(words),
            env=dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for words, env in zip(commands, environments, strict=True)
    ]
    try:
        yield started
    finally:
        for one in started:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.communicate()


def ended(processes: Sequence[subprocess.Popen], timeout_s: float = 240) -> list[tuple[int, str]]:
    """(exit code, stderr) of each."""
    deadline = time.monotonic() + timeout_s
    found = []
    for one in processes:
        _, stderr = one.communicate(timeout=max(1.0, deadline - time.monotonic()))
        found.append((one.returncode, stderr))
    return found


# --- torchrun by hand in network namespaces --------------------------------------------------------------------------


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Three namespaces at 10.77.0.1 to 10.77.0.3, on a bridge in a fourth; removed whatever happens."""
    run_id = f"eng{secrets.token_hex(3)}"
    bridge, hosts = f"{run_id}-b", [f"{run_id}-{number}" for number in range(3)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        ip("netns", "add", bridge)
        ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", bridge, "link", "set", "br0", "up")
        for number, host in enumerate(hosts):
            ip("netns", "add", host)
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "add", "eth7", "type", "veth", "peer", "name", f"p{number}", "netns", bridge)
            ip("-n", bridge, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth7")
            ip("-n", host, "link", "set", "eth7", "up")
        yield hosts
    finally:
        for name in [*hosts, bridge]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def torchruns(hosts: Sequence[str], ranks: int, *arguments: str) -> list[list[str]]:
    """One torchrun in each namespace, as a user would start them."""
    meeting = ["--master-addr", "10.77.0.1", "--master-port", "29512"]
    return [
        ["ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)),
         "--node-rank", str(number), "--nproc-per-node", str(ranks), "--local-addr", f"10.77.0.{number + 1}",
         *meeting, "-m", "xbench", *arguments]
        for number, host in enumerate(hosts)
    ]  # fmt: skip


@NETNS
@pytest.mark.netns
def test_torchrun_by_hand_in_three_namespaces(tmp_path: Path, namespaces: list[str]) -> None:
    short = ("--quick", "--launches", "2", "--rounds", "1")  # three hosts share two cores
    words = ["compare", "synthetic:layers=3,bytes=16k", *short, "--modes", "ddp,wfbp"]
    with running(torchruns(namespaces, 1, *words), [clean_environment(tmp_path)] * 3) as hosts:
        results = ended(hosts)
    assert [code for code, _ in results] == [0] * 3, results
    record = comparison(tmp_path)
    assert (record.fabric.name, record.fabric.hosts, record.fabric.world_size) == ("cluster", 3, 3)
    assert record.complete
    assert {mode.status for mode in record.modes.values()} == {"ok"}
    assert "Gloo uses eth7, which leads to the other ranks" in record.fabric.notes
    assert ["record: " in said for _, said in results] == [True, False, False]  # one rank speaks
    assert "1 launch in place of 2: another program started the ranks" in results[0][1]


@pytest.mark.parametrize(
    "program",
    [
        ["bash", str(LAUNCH / "torchrun.sh")],
        pytest.param(
            [sys.executable, str(LAUNCH / "ray_ranks.py")],
            marks=pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'ray>=2.9'"),
        ),
    ],
    ids=["torchrun", "ray"],
)
def test_a_launch_file_runs_the_comparison_that_it_is_given(tmp_path: Path, program: list[str]) -> None:
    words = ["compare", "synthetic:layers=3,bytes=16k", "--quick", "--rounds", "1"]
    place = {"NODES": "1", "RANKS": "2", "GPUS": "0", "PYTHON": sys.executable, "PYTHONPATH": str(LAUNCH.parents[1]),
             "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}  # fmt: skip
    with running([[*program, *words]], [clean_environment(tmp_path, **place)]) as hosts:
        results = ended(hosts)
    assert [code for code, _ in results] == [0], results
    assert results[0][1].count("record: ") == 1  # one rank speaks
    assert "leaked" not in results[0][1]  # what libraries say when an interpreter ends is no result
    record = comparison(tmp_path)
    assert record.complete
    assert (record.fabric.name, record.fabric.world_size) == ("cluster", 2)


@NETNS
@pytest.mark.netns
def test_two_jobs_in_every_rank_of_torchrun(tmp_path: Path, namespaces: list[str]) -> None:
    words = ["compare", TINY, *SHORT, "--modes", "sequential,crossover:wfbp"]
    with running(torchruns(namespaces[:2], 1, *words), [clean_environment(tmp_path)] * 2) as hosts:
        results = ended(hosts)
    assert [code for code, _ in results] == [0, 0], results
    record = comparison(tmp_path)
    assert (record.fabric.hosts, record.fabric.ranks_per_host, record.fabric.world_size) == (2, 1, 2)
    assert record.complete
    assert {mode.status for mode in record.modes.values()} == {"ok"}
    assert {(sample.mode, sample.job) for sample in record.samples} == {
        (name, job) for name in ("sequential", "crossover:wfbp") for job in (0, 1)
    }


# --- mpirun ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(MPIRUN is None, reason="mpirun is not installed (apt-get install openmpi-bin)")
def test_mpirun_on_one_machine(tmp_path: Path) -> None:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words = command("compare", TINY, *SHORT, "--modes", "ddp,wfbp")
    with running([[str(MPIRUN), *root, "--oversubscribe", "-np", "2", *words]], [clean_environment(tmp_path)]) as ranks:
        ((code, said),) = ended(ranks)
    assert code == 0, said
    record = comparison(tmp_path)
    assert (record.fabric.name, record.fabric.hosts, record.fabric.ranks_per_host) == ("cluster", 1, 2)
    assert record.complete
    assert "auto: mpirun started 2 ranks" in said
    assert said.count("record: ") == 1


# --- variables set by hand -------------------------------------------------------------------------------------------


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def srun(rank: int, world: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(world),
        "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": str(world),
    }  # fmt: skip


def mpiexec(rank: int, world: int) -> dict[str, str]:
    return {
        "PMI_RANK": str(rank), "PMI_SIZE": str(world), "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(world),
    }  # fmt: skip


def test_ranks_by_srun_s_variables(tmp_path: Path) -> None:
    words = command("profile", TINY, "--quick", "--seq-len", "8", "--batch-size", "2")
    environments = [clean_environment(tmp_path, **srun(rank, 2)) for rank in range(2)]
    with running([words] * 2, environments) as ranks:
        results = ended(ranks)
    assert [code for code, _ in results] == [0, 0], results
    record = only_record(tmp_path)
    assert (record.fabric.name, record.fabric.world_size) == ("cluster", 2)
    assert record.complete
    assert "auto: srun started 2 ranks" in results[0][1]
    assert results[1][1] == ""


def test_a_killed_rank_of_mpiexec_ends_the_others_and_the_record_is_kept(tmp_path: Path) -> None:
    words = command(
        "compare", TINY, "--quick", "--rounds", "400", "--modes", "ddp,wfbp",
        "--seq-len", "8", "--batch-size", "2", "--timeout", "30s",
    )  # fmt: skip
    environments = [clean_environment(tmp_path, **mpiexec(rank, 2), MASTER_ADDR="127.0.0.1") for rank in range(2)]
    port = free_port()
    with running([words] * 2, [one | {"MASTER_PORT": port} for one in environments]) as ranks:
        lines: list[str] = []
        for line in ranks[0].stderr:  # rounds are told as they begin
            lines.append(line)
            if "round 3" in line:
                break
        time.sleep(1.5)  # a beat, by which rank 0 has what rank 1 had measured
        ranks[1].kill()
        ((code, said),) = ended(ranks[:1], 60)
    assert code == 1, said
    assert "error: rank 1 on " in said, said
    assert "disappeared" in said
    record = comparison(tmp_path)
    assert not record.complete
    assert record.error.startswith("rank 1 on ")
    assert len(record.samples) >= 2


def test_rank_0_that_is_killed_takes_the_others_along_and_its_blocks_are_kept(tmp_path: Path) -> None:
    words = command(
        "compare", TINY, "--quick", "--rounds", "400", "--modes", "ddp",
        "--seq-len", "8", "--batch-size", "2",
    )  # fmt: skip
    with running([words] * 2, [clean_environment(tmp_path, **srun(rank, 2)) for rank in range(2)]) as ranks:
        for line in ranks[0].stderr:
            if "round 3" in line:
                break
        deadline_s = time.monotonic() + 30
        while len(events(tmp_path, 1, "block")) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.1)
        ranks[0].kill()
        ((code, said),) = ended(ranks[1:], 60)
    assert code == 1
    assert "xbench rank 1: " in said
    (folder,) = tmp_path.iterdir()
    assert not (folder / "record.json").exists()
    record = load(folder)
    assert not record.complete
    assert len(record.samples) >= 2


# --- wrong environments ----------------------------------------------------------------------------------------------


def test_no_ranks_for_the_cluster_fabric_is_one_sentence(tmp_path: Path) -> None:
    words = command("compare", TINY, "--fabric", "cluster")
    with running([words], [clean_environment(tmp_path)]) as ranks:
        ((code, said),) = ended(ranks, 60)
    assert code == 2, said
    assert "the cluster fabric needs ranks that an engine started, and there are none" in said
    assert len(said.strip().splitlines()) <= 2


def test_a_rank_whose_workload_does_not_build_is_named_by_rank_0(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import os\nimport torch\nfrom torch import nn\n\n\ndef make():\n"
        "    assert os.environ['SLURM_PROCID'] == '0', 'no data here'\n"
        "    return nn.Linear(4, 4), (torch.randn(2, 4), torch.randn(2, 4)), nn.functional.mse_loss\n"
    )
    words = command("compare", f"{script}:make", *SHORT[:3], "--modes", "ddp")
    with running([words] * 2, [clean_environment(tmp_path, **srun(rank, 2)) for rank in range(2)]) as ranks:
        results = ended(ranks, 90)
    assert [code for code, _ in results] == [1, 2], results
    assert "cannot take part: " in results[0][1]
    assert "no data here" in results[0][1]
    assert json.loads(next(tmp_path.glob("*/record.json")).read_text())["complete"] is False
