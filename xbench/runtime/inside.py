"""A run inside ranks that torchrun started around us: every rank is worker and, on rank 0, parent.

    torchrun --nproc-per-node 4 -m xbench compare resnet50 --modes ddp,optimal

Nothing is launched. Each rank goes through the program as it would under our own launcher, keeps its journal in a
folder of its own machine, and hands it to rank 0 at the end; rank 0 makes the record and speaks, the others do not.
There is one launch, because the ranks are given. This module imports torch when it is used: the parent *is* a rank.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path
from typing import Any

from xbench.errors import RankError, XbenchError
from xbench.runtime.collect import Collector
from xbench.runtime.journal import JournalReader
from xbench.runtime.program import Program, phases
from xbench.runtime.progress import Progress
from xbench.spec import RunSpec


def our_rank() -> int:
    """Our rank among those that torchrun started, 0 outside torchrun."""
    return int(os.environ.get("RANK", "0"))


def run_inside(run: RunSpec, collector: Collector, progress: Progress) -> None:
    """Go through one launch's program on this rank; on rank 0 `collector` ends up with every rank's events.

    Raises RankError when this rank fails; what it had measured by then is in `collector`.
    """
    import torch.distributed as dist

    from xbench.runtime.worker import Rank, explained

    number = our_rank()
    program = Program(run=run, launch=0, phases=phases(run, 0, seed=run.workloads[0].seed))
    with tempfile.TemporaryDirectory(prefix="xbench-rank-") as folder:
        directory = Path(folder)
        reader = JournalReader(directory, 0, number)
        try:
            rank = Rank(program, 0, directory, listener=progress.take if number == 0 else None)
            progress.begin_launch(0, program.phases)
            rank.start()
            rank.go()
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, reader.poll())
            for source, events in enumerate(everyone):
                for event in events:
                    collector.take(0, source, event)
            dist.destroy_process_group()
        except XbenchError:
            raise
        except Exception as error:
            for event in reader.poll():
                collector.take(0, number, event)
            said = explained(run, 0, error)
            what = said.what if said else f"raised {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise RankError(
                f"rank {number} {what}", hint=said.hint if said else None, detail=traceback.format_exc()
            ) from error
