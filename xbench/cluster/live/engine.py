"""What runs real jobs: the one interface between the controller and the local and the Ray engine.

A job lives in one folder and passes through *incarnations*: each is launched with a fixed number of workers, trains
from the newest checkpoint of the folder (from nothing, the first time), and ends: stopped, with a checkpoint of the
last step it applied; finished, with one of the job's last step; or failed, and then the newest whole checkpoint is
where the next one begins. There is no elasticity within an incarnation.

A step is one step of the whole batch, however many workers share it, so steps count a job's work: `Job.work` is
`LiveJob.steps`, and its speed is steps a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

State = Literal["starting", "training", "stopped", "finished", "failed", "lost"]
"""lost: the node of a worker is gone, which is no fault of the job."""

OVER: tuple[State, ...] = ("stopped", "finished", "failed", "lost")


@dataclass(frozen=True)
class LiveJob:
    """A job of `jobs.toml`. `batch_size`: samples of a step over all workers; `checkpoint_steps`: between two.

    `workload` is as for `xbench profile`, without a batch size of its own.
    """

    name: str
    workload: str
    steps: int
    batch_size: int
    arrival_s: float = 0.0
    gpus: int = 1
    least: int = 1
    most: int | None = None
    seed: int = 0
    checkpoint_steps: int = 50


class Look(NamedTuple):
    """An incarnation as it stands. Steps count from the beginning of the job, not of the incarnation."""

    state: State
    steps: int
    """Applied so far, as far as rank 0 has told."""
    kept_steps: int
    """In the newest whole checkpoint."""
    reason: str = ""
    """Cause of a failure or a loss, or what a starting incarnation waits for; one sentence."""


class Running(Protocol):
    """One incarnation. No call blocks for longer than a moment."""

    def look(self) -> Look:
        """As it stands. Once its state is in `OVER`, no process of it is left, and that never changes."""

    def stop(self) -> None:
        """Ask it to keep a checkpoint after the step that it is in, and to end; `look` tells when it has."""

    def kill(self) -> None:
        """End every process of it, without a checkpoint."""


class Engine(Protocol):
    """A machine, or several, with numbered slots of one worker each."""

    @property
    def slots(self) -> int:
        """Number of slots now. It may change from call to call, and is 0 while every node is away."""

    def start(self, job: LiveJob, folder: Path, slots: tuple[int, ...]) -> Running:
        """Launch an incarnation with one worker on each of these slots. Raises SpecError for what cannot be built."""

    def close(self) -> None:
        """End everything that still runs."""
