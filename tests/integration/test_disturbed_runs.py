"""Runs whose links or ranks change while modes are timed: the record says so. And where the ranks listen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from typed_commands import NETNS, TINY, command, comparison, in_phase, pid_of, started, wait_for

from xbench.fabrics import links
from xbench.rank.journal import JournalReader
from xbench.records import Comparison

pytestmark = pytest.mark.integration

BLOCKS = ("--launches", "1", "--rounds", "2", "--modes", "ddp,wfbp")


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A comparison that has come to its blocks."""
    words = command("compare", TINY, *BLOCKS, *arguments)
    run = started(words, folder)
    try:
        wait_for(run, in_phase(folder, "round 1"))
        yield run
    finally:
        run.kill() if run.poll() is None else None
        run.wait()


def wait_for_a_timed_step(folder: Path) -> None:
    """Until rank 1 is in the middle of a block."""
    (launch,) = folder.glob("*/launch0")
    reader = JournalReader(launch, 0, 1)
    deadline_s = time.monotonic() + 60
    while not re.search(r"round \d \w+ step [23]\d", (reader.state() or (0.0, ""))[1]):
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def listening(run: subprocess.Popen[str]) -> set[str]:
    """The addresses on which the processes of a run listen."""
    return {
        connection.laddr.ip
        for process in psutil.Process(run.pid).children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def ended(run: subprocess.Popen[str], folder: Path) -> tuple[int, str, Comparison]:
    stdout, stderr = run.communicate(timeout=120)
    record = comparison(folder)
    return run.returncode, stdout + stderr, record


@NETNS
@pytest.mark.netns
def test_a_link_that_was_changed_ends_the_run_and_the_record_is_incomplete(tmp_path: Path) -> None:
    with running(tmp_path, "--fabric", "shaped:hosts=2,rate=1gbit") as run:
        assert listening(run) <= {links.address(0), links.address(1)}
        identify = ["ip", "netns", "identify", str(pid_of(tmp_path, 1))]
        space = subprocess.run(identify, capture_output=True, text=True, check=True).stdout.strip()
        # The burst stays: a packet that waits and is larger than a new burst would never be sent.
        shaping = links.shaping(links.INTERFACE, 1e9).replace("add", "replace").replace("1000000000", "500000000")
        links.run(["tc", "-n", space, "-batch", "-"], f"{shaping}\n")
        code, said, record = ended(run, tmp_path)
    assert code == 1, said[-2000:]
    assert not record.complete
    assert record.error.startswith(
        "the links changed while ranks used them: the shaping of host 1's end of its link changed from tbf at 1.00 "
        "Gbit/s"
    )
    assert "to tbf at 500 Mbit/s" in record.error
    assert record.error in record.warnings
    assert f"error: {record.error}" in said
    assert record.samples  # kept, in a record that says what they are


def test_a_rank_that_was_stopped_for_a_moment_is_told_and_nothing_listens_for_others(tmp_path: Path) -> None:
    with running(tmp_path, "--fabric", "local:ranks=2") as run:
        assert listening(run) == {"127.0.0.1"}
        rank = pid_of(tmp_path, 1)
        wait_for_a_timed_step(tmp_path)
        os.kill(rank, signal.SIGSTOP)
        time.sleep(2)
        os.kill(rank, signal.SIGCONT)
        code, said, record = ended(run, tmp_path)
    assert code == 0, said[-2000:]
    assert record.complete
    (told,) = [sentence for sentence in record.warnings if "stood still" in sentence]
    assert re.match(r"(ddp|wfbp), round \d: step \d+ took ", told)
    (longest,) = [step_s for sample in record.samples for step_s in sample.steps_s if step_s > 1]
    assert f" took {longest:.2f} s where a step takes " in told
    assert told in " ".join(said.split())  # wrapped
