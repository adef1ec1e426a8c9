"""Server of processes that have torch already: python warm_server.py SOCKET

It imports the packages of others that ranks import, and nothing of xbench. For each connection of `warm_client` it
forks a process that waits, and that one forks the program. So each program has an xbench, an environment and streams of
its own, as if it had been started by itself. A program ends when the process that stands for it does.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import resource
import runpy
import select
import signal
import socket
import sys
import traceback
from typing import Any

from warm_client import LENGTH

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
MOST_FDS = 64

libc = ctypes.CDLL(None, use_errno=True)


def main(place: str) -> None:
    """Import, and serve until the parent ends it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    gc.disable()
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import torch._dynamo
    import torch.distributed  # noqa: F401

    gc.freeze()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _wait_for_program(connection)
        connection.close()
        _reap()


def _reap() -> None:
    """Collect the children that have ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _wait_for_program(connection: socket.socket) -> None:
    """Fork the program, tell its process id and later its status, and kill it if the other side is gone."""
    length, fds, _, _ = socket.recv_fds(connection, LENGTH, MOST_FDS)
    data = b""
    while len(data) < int.from_bytes(length, "big"):
        part = connection.recv(1 << 20)
        if not part:  # the other side has ended
            os._exit(1)
        data += part
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(data), fds)
    for number in fds:
        os.close(number)
    ended = os.pidfd_open(pid)
    connection.sendall(pid.to_bytes(LENGTH, "big"))
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if ended in ready:
        connection.sendall(status.to_bytes(LENGTH, "big"))
    os._exit(0)


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """Be the program: take over what it was started with, and run it."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    for number in range(3):
        os.dup2(fds[number], number)
    own = os.stat("/proc/self/ns/net").st_ino
    if os.fstat(fds[3]).st_ino != own and libc.setns(fds[3], CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "the network namespace cannot be entered")
    for name, limits in request["limits"].items():
        resource.setrlimit(getattr(resource, name), tuple(limits))
    os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(request["cores"])))
    module = request["words"][0]
    sys.orig_argv[:] = request["original"]
    sys.argv = request["words"]
    sys.path[:] = request["path"]
    importlib.invalidate_caches()
    gc.enable()
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
