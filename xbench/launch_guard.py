"""Guard of a command that must not outlive its parent. It is run by path, and uses the standard library alone.

    launch_guard.py PARENT COMMAND…      PARENT: the process id of the parent

It asks the kernel to kill this process when its parent dies (prctl PR_SET_PDEATHSIG, which a later exec keeps). It pins
the process to its own cores if the environment names them (XBENCH_CORES: a JSON list of lists by LOCAL_RANK). Then it
becomes COMMAND. With a guard before every agent, rank and probe, `kill -9` of xbench ends all of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

GUARD = (sys.executable, "-I", "-S", __file__)
"""The words before PARENT."""

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Guard and become the command. Raises OSError if the kernel refuses or the command does not exist."""
    parent, command = int(argv[0]), argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not tie a process to its parent")
    if os.getppid() != parent:  # it died before the prctl call
        sys.exit(1)
    cores, local_rank = os.environ.get("XBENCH_CORES"), os.environ.get("LOCAL_RANK")
    if cores and local_rank is not None:
        os.sched_setaffinity(0, json.loads(cores)[int(local_rank)])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
