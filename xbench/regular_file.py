"""Reading a file that somebody else wrote: a regular one, and no more of it than was bargained for.

A FIFO would be waited for without end, a device or a sparse file would fill the memory. Compressed files are bounded by
what they unpack to.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Protocol

MIB = 2**20


class Readable(Protocol):
    """Readable source of bytes: a file, or a compressed stream."""

    def read(self, size: int, /) -> bytes:
        """At most that many bytes."""
        ...


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file of at most `most_bytes`. A link to one is followed.

    Raises OSError, whose `strerror` says what is wrong: not there, not readable, no regular file, too large.
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
    """All bytes of a stream that has at most `most_bytes`. Raises OSError for one that has more."""
    chunks = []
    left = most_bytes + 1
    while left and (chunk := stream.read(min(left, MIB))):
        chunks.append(chunk)
        left -= len(chunk)
    if not left:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes // MIB} MiB", name)
    return b"".join(chunks)
