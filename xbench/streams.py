"""Protection of a process's three standard streams, applied before anything else is opened.

The next opened file would take a closed descriptor (`>&-`), and output would end up in that file. A reader that leaves
(`| head`) would end a run of hours with a broken pipe. `secure` opens /dev/null for a closed descriptor, and ignores
the loss of a reader: neither changes what is measured, saved or returned. Standard library alone.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

_DESCRIPTORS = ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY))


class _Forgiving(io.FileIO):
    """A descriptor that is redirected to /dev/null when a write fails with `forgiven`, an errno; None: with any."""

    def __init__(self, descriptor: int, forgiven: int | None) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._forgiven = forgiven

    def write(self, data: Any, /) -> int:
        """Write as FileIO does. All of `data` counts as written once there is no reader."""
        try:
            return super().write(data)
        except OSError as error:
            if self._forgiven not in (None, error.errno):
                error.filename = "standard output"
                raise
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
        return memoryview(data).nbytes


def secure() -> None:
    """Open closed descriptors of 0 to 2, and let readers of stdout and stderr leave.

    Other errors on stdout (a full disk) are still raised.
    """
    for descriptor, flags in _DESCRIPTORS:
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)  # the lowest free descriptor, which is this one
            os.set_inheritable(opened, True)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", errors="replace", closefd=False)
    sys.stdout = _forgiving(1, sys.stdout, errno.EPIPE)
    sys.stderr = _forgiving(2, sys.stderr, None)  # an error on stderr cannot be reported


def _forgiving(descriptor: int, stream: TextIO | None, forgiven: int | None) -> TextIO:
    """A text stream like the interpreter's own (None: it was closed), over a forgiving descriptor."""
    raw = _Forgiving(descriptor, forgiven)
    if not isinstance(stream, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
