"""Start and end of a host's arbiter, for the process that starts the jobs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from xbench.errors import RunError

END_S = 5.0
"""Time [s] that an arbiter gets to end before it is killed."""


@contextlib.contextmanager
def running_arbiter(socket_path: Path, jobs: int, devices: int) -> Iterator[subprocess.Popen[str]]:
    """An arbiter that listens at `socket_path` during the body of a `with`.

    It ends with the body, or when this process dies. It has its own session, so that Ctrl-C reaches the jobs first and
    they end in order. Raises RunError if it cannot start.
    """
    command = [sys.executable, "-m", "xbench.crossover.arbiter", "--until-stdin-ends"]
    command += ["--socket", str(socket_path), "--jobs", str(jobs), "--devices", str(devices)]
    arbiter = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert arbiter.stdout is not None
        assert arbiter.stderr is not None
        if arbiter.stdout.readline() != "ready\n":
            lines = arbiter.stderr.read().strip().splitlines()
            raise RunError(lines[-1] if lines else "the turn arbiter ended before it was ready")
        yield arbiter
    finally:
        arbiter.terminate()
        try:
            arbiter.wait(END_S)
        except subprocess.TimeoutExpired:
            arbiter.kill()
            arbiter.wait()
        for stream in (arbiter.stdin, arbiter.stdout, arbiter.stderr):
            if stream is not None:
                stream.close()
