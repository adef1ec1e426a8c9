"""Hand a program that imports torch to a server that has torch already, and stand for it.

The import takes four seconds of a processor, which is half of what a rank of a small test needs. This process gives the
server its command, environment, streams and network namespace, forwards signals, and ends as the program does. Where
there is no server, or for any other program, it does nothing.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from typing import Any

PROGRAMS = (
    "xbench.workloads.preflight",
    "xbench.rank.main",
    "xbench.rank.converge",
    "xbench.regress.rank",
)
LENGTH = 8
"""Bytes of a length, a process id or a status on the connection."""

LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def hand_over(place: str) -> None:
    """Let the server at `place` run this process's program, and end with it. Returns if it is to run here."""
    words = sys.orig_argv[sys.orig_argv.index("-m") + 1 :]
    if words[0] not in PROGRAMS:
        return
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(place)
    except OSError:
        return
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    held = [int(number) for number in os.environ.get("XBENCH_HELD", "").split()]
    request = json.dumps(_request(words)).encode()
    socket.send_fds(connection, [len(request).to_bytes(LENGTH, "big")], [0, 1, 2, namespace, *held])
    connection.sendall(request)
    pid = _number(connection)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda given, _: os.kill(pid, given))
    _end_as(_number(connection))


def _request(words: list[str]) -> dict[str, Any]:
    first = [] if sys.flags.safe_path else [os.getcwd()]
    return {
        "words": words,
        "original": sys.orig_argv,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": [*first, *sys.path],
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
    }


def _number(connection: socket.socket) -> int:
    data = b""
    while len(data) < LENGTH:
        part = connection.recv(LENGTH - len(data))
        if not part:
            sys.exit("the server of warm processes is gone")
        data += part
    return int.from_bytes(data, "big")


def _end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
        signal.pause()
    os._exit(os.waitstatus_to_exitcode(status))
