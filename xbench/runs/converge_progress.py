"""Progress of `xbench converge`: the last epoch, finished trainings, and the time left at the current pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xbench.runs.progress import Progress, clock
from xbench.spec import ModeSpec


class Trainings:
    """Progress of the first job. Two jobs in turns train one seed each at the same time."""

    def __init__(self, progress: Progress, modes: Sequence[ModeSpec], seeds: int, epochs: int) -> None:
        self._progress = progress
        self._of = {mode.text: (seeds + 1) // 2 if mode.paired else seeds for mode in modes}
        self._epochs = epochs
        self._began_s: float | None = None
        self._done = 0
        self._taken_s = 0.0

    def take(self, job: int, rank: int, event: Mapping[str, Any]) -> None:
        """Take one event of a rank's journal."""
        if event["event"] == "failed":
            self._of.pop(event["mode"], None)
        if (job, rank) != (0, 0):
            return
        if event["event"] in ("phase", "part") and not event.get("number"):
            self._progress.take(rank, event)
        elif event["event"] == "phase" and self._began_s is None:
            self._began_s = float(event["t"])
        elif event["event"] == "epoch":
            self._done += 1
            self._taken_s = float(event["t"]) - (self._began_s or 0.0)
            place = f"{event['mode']}, seed {event['seed']}, epoch {event['epoch']} of {self._epochs} done"
            self._progress.redraw(f"{place}; {self.standing()}")

    def standing(self) -> str:
        """Return '2 of 9 trainings done, about 6 min left'."""
        total = sum(self._of.values())
        left = total * self._epochs - self._done
        told = f"{self._done // self._epochs} of {total} trainings done"
        return f"{told}, about {clock(self._taken_s / self._done * left)} left" if self._done and left > 0 else told
