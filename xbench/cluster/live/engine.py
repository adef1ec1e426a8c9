"""Interface between the controller and the engines that run real jobs (local and Ray).

A job has one folder and passes through *attempts*. Each is launched with a fixed number of workers and trains from the
newest checkpoint of the folder (the first one from nothing). It ends as stopped, with a checkpoint of the last applied
step; as finished, with a checkpoint of the job's last step; or as failed, and then the next attempt begins at the
newest whole checkpoint. The number of workers is constant within an attempt.

A step is one step of the whole batch, however many workers share it. So steps count a job's work: `Job.work` is
`LiveJob.steps`, and its speed is steps a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

State = Literal["starting", "training", "stopped", "finished", "failed", "lost"]
"""lost: the node of a worker is gone, which is not the job's fault."""

OVER: tuple[State, ...] = ("stopped", "finished", "failed", "lost")


@dataclass(frozen=True)
class LiveJob:
    """A job of `jobs.toml`. `batch_size`: samples of a step over all workers; `checkpoint_steps`: steps between two.

    `workload` is as for `xbench profile`, without a batch size.
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


class AttemptProgress(NamedTuple):
    """State of an attempt. Steps count from the beginning of the job, not of the attempt."""

    state: State
    steps: int
    """Applied steps, as far as rank 0 has reported."""
    kept_steps: int
    """Steps in the newest whole checkpoint."""
    reason: str = ""
    """Cause of a failure or a loss, or the obstacle of a starting attempt; one sentence."""


class Running(Protocol):
    """One attempt. No call blocks for longer than a moment."""

    def look(self) -> AttemptProgress:
        """Present state. In a state of `OVER` no process is left, and the state never changes."""

    def stop(self) -> None:
        """Ask it to keep a checkpoint after the present step, and to end. `look` reports the end."""

    def kill(self) -> None:
        """End all its processes, without a checkpoint."""


class Engine(Protocol):
    """One machine or several, with numbered slots of one worker each."""

    @property
    def slots(self) -> int:
        """Present number of slots. It may change from call to call, and is 0 without any node."""

    def start(self, job: LiveJob, folder: Path, slots: tuple[int, ...]) -> Running:
        """Launch an attempt with one worker on each slot. Raises SpecError for a job that cannot be built."""

    def close(self) -> None:
        """End everything that still runs."""
