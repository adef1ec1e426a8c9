"""Protocol between revisions: jobs and results, as small JSON files with a version.

The base of a check may be older or newer than head, and each is measured by its own code. Both must agree on this file
alone: `xbench regress launch ORDER ANSWER` reads the one and writes the other. Fields are only added, with defaults
that keep the former meaning, and unknown fields are ignored. If that does not suffice, `VERSION` changes, and the two
sides are then not comparable.

A job is to `look` (resolve the workload, plan, count; nothing is timed) or to `time` (one launch of timed blocks). The
result of a look is returned to the same tree with every later job. Only that tree interprets its content.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from xbench.records import Environment, Label, WorkloadRecord

VERSION = 1


class Message(BaseModel):
    """Base of jobs and results: frozen, unknown fields ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    version: int = VERSION


class JobRequest(Message):
    """One check of the suite, to be looked at or timed once."""

    kind: Literal["look", "time"]
    workload: str = Field(description="as on the command line")
    modes: tuple[str, ...] = Field(min_length=1)
    fabric: str
    device: str = "auto"
    plan_from: str | None = Field(default=None, description="absolute path of the record that plans are made from")
    workers: int | None = Field(default=None, description="of the simulated step; None: as many as were measured")
    planned: bool = Field(default=True, description="look: whether plans and their predictions are asked for")
    counted: bool = Field(default=True, description="look: whether ranks are to be started, to count")
    held: bool = Field(
        default=False, description="look: whether each mode is counted in ranks of its own, for its memory"
    )
    resolved: dict[str, Any] | None = Field(
        default=None, description="what an earlier look of this tree has resolved; to time it must be there"
    )
    rounds: int = Field(default=2, ge=1, description="time: blocks of every mode")
    steps: int = Field(default=4, ge=1, description="time: timed steps a block")
    warmup_steps: int = Field(default=2, ge=1)
    seed: int = Field(default=0, description="of the order of the blocks")
    turn_folder: str | None = Field(
        default=None, description="time: absolute path, where this launch takes turns with another; None: it is alone"
    )
    turns: int = Field(default=1, ge=1, description="time: turns of each block, of `steps` steps each")
    slow_step: float = Field(default=1.0, ge=1.0, description="1: heads of earlier revisions could slow themselves")
    timeout_s: float = 120.0


class Block(Message):
    """Consecutive timed steps of one mode, within one turn if there are turns. Times [s] are of all ranks."""

    mode: str
    round: int
    steps_s: list[float]
    warmup_s: list[float] = []
    cycle: int = Field(default=1, description="after how many steps this mode's steps repeat")


class Counts(Message):
    """Counts of one step of a mode, on rank 0, in the last step of a short launch."""

    collectives: float
    wire_bytes: float
    peak_bytes: int | None = Field(default=None, description="of the rank that held the most")


class PlannedFigures(Message):
    """Values of this tree's plans from the record; every time is simulated [s]."""

    buckets: int
    planned_step_s: float
    simulated_step_s: float | None = None


class JobResult(Message):
    """Result of a job. `error` is the message of an early end; `failed` holds modes that could not run."""

    xbench: str
    error: str | None = None
    hint: str | None = None
    label: Label = "real"
    environment: Environment | None = None
    workload: WorkloadRecord | None = None
    resolved: dict[str, Any] | None = None
    takes_turns: bool = Field(default=False, description="whether a launch of this tree knows `turn_folder`")
    planned: dict[str, PlannedFigures] = {}
    counted: dict[str, Counts] = {}
    blocks: list[Block] = []
    samples_per_step: int = Field(default=0, description="over all ranks")
    failed: dict[str, str] = {}
    warnings: list[str] = []
    launched_s: float = Field(default=0.0, description="from the start of the ranks to their end")
