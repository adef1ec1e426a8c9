"""A command under a terminal of its own: `python terminal.py FOLDER COMMAND…` copies what it says to our stderr.

A file in FOLDER tells what the user does: `ctrl-c`, `ctrl-c2`, `ctrl-z` (and `fg` after three seconds),
`ctrl-backslash`, `resize` (five sizes, some absurd) or `hangup` (the terminal is closed). Ends with the command's exit
code, or 128 and the signal that ended it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

DOES = ("ctrl-c", "ctrl-c2", "ctrl-z", "ctrl-backslash", "resize", "hangup")
SIZES = ((1, 1), (1, 5), (30, 40), (30, 400), (0, 0))


def _resize(terminal: int, lines: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def _do(what: str, terminal: int, child: int) -> None:
    if what.startswith("ctrl-c"):
        os.write(terminal, b"\x03")
        if what == "ctrl-c2":
            time.sleep(0.2)
            os.write(terminal, b"\x03")
    elif what == "ctrl-z":
        os.write(terminal, b"\x1a")
        time.sleep(3)
        os.killpg(child, signal.SIGCONT)
    elif what == "ctrl-backslash":
        os.write(terminal, b"\x1c")
    elif what == "resize":
        for lines, columns in SIZES:
            _resize(terminal, lines, columns)
            time.sleep(0.2)
    elif what == "hangup":
        os.close(terminal)


def main(folder: Path, command: list[str]) -> int:
    """Run the command to its end."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(command[0], command)
    _resize(terminal, 30, 120)
    is_open = True
    while True:
        for what in DOES:
            if (folder / what).exists():
                (folder / what).unlink()
                _do(what, terminal, child)
                is_open = is_open and what != "hangup"
        if not is_open:
            time.sleep(0.05)
        elif select.select([terminal], [], [], 0.05)[0]:
            try:
                sys.stderr.buffer.write(os.read(terminal, 65536))
                sys.stderr.buffer.flush()
            except OSError:
                is_open = False
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
