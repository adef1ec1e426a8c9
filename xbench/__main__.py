"""`python -m xbench`, which torchrun needs: `torchrun ... -m xbench compare`."""

import atexit
import os
import sys

from xbench.streams import secure


def run() -> None:
    """Run the command line and end the process. The standard streams come first, before any file is opened."""
    secure()
    from xbench.cli import main
    from xbench.errors import Interrupted
    from xbench.interrupts import ignore_interrupts

    try:
        code = main()
    except KeyboardInterrupt:  # one more, while main told of the first
        code = Interrupted.exit_code
    ignore_interrupts()
    if "torch" in sys.modules or code == Interrupted.exit_code:
        # In ranks that others started this process was a rank. Threads and libraries of a backend abort or chatter
        # (dozens of lines about leaks) while an interpreter ends in peace, so it ends at once. And `python -m` dies of
        # SIGINT, whatever the exit code, where an extension module was running Python code as the interrupt came.
        if "torch" not in sys.modules:
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
