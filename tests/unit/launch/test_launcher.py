"""The parent starts ranks, and leaves no process."""

from __future__ import annotations

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
from xbench.launch.launcher import ProcessGroups, agent_command, disk_full, launch, rank_env
from xbench.launch_guard import GUARD
from xbench.rank.journal import pid_alive
from xbench.spec import FabricSpec


def test_one_agent_starts_the_ranks_of_a_job_on_a_host(tmp_path):
    with open_fabric(FabricSpec(name="local", ranks=2)) as fabric:
        argv = agent_command(fabric, fabric.hosts[0], 1, 4711, "some.module", tmp_path / "plan.json", tmp_path)
        assert argv[:3] == [sys.executable, "-I", "-S"]
        assert argv[4:9] == ["1", "2", "0", "127.0.0.1", "4711"]  # hosts, ranks a host, this host, where they meet
        argument, directory = str(tmp_path / "plan.json"), str(tmp_path)
        assert argv[-7:] == ["-m", "some.module", argument, "--job", "1", "--directory", directory]
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


def test_a_full_disk_is_seen(tmp_path, monkeypatch):
    assert not disk_full(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 4096}))
    assert disk_full(tmp_path)


def test_the_guard_pins_and_becomes_the_command():
    core = min(os.sched_getaffinity(0))
    env = {**os.environ, "XBENCH_CORES": json.dumps([[], [core]]), "LOCAL_RANK": "1"}
    body = "import os; print(os.sched_getaffinity(0), os.getpid())"
    process = subprocess.Popen(
        [*GUARD, str(os.getpid()), sys.executable, "-S", "-c", body], env=env, stdout=subprocess.PIPE, text=True
    )
    said, _ = process.communicate()
    assert said == f"{{{core}}} {process.pid}\n"


def test_the_guard_refuses_a_parent_that_is_not_ours():
    assert subprocess.run([*GUARD, "1", sys.executable, "-c", "print('never')"], capture_output=True).stdout == b""


def test_what_is_guarded_dies_with_its_parent(tmp_path):
    body = (
        "import os, subprocess, sys, time\n"
        "from xbench.launch_guard import GUARD\n"
        "child = subprocess.Popen([*GUARD, str(os.getpid()), '/bin/sleep', '600'])\n"
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
    monkeypatch.setattr("xbench.launch.launcher.TERMINATE_S", 0.2)
    groups = ProcessGroups()
    log = tmp_path / "log"
    groups.start([], [sys.executable, "-S", "-c", STUBBORN], os.environ, log)
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
