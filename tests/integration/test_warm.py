"""Programs that a warm server runs (`tests/warm`) end as they would by themselves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.integration

PREFLIGHT = (sys.executable, "-P", "-m", "xbench.workloads.preflight")


def started() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(PREFLIGHT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def forked(warm_place: str) -> list[psutil.Process]:
    """The programs that the server has forked: children of its children."""
    (server,) = [one for one in psutil.Process().children() if warm_place in one.cmdline()]
    programs: list[psutil.Process] = []
    for waiting in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one of an earlier test has just ended
            programs += waiting.children()
    return programs


def test_an_answer_and_an_exit_code(warm_place: str) -> None:
    request = {"workloads": [], "device": "cpu", "ranks_per_host": 1, "local_rank": None}
    process = started()
    said, _ = process.communicate(json.dumps(request), timeout=60)
    assert (process.returncode, json.loads(said)["error"]) == (0, None)

    process = started()
    said, trace = process.communicate("this is no JSON", timeout=60)
    assert (process.returncode, said) == (1, "")
    assert trace.rstrip().splitlines()[-1].startswith("json.decoder.JSONDecodeError")


@pytest.mark.parametrize("killed", ["program", "stand-in"])
def test_a_killed_one(killed: str, warm_place: str) -> None:
    process = started()
    while not (programs := forked(warm_place)):
        time.sleep(0.01)
    (program,) = programs
    os.kill(program.pid if killed == "program" else process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    program.wait(60)
