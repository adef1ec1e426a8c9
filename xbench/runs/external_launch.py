"""A run inside ranks that another launcher started: every rank is a worker, and rank 0 is the parent too.

    torchrun --nproc-per-node 4 -m xbench compare resnet50 --modes ddp,auto
    srun --ntasks 8 python -m xbench compare resnet50 --modes sequential,crossover

Nothing is launched. The ranks meet (`launch.rendezvous`). Two jobs that share the devices are in every rank. Each rank
runs the program as under our own launcher. It keeps its journal in a folder of its own machine and sends it to rank 0
during the run (`launch.heartbeat`). Rank 0 alone builds the record and prints. There is one launch, because the ranks
are given. This module imports torch on use, because the parent is a rank.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from xbench.errors import RankError, XbenchError
from xbench.fabrics.cluster import ClusterRank, cluster_rank, meeting_point, ranks_around
from xbench.launch.heartbeat import HeartbeatMonitor
from xbench.launch.rendezvous import RankAssignment
from xbench.rank.journal import JournalReader, Take
from xbench.rank.program import Program, phases
from xbench.runs.event_collector import Collector
from xbench.runs.progress import Progress
from xbench.scratch import Scratch
from xbench.spec import RunSpec

_OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def our_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return our rank among those of another launcher, 0 without one. A wrong environment is reported later."""
    try:
        ours = ranks_around(environ)
    except XbenchError:
        return 0
    return ours.rank if ours is not None else 0


def report_refusal(error: XbenchError) -> None:
    """On ranks other than 0, send rank 0 the reason why this rank cannot take part, and end the process.

    Returns on rank 0, and if rank 0 cannot be reached.
    """
    from xbench.launch.rendezvous import abort_join

    try:
        ours = ranks_around(os.environ)
    except XbenchError:
        return
    if ours is None or ours.rank == 0:
        return
    if abort_join(ours, error, os.environ):
        sys.stderr.flush()
        os._exit(error.exit_code)


def run_inside(
    run: RunSpec, collector: Collector, progress: Progress, abandon: Callable[[XbenchError], NoReturn], take: Take
) -> None:
    """Run one launch's program on this rank. On rank 0 `take` gets every rank's events.

    If a rank is stuck, rank 0 calls `abandon`, which saves the measurements and ends the process. Raises RankError if a
    rank fails. Earlier measurements are then in `collector`.
    """
    ours = cluster_rank(os.environ)
    from xbench.launch import rendezvous

    patience_s = max(rendezvous.COME_S, run.timeout_s)
    place = meeting_point(ours, os.environ)
    store = rendezvous.store_at(place, ours, os.environ, patience_s=patience_s, serves=ours.rank == 0)
    own = rendezvous.local_info(ours, place)
    seating = rendezvous.join(store, ours, own, patience_s=patience_s)
    interface = rendezvous.choose_interface(own, store, ours.world_size, os.environ)
    if interface is not None and ours.rank == 0:
        collector.remarks.append(f"Gloo uses {interface}, which leads to the other ranks")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(Scratch("xb-")))
        stack.enter_context(_seated(ours, seating[ours.rank], place, os.environ))

        def leave(code: int) -> NoReturn:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(code)

        def abandoned(error: XbenchError) -> NoReturn:
            shutil.rmtree(folder, ignore_errors=True)
            abandon(error)

        watch = HeartbeatMonitor(
            rank=ours.rank,
            seats=seating,
            # A connection of its own, because a rank that waits at the store blocks its connection.
            store=rendezvous.store_at(place, ours, os.environ, patience_s=patience_s),
            reader=JournalReader(folder, 0, ours.rank),
            silence_s=run.timeout_s,
            take=take,
            abandon=abandoned,
            leave=leave,
        )
        watch.start()
        _go(run, ours.rank, store, folder, watch, progress)


def _go(
    run: RunSpec,
    ours: int,
    store: Any,
    folder: Path,
    watch: HeartbeatMonitor,
    progress: Progress,
) -> None:
    """Run this rank's part, from its first collective to its last report. Raises the error that `watch` returns."""
    rank = None
    try:
        import torch.distributed as dist

        from xbench.rank.main import Rank

        program = Program(
            run=run,
            launch=0,
            phases=phases(run, 0, seed=run.workloads[0].seed),
            jobs=len(run.workloads),
        )
        if ours == 0:
            progress.begin_launch(0, program.phases)
        rank = Rank(program, 0, folder, listener=progress.take if ours == 0 else None, store=store)
        rank.start()
        rank.run_all()
        dist.destroy_process_group()
    except KeyboardInterrupt:
        watch.interrupted()
        raise
    except Exception as error:
        from xbench.rank.rank_errors import failure_of

        raise watch.fail(failure_of(run, rank.acting if rank is not None else 0, error)) from error
    try:
        watch.finish()
    except XbenchError:
        raise
    except Exception as error:
        raise RankError(f"the ranks lost each other at the end: {error}", detail=traceback.format_exc()) from error


@contextmanager
def _seated(
    ours: ClusterRank, seat: RankAssignment, place: tuple[str, int], environ: MutableMapping[str, str]
) -> Iterator[None]:
    """Context with our rank in torch.distributed's variables, which workloads may read.

    The former values are restored at exit.
    """
    before = {name: environ.get(name) for name in _OURS}
    now = {
        "RANK": str(ours.rank),
        "WORLD_SIZE": str(ours.world_size),
        "LOCAL_RANK": str(seat.device),
        "LOCAL_WORLD_SIZE": str(seat.devices),
        "GROUP_RANK": str(seat.host),
        "MASTER_ADDR": place[0],
        "MASTER_PORT": str(place[1]),
    }
    environ.update(now)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value
