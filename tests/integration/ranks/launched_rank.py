"""A rank for the launcher's tests: joins its group, all-reduces step by step, and goes wrong as it is told.

ARGUMENT holds JSON: steps, and optionally {trouble, rank, at, pause_s}.
"""

import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

from xbench.rank.events import PhaseBegan, RankEnded, RankFailed, RankStarted, Remarked
from xbench.rank.journal import Journal


def main(argument, job, directory):
    plan = json.loads(Path(argument).read_text())
    rank = int(os.environ["RANK"])
    unlucky = rank == plan.get("rank")
    trouble = plan.get("trouble") if unlucky else None
    if trouble == "before hello":
        raise ImportError("no module of that name")
    import torch
    import torch.distributed as dist

    journal = Journal(Path(directory), job, rank)
    journal.write(RankStarted(rank=rank, job=job, host=int(os.environ["GROUP_RANK"]), pid=os.getpid()))
    try:
        journal.write(PhaseBegan(name="joining"))
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        for step in range(plan["steps"]):
            journal.note(f"step {step}: computing")
            if step == plan.get("at") and trouble == "raise":
                raise RuntimeError("out of luck")
            tensor = torch.ones(1000)
            journal.note(f"step {step}: waiting for gradients")
            dist.all_reduce(tensor)
            time.sleep(plan.get("pause_s", 0))
        seen = [float(tensor.sum()), sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"]]
        journal.write(Remarked(message=json.dumps(seen)))
        dist.destroy_process_group()
        journal.write(RankEnded())
    except Exception as error:
        journal.write(RankFailed(message=f"{type(error).__name__}: {error}", traceback=traceback.format_exc()))
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[3]), sys.argv[5])
