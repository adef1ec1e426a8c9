"""Parser of jobs.toml: every key, name and number of its live jobs is checked before any job starts.

docs/cluster.md shows a file. Instead of `speeds` a job may have `ring = { theta = [θ0, θ1, θ2, θ3], model_bytes = n }`
(see `cluster.speeds`) or `scale = "record.json"`, a record of `xbench plan --workers 2..2048`, with `mode` if that has
several. Its samples a second are divided by `batch_size`; that assumes that they do not depend on the batch. Speeds of
a job without any of these are unknown.

An error is one sentence with the file, the job, the field, and the nearest valid one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from xbench.cluster.jobs import Speed
from xbench.cluster.speeds import RingSpeed, TableSpeed, scaled_speed
from xbench.errors import SpecError, UsageError
from xbench.records import load
from xbench.text import counted
from xbench.toml_config import known_keys, read_toml, validated
from xbench.workloads import check_plain_step, parse_workload

MOST = 2**31 - 1
MAX_NAME_BYTES = 200
"""Greatest length [B] of a job's name, which is also the name of a folder."""

MAX_S = 1e9
"""Thirty years [s]: limit of an arrival and of a step."""

LARGEST = 1e15
"""Largest number of steps a second, and of bytes."""

START = "write [[job]] for each job, with name, workload, steps and batch_size"
SPEED_KEYS = ("speeds", "ring", "scale")
"""Keys that define a job's speed; one of them is enough."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Ring(_Table):
    """`RingSpeed` as written in the file: θ in seconds, and bytes of gradients."""

    theta: list[Annotated[float, Field(le=MAX_S)]]
    model_bytes: float = Field(le=LARGEST)


class JobEntry(_Table):
    """A job as the ledger keeps it, with its speed [steps/s] if known.

    `batch_size`: samples of a step over all workers; `checkpoint_steps`: steps between two checkpoints. `workload` is
    as for `xbench profile`, without a batch size.
    """

    name: str
    workload: str
    steps: int = Field(ge=1, le=MOST)
    batch_size: int = Field(ge=1, le=MOST)
    arrival_s: float = Field(default=0.0, ge=0, le=MAX_S)
    gpus: int = Field(default=1, ge=1, le=MOST)
    least: int = Field(default=1, ge=1, le=MOST)
    most: int | None = Field(default=None, ge=1, le=MOST)
    seed: int = Field(default=0, ge=0, le=MOST)
    checkpoint_steps: int = Field(default=50, ge=1, le=MOST)
    speeds: dict[str, Annotated[float, Field(le=LARGEST)]] | None = None
    ring: Ring | None = None

    @property
    def speed(self) -> Speed | None:
        """Declared steps a second; None if unknown. Raises SpecError for an invalid speed."""
        if self.ring is not None:
            theta = self.ring.theta
            if len(theta) != 4:
                raise SpecError(f"a ring has four θ, and this one {len(theta)}", hint="write theta = [θ0, θ1, θ2, θ3]")
            return RingSpeed((theta[0], theta[1], theta[2], theta[3]), self.batch_size, self.ring.model_bytes)
        if self.speeds is not None:
            return TableSpeed.of({_workers(key): speed for key, speed in self.speeds.items()})
        return None


class _Written(JobEntry):
    """A job as written in the file."""

    scale: str | None = None
    mode: str | None = None


class _Cluster(_Table):
    slots: int | None = Field(default=None, ge=1, le=MOST)


@dataclass(frozen=True)
class JobsFile:
    """Contents of a jobs.toml. `slots`: None leaves it to the engine."""

    slots: int | None
    jobs: tuple[JobEntry, ...]


def load_jobs(path: Path) -> JobsFile:
    """Read and check a jobs.toml. `check_fit` checks whether the jobs fit a cluster.

    Raises SpecError for a missing file, invalid TOML, an unknown key (naming the nearest), a value of a wrong kind, no
    work, a duplicate name, unsorted arrivals, an empty range of workers, an unknown workload, and invalid speeds.
    """
    where = str(path)
    data = read_toml(path, SpecError(f"there is no file of jobs {where!r}", hint=START))
    known_keys(data, ("cluster", "job"), where, "the file")
    table = data.get("cluster", {})
    if not isinstance(table, dict):
        raise SpecError(f"{where}: cluster is not a table", hint="write [cluster], and below it slots = 2")
    known_keys(table, _Cluster.model_fields, where, "[cluster]")
    cluster = validated(_Cluster, table, where, "[cluster]")
    tables = data.get("job")
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise SpecError(f"{where}: there is no [[job]], so there is nothing to run", hint=START)
    jobs: list[JobEntry] = []
    for number, one in enumerate(tables, start=1):
        job = _job(one, number, path)
        if any(job.name == other.name for other in jobs):
            raise SpecError(f"{where}: two jobs are named {job.name!r}", hint=f'name one "{job.name}-2"')
        if jobs and job.arrival_s < jobs[-1].arrival_s:
            raise SpecError(
                f"{where}: job {job.name!r}: arrival_s = {job.arrival_s:g} is before that of {jobs[-1].name!r}, which "
                "stands before it",
                hint="sort the jobs by arrival",
            )
        jobs.append(job)
    return JobsFile(cluster.slots, tuple(jobs))


def check_fit(jobs: Iterable[JobEntry], slots: int) -> None:
    """Raise SpecError for a job that needs more slots than there are, naming it and the field."""
    jobs = list(jobs)
    for job in jobs:
        for key in ("gpus", "least"):
            wanted = getattr(job, key)
            if wanted > slots:
                needed = max(max(other.gpus, other.least) for other in jobs)
                raise SpecError(
                    f"job {job.name!r}: {key} = {wanted}, and the cluster has {counted(slots, 'slot')}",
                    hint=f"give it {needed}, or the job at most {slots}",
                )


def _job(table: dict[str, Any], number: int, path: Path) -> JobEntry:
    where = str(path)
    name = table.get("name")
    fits = isinstance(name, str) and 0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES
    label = f"job {name!r}" if fits else f"[[job]] number {number}"
    known_keys(table, _Written.model_fields, where, label)
    if isinstance(table.get("ring"), dict):
        known_keys(table["ring"], Ring.model_fields, where, f"ring of {label}")
    job = validated(_Written, table, where, label)
    prefix = f"{where}: {label}"
    if not job.name.strip() or not job.name.isprintable() or "/" in job.name or job.name in (".", ".."):
        raise SpecError(f"{prefix}: name = {job.name!r} cannot name a folder", hint="give it a short name")
    if not fits:
        raise SpecError(f"{prefix}: its name is longer than {MAX_NAME_BYTES} bytes", hint="give it a short name")
    if job.most is not None and job.most < job.least:
        raise SpecError(
            f"{prefix}: most = {job.most} is less than least = {job.least}", hint=f"write most = {job.least}"
        )
    for key in ("gpus", "least"):
        if getattr(job, key) > job.batch_size:
            raise SpecError(
                f"{prefix}: {key} = {getattr(job, key)} workers cannot share batch_size = {job.batch_size} samples",
                hint=f"write {key} = {job.batch_size}, or a larger batch_size",
            )
    try:
        spec = parse_workload(job.workload)
        check_plain_step(spec, "a live job")
        if spec.batch_size is not None:
            raise SpecError(
                f"{job.workload!r} has a batch size of its own", hint="leave it to batch_size, which all workers share"
            )
    except UsageError as error:
        raise SpecError(f"{prefix}: workload: {error}", hint=error.hint) from None
    return _with_speeds(job, path, prefix)


def _with_speeds(job: _Written, path: Path, prefix: str) -> JobEntry:
    """The job as the ledger keeps it. A scaling record is read here and never again."""
    given = [key for key in SPEED_KEYS if getattr(job, key) is not None]
    if len(given) > 1:
        raise SpecError(f"{prefix}: {' and '.join(given)} both define its speed", hint="leave one of them out")
    if job.mode is not None and job.scale is None:
        raise SpecError(
            f"{prefix}: mode selects a mode of scale, and there is no scale", hint='add scale = "record.json"'
        )
    speeds = job.speeds
    try:
        if job.scale is not None:
            points = scaled_speed(load(path.parent / job.scale), job.mode).points
            speeds = {str(gpus): speed / job.batch_size for gpus, speed in points}
        entry = JobEntry(**(job.model_dump(exclude={"scale", "mode"}) | {"speeds": speeds}))
        entry.speed  # noqa: B018 (it is looked at to be refused)
    except UsageError as error:
        raise SpecError(f"{prefix}: {given[0]}: {error}", hint=error.hint) from None
    return entry


def _workers(key: str) -> int:
    if not (key.isascii() and key.isdigit()) or int(key) < 1 or int(key) > MOST:
        raise SpecError(f"{key!r} is not a number of workers", hint="write speeds = { 1 = 10.0, 2 = 17.5 }")
    return int(key)
