"""The agent without torch: what ranks are told, and that no rank outlives another's failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xbench.launch import agent as plain_agent
from xbench.launch import agent_log
from xbench.rank.journal import pid_alive

AGENT = (sys.executable, "-I", "-S", str(Path(plain_agent.__file__)))


def agent(hosts: int, ranks: int, host: int, program: str) -> subprocess.CompletedProcess[str]:
    command = [*AGENT, str(hosts), str(ranks), str(host), "10.0.0.1", "29400", sys.executable, "-S", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_ranks_are_told_what_torchrun_would_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert plain_agent.rank_variables(2, 3, 1, 2, "10.0.0.1", "29400") == {
        "RANK": "5", "LOCAL_RANK": "2", "GROUP_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    assert "OMP_NUM_THREADS" not in plain_agent.rank_variables(2, 1, 0, 0, "10.0.0.1", "29400")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in plain_agent.rank_variables(1, 2, 0, 0, "10.0.0.1", "29400")


def test_all_ranks_run_and_end_well() -> None:
    done = agent(1, 2, 0, "import os; os.write(1, (os.environ['RANK'] + '\\n').encode())")
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == ["0", "1"]


def test_ranks_hold_the_files_that_they_are_to_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    monkeypatch.setenv("XBENCH_HELD", f"{lock}")
    program = f"import os; os.fstat({lock})\ntry: os.fstat({other})\nexcept OSError: os.write(1, b'held\\n')"
    command = [*AGENT, "1", "2", "0", "10.0.0.1", "29400", sys.executable, "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, pass_fds=(lock,))
    os.close(lock)
    os.close(other)
    assert (done.returncode, done.stdout.split()) == (0, ["held", "held"])


@pytest.mark.parametrize(("ending", "code"), [("raise SystemExit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])
def test_when_one_fails_the_others_are_ended_and_the_log_says_which(ending: str, code: int) -> None:
    program = (
        "import os, time\n"
        "os.write(1, f'pid {os.getpid()}\\n'.encode())\n"
        f"if os.environ['RANK'] == '1':\n    time.sleep(0.3)\n    {ending}\n"
        "time.sleep(60)"
    )
    done = agent(1, 2, 0, program)
    pids = {int(pid) for pid in re.findall(r"^pid (\d+)$", done.stdout, flags=re.MULTILINE)}
    assert done.returncode == 1
    ((failed, seen),) = agent_log.exit_codes(done.stdout).items()
    assert seen == code
    assert agent_log.stopped_by_agent(done.stdout) == pids - {failed}
    assert not any(pid_alive(pid) for pid in pids)
