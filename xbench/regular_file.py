"""Bounded reading of files that other programs wrote: regular files only, and at most a given size.

Reading a FIFO could wait forever. A device or a sparse file could fill the memory. For compressed files, the bound is
on the unpacked size.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Protocol

MIB = 2**20


class Readable(Protocol):
    """Source of bytes: a file, or a compressed stream."""

    def read(self, size: int, /) -> bytes:
        """Return at most that many bytes."""
        ...


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file of at most `most_bytes`. A link to one is followed.

    Raises OSError whose `strerror` is the reason: missing, not readable, not a regular file, too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO without a writer opens at once
    with os.fdopen(descriptor, "rb") as stream:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return read_bounded(stream, most_bytes, str(path))


def read_bounded(stream: Readable, most_bytes: int, name: str) -> bytes:
    """Return all bytes of a stream of at most `most_bytes`. Raises OSError for a longer one."""
    chunks = []
    left = most_bytes + 1
    while left and (chunk := stream.read(min(left, MIB))):
        chunks.append(chunk)
        left -= len(chunk)
    if not left:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes // MIB} MiB", name)
    return b"".join(chunks)
