"""CUDA's Multi-Process Service (MPS): whether its control daemon runs on this machine.

A CUDA program connects to the daemon's socket `control` when it starts, and becomes a client of MPS if that succeeds.
The socket is in CUDA_MPS_PIPE_DIRECTORY, or in /tmp/nvidia-mps. Under MPS the kernels of several processes run on a GPU
at the same time. Without it the processes share the GPU by time slices.

The socket's file stays when the daemon ends, and its process id means nothing in another container. So the socket
itself is asked. The question is a connection of the wrong type, which the kernel refuses in one way if a process
listens and in another way if none does. The daemon does not notice.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from pathlib import Path

DIRECTORY = "/tmp/nvidia-mps"
VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


def is_running(environ: Mapping[str, str] = os.environ) -> bool:
    """True if the control daemon that CUDA would use listens."""
    path = Path(environ.get(VARIABLE) or DIRECTORY) / "control"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as question:
        try:
            question.connect(os.fspath(path))
        except OSError as error:
            return error.errno == errno.EPROTOTYPE
    return True
