"""A rank for the launcher's tests: joins its group, all-reduces step by step, and goes wrong as it is told.

ARGUMENT holds JSON: steps, and optionally {trouble, rank, at, timeout_s}.
"""

import json
import os
import signal
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
    unlucky = rank == plan.get("rank") and job == plan.get("job", 0)
    trouble = plan.get("trouble") if unlucky else None
    if trouble == "before hello":
        raise ImportError("no module of that name")
    import torch
    import torch.distributed as dist

    journal = Journal(Path(directory), job, rank)
    journal.write(RankStarted(rank=rank, job=job, host=int(os.environ["GROUP_RANK"]), pid=os.getpid()))
    try:
        journal.write(PhaseBegan(name="joining"))
        dist.init_process_group("gloo", timeout=timedelta(seconds=plan.get("timeout_s", 60)))
        for step in range(plan["steps"]):
            journal.note(f"step {step}: computing")
            if step == plan.get("at"):
                misbehave(trouble)
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
    if trouble == "after end":
        os._exit(9)


def misbehave(trouble):
    if trouble == "raise":
        raise RuntimeError("out of luck")
    if trouble == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if trouble == "leave":
        os._exit(3)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[3]), sys.argv[5])
