"""Groups of ranks, one after the other, forked from one process: `forked.py STORE GROUPS`.

GROUPS is JSON: a list of [number of ranks, script, argument…]. Torch takes seconds to import, and so does its compiler,
which every optimizer and DDP import. Forked ranks import both once. The million objects of both are left out of garbage
collections, of which the end of DDP needs one. Each rank runs the script as `__main__`, with RANK, WORLD_SIZE and
STORE, the path of its group's file store, in its environment, and prints into a file beside it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import sys

from xbench.interpreter import uncollected

with uncollected(program=True):
    import torch._dynamo  # noqa: F401 (see above)

    import xbench.schedules.engine  # noqa: F401


def run(store: str, rank: int, world: int, words: list[str]) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "STORE": store}
    output = os.open(f"{store}-{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv[:] = words
    runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    atexit.register(gc.unfreeze)  # an interpreter that ends would report frozen objects as leaks
    store = sys.argv[1]
    for group, (world, *words) in enumerate(json.loads(sys.argv[2])):
        ranks = []
        for rank in range(world):
            ranks.append(os.fork())
            if ranks[-1] == 0:
                return run(f"{store}{group}", rank, world, words)
        for pid in ranks:
            os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    main()
