"""`python -m xbench`, which torchrun needs: `torchrun ... -m xbench compare`. It protects the standard streams first.

The next opened file would take a closed descriptor (`>&-`), and output would end up in that file. A reader that leaves
(`| head`) would end a run of hours with a broken pipe. `secure` opens /dev/null for a closed descriptor, and ignores
the loss of a reader: neither changes what is measured, saved or returned.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO


def run() -> None:
    """Run the command line and end the process. The standard streams come first, before any file is opened."""
    secure()
    _share_with_children()
    from xbench.cli import main
    from xbench.errors import Interrupted
    from xbench.interrupts import ignore_interrupts

    try:
        code = main()
    except KeyboardInterrupt:  # one more, while main told of the first
        code = Interrupted.exit_code
    ignore_interrupts()
    if code or "torch" in sys.modules:
        _end_at_once(code)
    sys.exit(code)


def _share_with_children() -> None:
    """Let the processes that we start import this xbench where `python -m` found it in the current folder.

    Some of them do not look there, because a user's file may have the name of a module of the standard library.
    """
    root = str(Path(__file__).resolve().parents[1])
    if sys.path and str(Path(sys.path[0]).resolve()) == root:
        parts = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(parts))


def _end_at_once(code: int) -> None:
    """End the process with this code, whatever an interpreter that ends in peace would make of it.

    It would write again to a stdout that is full, and say 120. `python -m` would die of SIGINT where an interrupt came
    while an extension module ran Python code. And where others started this process as a rank, so that it has torch,
    threads and libraries of a backend would abort or chatter (dozens of lines about leaks).
    """
    if "torch" not in sys.modules:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


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


if __name__ == "__main__":
    run()
