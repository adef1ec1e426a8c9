"""Ranks of one script, forked from one process: `forked.py WORLD FOLDER SCRIPT ARGUMENT…`.

Torch takes seconds to import, and so does its compiler, which every optimizer and DDP import. Forked ranks import both
once. The million objects of both are left out of garbage collections, of which the end of DDP needs one. Each rank runs
the script as `__main__`, with RANK in its environment, and prints into FOLDER/RANK.txt.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import sys
from pathlib import Path

from xbench.interpreter import uncollected

with uncollected(program=True):
    import torch._dynamo  # noqa: F401 (see above)

    import xbench.schedules.engine  # noqa: F401


def run(rank: int, folder: Path) -> None:
    os.environ["RANK"] = str(rank)
    output = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    atexit.register(gc.unfreeze)  # an interpreter that ends would report frozen objects as leaks
    world, folder = int(sys.argv[1]), Path(sys.argv[2])
    del sys.argv[:3]
    ranks = []
    for rank in range(world):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            return run(rank, folder)
    for pid in ranks:
        os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    main()
