"""The agent: what ranks are told, that no rank outlives another's failure, and what its log says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xbench.launch import agent
from xbench.rank.journal import pid_alive


def run(program: str, *held: int) -> subprocess.CompletedProcess[str]:
    """Two ranks on one host."""
    command = [*agent.AGENT, "1", "2", "0", "10.0.0.1", "29400", sys.executable, "-S", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, pass_fds=held)


def test_ranks_are_told_what_torchrun_would_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert agent.rank_variables(2, 3, 1, 2, "10.0.0.1", "29400") == {
        "RANK": "5", "LOCAL_RANK": "2", "GROUP_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    assert "OMP_NUM_THREADS" not in agent.rank_variables(2, 1, 0, 0, "10.0.0.1", "29400")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in agent.rank_variables(1, 2, 0, 0, "10.0.0.1", "29400")


def test_ranks_hold_the_files_that_they_are_to_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    monkeypatch.setenv("XBENCH_HELD", f"{lock}")
    program = f"import os; os.fstat({lock})\ntry: os.fstat({other})\nexcept OSError: os.write(1, b'held\\n')"
    done = run(program, lock)
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
    done = run(program)
    pids = {int(pid) for pid in re.findall(r"^pid (\d+)$", done.stdout, flags=re.MULTILINE)}
    assert done.returncode == 1
    ((failed, seen),) = agent.exit_codes(done.stdout).items()
    assert seen == code
    assert agent.stopped_by_agent(done.stdout) == pids - {failed}
    assert not any(pid_alive(pid) for pid in pids)


@pytest.mark.parametrize("ending", ["raise SystemExit(0)", "os.kill(os.getpid(), 9)"])
def test_what_a_rank_has_started_ends_with_it(ending: str) -> None:
    program = (
        "import os, time\n"
        "child = os.fork()\n"
        "if child == 0:\n    os.close(1)\n    os.close(2)\n    time.sleep(60)\n"
        f"os.write(1, f'child {{child}}\\n'.encode())\n{ending}"
    )
    children = [int(pid) for pid in re.findall(r"child (\d+)", run(program).stdout)]
    assert children
    assert not any(pid_alive(pid) for pid in children)


TRACEBACK = "Traceback (most recent call last):\n"
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
    assert agent.last_words(RAISED) == "RuntimeError: the batch is broken"
    assert agent.exit_codes(RAISED) == {77: 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", None),
        ("\n  \n", None),
        ("/bin/python: No module named nothing\n", "/bin/python: No module named nothing"),
        (f"{TRACEBACK}  File x\nA: 1\n{TRACEBACK}  File y\nB: 2\n", "A: 1"),
        (f"{TRACEBACK}  File x\n", "File x"),
        ("free(): invalid\nE0101 a] failed (exitcode: -6) local_rank: 1 (pid: 5) of x\n", "free(): invalid"),
        (f"{TRACEBACK}  File x\nA: 1\nfailed (exitcode: 1) local_rank: 0 (pid: 5)\n", "A: 1"),
    ],
)
def test_last_words(text, words):
    assert agent.last_words(text) == words


def test_how_a_rank_ended():
    text = "] failed (exitcode: -11) local_rank: 3 (pid: 9) of binary\nW] Sending process 8 closing signal SIGTERM\n"
    assert agent.exit_codes(text) == {9: -11}
    assert agent.stopped_by_agent(text) == {8}
    assert agent.describe_exit(-11) == "was killed (SIGSEGV)"
    assert agent.describe_exit(-99) == "was killed (signal 99)"
    assert agent.describe_exit(4) == "ended with exit code 4"
    assert agent.describe_exit(None) == "disappeared"


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.87.0.2]:1", True),
        ("Timed out waiting 1800000ms for recv operation to complete", True),
        ("NCCL error: remote process exited or there was a network error", True),
        (None, False),
        ("ValueError: shapes differ", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
    ],
)
def test_the_loss_of_a_peer_is_told_from_errors_of_ones_own(said, lost):
    assert agent.lost_peers(said) is lost


def test_the_tail_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert agent.tail(log) == ""
    log.write_text("a" * agent.TAIL_BYTES + "the end")
    assert len(agent.tail(log)) == agent.TAIL_BYTES
    assert agent.tail(log).endswith("the end")
