import json
import os
import signal
import subprocess
import sys
import time

import pytest

from xbench.errors import SpecError
from xbench.fabrics import open_fabric
from xbench.fabrics.fabric import HostSlot
from xbench.launch import agent_log
from xbench.launch.launcher import AuxiliaryCommand, agent_command, disk_full, launch, rank_env
from xbench.launch.processes import GUARD, ProcessGroups
from xbench.rank.journal import pid_alive
from xbench.spec import FabricSpec

RAISED = """\
W0101 09:00:00.000000 1 torch/distributed/run.py:1] *****************************************
Traceback (most recent call last):
  File "a.py", line 1, in f
    int("x")
ValueError: invalid literal for int() with base 10: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    f()
RuntimeError: the batch is broken
E0101 09:00:01.000000 1 torch/distributed/api.py:984] failed (exitcode: 1) local_rank: 0 (pid: 77) of binary: python
Traceback (most recent call last):
  File "run.py", line 1, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""


def test_the_last_words_are_those_of_the_exception_that_ended_it():
    assert agent_log.last_words(RAISED) == "RuntimeError: the batch is broken"
    assert agent_log.exit_codes(RAISED) == {77: 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", None),
        ("\n  \n", None),
        ("/bin/python: No module named nothing\n", "/bin/python: No module named nothing"),
        (
            "Traceback (most recent call last):\n  File x\nA: 1\nTraceback (most recent call last):\n  File y\nB: 2\n",
            "A: 1",
        ),
        ("Traceback (most recent call last):\n  File x\n", "  File x".strip()),
        (
            "free(): invalid pointer\nE0101 a] failed (exitcode: -6) local_rank: 1 (pid: 5) of x\n",
            "free(): invalid pointer",
        ),
        (
            "Traceback (most recent call last):\n  File x\nA: 1\nfailed (exitcode: 1) local_rank: 0 (pid: 5)\n",
            "A: 1",
        ),
    ],
)
def test_last_words(text, words):
    assert agent_log.last_words(text) == words


def test_how_a_rank_ended():
    text = "] failed (exitcode: -11) local_rank: 3 (pid: 9) of binary\nW] Sending process 8 closing signal SIGTERM\n"
    assert agent_log.exit_codes(text) == {9: -11}
    assert agent_log.stopped_by_agent(text) == {8}
    assert agent_log.describe_exit(-11) == "was killed (SIGSEGV)"
    assert agent_log.describe_exit(-99) == "was killed (signal 99)"
    assert agent_log.describe_exit(4) == "ended with exit code 4"
    assert agent_log.describe_exit(None) == "disappeared"


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.87.0.2]:1", True),
        ("Timed out waiting 1800000ms for recv operation to complete", True),
        ("NCCL error: remote process exited or there was a network error", True),
        ("ValueError: shapes differ", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
    ],
)
def test_the_loss_of_a_peer_is_told_from_errors_of_ones_own(said, lost):
    assert bool(agent_log.PEER_LOSS.search(said)) is lost


def test_the_tail_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert agent_log.tail(log) == ""
    log.write_text("a" * agent_log.TAIL_BYTES + "the end")
    assert len(agent_log.tail(log)) == agent_log.TAIL_BYTES
    assert agent_log.tail(log).endswith("the end")


def test_one_agent_starts_the_ranks_of_a_job_on_a_host(tmp_path):
    with open_fabric(FabricSpec(name="local", ranks=2)) as fabric:
        argv = agent_command(fabric, fabric.hosts[0], 1, 4711, "some.module", tmp_path / "plan.json", tmp_path)
        assert argv[:3] == [sys.executable, "-I", "-S"]
        assert argv[4:9] == ["1", "2", "0", "127.0.0.1", "4711"]  # hosts, ranks a host, this host, where they meet
        assert argv[-7:] == [
            "-m",
            "some.module",
            str(tmp_path / "plan.json"),
            "--job",
            "1",
            "--directory",
            str(tmp_path),
        ]

        env = rank_env(fabric.hosts[0], {"RANK": "3", "MASTER_PORT": "1", "HOME": "/h", "OMP_NUM_THREADS": "64"})
        assert "RANK" not in env
        assert "MASTER_PORT" not in env
        assert env["HOME"] == "/h"
        assert env["OMP_NUM_THREADS"] == fabric.hosts[0].env["OMP_NUM_THREADS"]
        assert json.loads(env["XBENCH_CORES"]) == [list(cores) for cores in fabric.hosts[0].cores]
    with open_fabric(FabricSpec(name="local", ranks=2), device="cuda") as fabric:
        assert "XBENCH_CORES" not in rank_env(fabric.hosts[0], {"XBENCH_CORES": "[[0]]"})


def test_a_fabric_without_hosts_launches_nothing(tmp_path):
    with open_fabric(FabricSpec(name="cluster")) as fabric, pytest.raises(SpecError, match="started by torchrun"):
        launch(fabric, 1, "m", tmp_path / "a", tmp_path, on_event=lambda *event: None, silence_s=1)


def test_an_auxiliary_process_is_called_by_its_module():
    assert AuxiliaryCommand(0, ["/bin/python", "-m", "xbench.crossover.arbiter", "--jobs", "2"]).name == "arbiter"
    assert AuxiliaryCommand(0, ["/usr/bin/sleep", "1"]).name == "sleep"


def test_a_full_disk_is_seen(tmp_path, monkeypatch):
    assert not disk_full(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 4096}))
    assert disk_full(tmp_path)


def test_the_guard_pins_and_becomes_the_command():
    core = min(os.sched_getaffinity(0))
    env = {**os.environ, "XBENCH_CORES": json.dumps([[], [core]]), "LOCAL_RANK": "1"}
    body = "import os; print(os.sched_getaffinity(0), os.getpid())"
    process = subprocess.Popen(
        [*GUARD, "any", sys.executable, "-S", "-c", body], env=env, stdout=subprocess.PIPE, text=True
    )
    said, _ = process.communicate()
    assert said == f"{{{core}}} {process.pid}\n"


def test_the_guard_refuses_a_parent_that_is_not_ours():
    assert subprocess.run([*GUARD, "1", sys.executable, "-c", "print('never')"], capture_output=True).stdout == b""


def test_what_is_guarded_dies_with_its_parent(tmp_path):
    body = (
        "import subprocess, sys, time\n"
        "from xbench.launch.processes import GUARD\n"
        "child = subprocess.Popen([*GUARD, 'any', '/bin/sleep', '600'])\n"
        "time.sleep(0.5)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert pid_alive(child)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while pid_alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not pid_alive(child)


STUBBORN = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "inner = subprocess.Popen(['/bin/sleep', '600'], start_new_session=True)\n"
    "print(os.getpid(), inner.pid, flush=True)\n"
    "time.sleep(600)\n"
)


def test_stop_leaves_neither_the_stubborn_nor_sessions_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("xbench.launch.processes.TERMINATE_S", 0.2)
    groups = ProcessGroups()
    log = tmp_path / "log"
    groups.start("stubborn", 0, None, [], [sys.executable, "-S", "-c", STUBBORN], os.environ, log)
    while len(log.read_text().split()) < 2:
        time.sleep(0.01)
    pids = [int(word) for word in log.read_text().split()]
    groups.stop()
    assert not any(pid_alive(pid) for pid in pids)
    assert groups.started[0].process.returncode == -signal.SIGKILL
    groups.stop()


def test_math_threads_of_jobs_that_share_cores_sleep_between_their_work() -> None:
    def slot(*cores: tuple[int, ...]) -> HostSlot:
        return HostSlot(0, "localhost", (), "127.0.0.1", "lo", cores)

    assert rank_env(slot((0, 1)), {}, jobs=2)["OMP_WAIT_POLICY"] == "PASSIVE"
    assert rank_env(slot((0, 1)), {"OMP_WAIT_POLICY": "ACTIVE"}, jobs=2)["OMP_WAIT_POLICY"] == "ACTIVE"
    for cores, jobs in (((0, 1), 1), ((0,), 2)):
        assert "OMP_WAIT_POLICY" not in rank_env(slot(cores), {}, jobs=jobs)
