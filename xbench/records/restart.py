"""Record of `xbench cluster restart`: the cost of stopping and restarting a real job, and whether its loss goes on.

`restarts` holds every stop and start. `results` summarises them. `losses` and `uncut_losses` are the two loss curves.
`records` exports these names.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from xbench.field_types import Count, Duration, PositiveCount, Text
from xbench.records.parts import Environment, Estimate, Label, Part, Result, WorkloadRecord

RestartPart = Literal["last step", "checkpoint", "tear-down", "launch", "first step", "total", "lost"]


class RestartTimes(Part):
    """One stop and start [s], timed by rank 0 and the launching process. Parts follow one another."""

    from_workers: PositiveCount
    to_workers: PositiveCount
    steps: PositiveCount = Field(description="after which it was stopped")
    last_step_s: Duration = Field(description="from the stop being asked for to the end of the step under way")
    checkpoint_s: Duration = Field(description="until the checkpoint was on disk")
    teardown_s: Duration = Field(description="until no process was left")
    start_s: Duration = Field(description="until Python ran in rank 0")
    imports_s: Duration = Field(description="until everything was imported")
    join_s: Duration = Field(description="until all workers had met and connected")
    build_s: Duration = Field(description="until the model was built")
    load_s: Duration = Field(description="until it was as in the checkpoint, and wrapped by DistributedDataParallel")
    first_step_s: Duration = Field(description="until the first step was applied")
    step_s: Duration = Field(description="an ordinary step with as many workers, the median")

    @property
    def launch_s(self) -> float:
        """Time [s] from the start of a process to a job that is ready to train."""
        return self.start_s + self.imports_s + self.join_s + self.build_s + self.load_s

    @property
    def total_s(self) -> float:
        """Time [s] from the stop request to the end of the first step of the next incarnation."""
        return self.last_step_s + self.checkpoint_s + self.teardown_s + self.launch_s + self.first_step_s

    @property
    def lost_s(self) -> float:
        """Time [s] lost to the restart, as simulators charge it: total minus the step under way and a usual step."""
        return max(0.0, self.total_s - self.last_step_s - self.step_s)

    def part_s(self, part: RestartPart) -> float:
        """Return the time [s] of one part by its name."""
        return {
            "last step": self.last_step_s,
            "checkpoint": self.checkpoint_s,
            "tear-down": self.teardown_s,
            "launch": self.launch_s,
            "first step": self.first_step_s,
            "total": self.total_s,
            "lost": self.lost_s,
        }[part]


class RestartResult(Part):
    """One part over all restarts, or over those from one number of workers."""

    part: RestartPart
    from_workers: Count | None = Field(default=None, description="null: all restarts")
    to_workers: Count | None = None
    seconds: Estimate = Field(description="median; the interval holds whatever the distribution from 6 restarts on")


class LossCheck(Part):
    """Comparison of the loss curve of a run with restarts to that of a run without."""

    held: bool
    steps: PositiveCount = Field(description="compared")
    worst: float | None = Field(description="largest relative difference; null where a loss is missing or no number")
    worst_step: Count
    tolerance: float
    workers: list[Count] = Field(min_length=1, description="of the incarnations of the run that was compared")
    stops: list[Count] = Field(default=[], description="steps after which that run was stopped")
    depends: list[Text] = Field(default=[], description="what of the model depends on how a batch is shared")


class Restart(Result):
    """Result of `xbench cluster restart`."""

    kind: Literal["restart"] = "restart"
    schema_version: Literal[1] = 1
    created: Text = Field(description="ISO 8601, UTC")
    command: Text
    xbench: Text = Field(description="version")
    label: Label = "real"
    complete: bool = True
    error: Text | None = Field(default=None, description="why the study ended early, one sentence")
    environment: Environment
    workload: WorkloadRecord
    batch_size: PositiveCount = Field(description="samples of a step over all workers")
    slots: list[list[Count]] = Field(default=[], description="cores of each slot; empty on GPUs")
    backend: Text
    from_workers: PositiveCount
    to_workers: PositiveCount
    checkpoint_bytes: Count | None = Field(description="null: the study ended early")
    findings: list[Text] = Field(default=[], description="sentences, the answer first")
    warnings: list[Text] = []
    restarts: list[RestartTimes] = Field(min_length=1)
    results: list[RestartResult]
    check: LossCheck | None = Field(description="null: the study ended before it")
    losses: list[float | None] = Field(description="by step, null where it was no number")
    uncut_losses: list[float | None]

    @model_validator(mode="after")
    def _says_the_cost(self) -> Restart:
        if not any(one.part == "lost" and one.from_workers is None for one in self.results):
            raise PydanticCustomError("no_cost", "its results do not say what a restart costs")
        return self

    @property
    def cost_s(self) -> float:
        """Median cost [s] of a restart for a job: `RestartTimes.lost_s` over all restarts."""
        return next(one.seconds.median for one in self.results if one.part == "lost" and one.from_workers is None)
