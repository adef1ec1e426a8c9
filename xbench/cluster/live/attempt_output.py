"""An incarnation as its folder and the journal of its rank 0 tell of it, whatever started its ranks."""

from __future__ import annotations

from pathlib import Path

from xbench.cluster.live import checkpoints
from xbench.cluster.live.attempt import STOP, AttemptSpec, seen
from xbench.cluster.live.engine import OVER, AttemptProgress, State
from xbench.rank.events import RankEnded
from xbench.rank.journal import JournalReader


class Watched:
    """What every `xbench.cluster.live.engine.Running` here has in common; `look` and `kill` are those of its engine."""

    def __init__(self, directory: Path, program: AttemptSpec) -> None:
        self.directory = directory
        self._program = program
        self._journal = JournalReader(directory, 0, 0)
        self._end: State | None = None
        """How it ended, as rank 0 says."""
        kept = self._kept()
        self._look = AttemptProgress("starting", kept, kept)

    @property
    def over(self) -> bool:
        """True if `look` has said that it is over."""
        return self._look.state in OVER

    def stop(self) -> None:
        """Ask it to keep a checkpoint after the step that it is in, and to end."""
        (self.directory / STOP).touch()

    def _kept(self) -> int:
        """The steps in its last checkpoint."""
        return checkpoints.kept_steps(self.directory.parent, self._program.key)

    def _read(self) -> None:
        """Take what the journal has said since."""
        for event in self._journal.poll():
            if isinstance(event, RankEnded):
                self._end = event.how
            self._look = seen(self._look, event)
