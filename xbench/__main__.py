"""`python -m xbench`, which torchrun needs: `torchrun ... -m xbench compare`."""

import atexit
import os
import sys
from contextlib import suppress
from pathlib import Path

from xbench.streams import secure


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


if __name__ == "__main__":
    run()
