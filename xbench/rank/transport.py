"""Library whose collectives carry the gradients of each mode. Horovod runs only while a mode needs it.

With `--backend horovod` our own schedules, and the measurement of collectives for their plans, use Horovod's all-reduce
(`HorovodGroup`). DDP's modes keep torch's own, and mode `horovod` its own settings. Each attachment of a mode
selects the library (`xbench.horovod.world`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist

from xbench import horovod
from xbench.horovod.options import UNFUSED
from xbench.host.tuning import raise_thread
from xbench.modes import mode_info
from xbench.rank.events import Remarked
from xbench.rank.journal import Journal
from xbench.schedules.base import Handle
from xbench.spec import ModeSpec, RunSpec


class Transport:
    """Process groups of one rank. `group` carries our schedules; DDP uses it too unless it belongs to Horovod."""

    def __init__(self, run: RunSpec, rank: int, journal: Journal, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self._run = run
        self._over_horovod = run.collectives == "horovod"
        wanted = self._over_horovod or any(mode_info(mode.carrier).library == "Horovod" for mode in run.modes)
        if not wanted or horovod.obstacle() is not None:
            self._over_horovod = False
            return
        from xbench.horovod.world import WORLD, new_group

        self._world = WORLD
        if run.tunes_ranks:
            WORLD.at_start = _raise
        if self._over_horovod:
            self.group = new_group()
        if rank == 0:
            journal.write(Remarked(message=self._remark()))

    def _remark(self) -> str:
        said = f"Horovod {horovod.version()}, built against torch {horovod.built_against()}"
        if not self._over_horovod:
            return said
        ddp = any(mode_info(mode.carrier).reducer == "ddp" for mode in self._run.modes)
        kept = "; DDP's modes go over torch's own, and are predicted as if they did not" if ddp else ""
        return f"{said}; it carries our own schedules, with {UNFUSED}{kept}"

    def group_of(self, mode: ModeSpec) -> dist.ProcessGroup | None:
        """Return the process group that a mode uses."""
        return self.group if self._sends(mode) or not self._over_horovod else dist.group.WORLD

    def attached(self, mode: ModeSpec, attach: Callable[[], Handle]) -> Handle:
        """Call `attach()` with Horovod started or stopped, as the mode needs it. Detaching stops it."""
        if not self._over_horovod:
            return attach()
        if not self._sends(mode):
            self._world.stop()
            return attach()
        self._world.start(UNFUSED)
        try:
            handle = attach()
        except BaseException:
            self._world.stop()
            raise
        handle.at_detach(self._world.stop)
        return handle

    def rest(self) -> None:
        """Stop Horovod after a phase that used collectives without a handle."""
        if self._over_horovod:
            self._world.stop()

    def _sends(self, mode: ModeSpec) -> bool:
        return self._over_horovod and mode_info(mode.carrier).reducer == "engine"


def _raise(threads: list[int]) -> None:
    """Raise Horovod's own thread above its Gloo's event loop, as for torch's threads (`host.tuning`).

    It is the first thread that Horovod starts, and runs the collectives.
    """
    for thread in threads[:1]:
        with suppress(OSError):
            raise_thread(thread)
