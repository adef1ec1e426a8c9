"""A user's trace as a CSV. Strict: an unknown column or order is refused.

| column | meaning |
| --- | --- |
| name | unique name of the job |
| arrival_s | seconds since the trace began, not before the row above |
| gpus | GPUs that the job requests |
| duration_s | duration on those GPUs, undisturbed; the job is then rigid |
| work | instead of duration_s: samples, steps, or the unit of the speeds |
| loss_target | instead of work: the job ends at this loss, and speeds are in steps |
| loss_beta0, loss_beta1, loss_beta2 | with it: its curve 1/(β0·k + β1) + β2 after k steps (see `loss_curve`) |
| speed_1, speed_2, speed_4, ... | with either: work a second on that number of GPUs; empty if unknown |
| scale | instead of speeds: a record of `xbench scale`, a path relative to the CSV; work is then in samples |
| mode | with it: one of its modes, if it has several |
| least, most | smallest and largest number of GPUs, optional; empty: 1 and the whole cluster |
| application | trained application, optional |
| exposed, step_s, forward_share | facts for sharing policies, see `step_times`; optional; empty: unknown |
| memory_bytes | memory that it needs on each GPU, likewise |

The speed has to be known on the requested GPUs. Between two known numbers it is interpolated (see `TableSpeed`), and
outside them it stays unknown.

    name,arrival_s,gpus,work,speed_1,speed_2,speed_4
    resnet-a,0,2,90000,310,600,1100
    resnet-b,60,1,45000,310,600,
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from xbench.cluster.jobs import Job, RigidSpeed, Speed
from xbench.cluster.loss_curve import LossCurve
from xbench.cluster.speeds import TableSpeed, scaled_speed
from xbench.cluster.traces.reading import Table, above_zero, number, read_table, whole
from xbench.cluster.traces.trace import Rows, RowsPolicy, Trace
from xbench.errors import RecordError, SpecError
from xbench.records import load

FACTS = ("exposed", "step_s", "forward_share", "memory_bytes")
NEEDED = ("name", "arrival_s", "gpus")
BETA = ("loss_beta0", "loss_beta1", "loss_beta2")
TARGET = "loss_target"
SIZES = ("duration_s", "work", TARGET)
"""Amount of work: one of these columns."""

OPTIONAL = (*SIZES, *BETA, "speed_", "scale", "mode", "least", "most", "application", *FACTS)


def load_plain(path: Path, rows: RowsPolicy = "refuse") -> Trace:
    """The trace in that CSV (see the module). Raises SpecError for its columns and for bad rows (see `Rows`)."""
    table = read_table(path, NEEDED, OPTIONAL)
    speeds = _speed_columns(table)
    collected = Rows(path.name, rows)
    jobs: list[Job] = []
    names: set[str] = set()
    before_s = 0.0
    scaled = cache(lambda record, mode: scaled_speed(load(record), mode))
    for row, cells in table.numbered():
        try:
            table.check_width(cells)
            job = _job(table, [cell.strip() for cell in cells], speeds, scaled)
            if job.name in names:
                raise ValueError(f"there is already a job {job.name!r}")
            if job.arrival_s < before_s:
                raise ValueError(f"arrival_s {job.arrival_s:g} comes after {before_s:g}: rows go by arrival")
        except (ValueError, SpecError, RecordError) as problem:
            collected.reject(table.file, row, str(problem))
            continue
        before_s = job.arrival_s
        names.add(job.name)
        jobs.append(job)
    return collected.trace(jobs)


def _speed_columns(table: Table) -> dict[int, int]:
    """Index of each column speed_N, by N. Raises SpecError for columns that contradict each other."""
    speeds = {}
    for name, index in table.column.items():
        if name.startswith("speed_"):
            if not re.fullmatch(r"speed_[1-9]\d*", name):
                raise SpecError(f"{table.file} has a column {name!r}", hint="speed_4 is the speed on 4 GPUs")
            speeds[int(name.removeprefix("speed_"))] = index
    given = [name for name in SIZES if name in table.column]
    if len(given) != 1:
        columns = f"both {given[0]} and {given[1]}" if given else "none of duration_s, work and loss_target"
        raise SpecError(
            f"{table.file} has {columns}", hint="duration_s for rigid jobs; work or a loss with speed_1, speed_2, ..."
        )
    lacking = [name for name in BETA if name not in table.column]
    if TARGET in given and lacking:
        raise SpecError(f"{table.file} has {TARGET} and no {lacking[0]}", hint="a curve is 1/(β0·k + β1) + β2")
    if TARGET not in given and len(lacking) < len(BETA):
        raise SpecError(f"{table.file} has a loss curve and no {TARGET}", hint="say where a job is done")
    timed, scaled = "duration_s" in given, "scale" in table.column
    if scaled and (speeds or TARGET in given):
        other = "speeds" if speeds else TARGET
        raise SpecError(f"{table.file} has both scale and {other}", hint="scale tells samples a second: give work")
    if "mode" in table.column and not scaled:
        raise SpecError(f"{table.file} has mode and no scale", hint="mode says which of a scale record's")
    if not timed and not speeds and not scaled:
        raise SpecError(f"{table.file} has {given[0]} and no speed_1, speed_2, ...", hint="or give duration_s instead")
    if timed and (speeds or scaled):
        raise SpecError(f"{table.file} has duration_s and speeds", hint="give work instead of duration_s")
    return dict(sorted(speeds.items()))


def _job(
    table: Table, cells: list[str], speeds: dict[int, int], scaled: Callable[[Path, str | None], TableSpeed]
) -> Job:
    def cell(column: str) -> str:
        index = table.column.get(column)
        return "" if index is None else cells[index]

    if not cell("name"):
        raise ValueError("name is empty")
    gpus = whole(cell("gpus"), "gpus")
    if gpus < 1:
        raise ValueError(f"gpus {cell('gpus')!r} is less than one")
    speed: Speed = RigidSpeed(gpus)
    if speeds:
        known = {size: above_zero(cells[index], f"speed_{size}") for size, index in speeds.items() if cells[index]}
        if not known or not min(known) <= gpus <= max(known):
            raise ValueError(f"its speed is unknown on the {gpus} GPUs that it asks for")
        speed = TableSpeed.of(known)
    elif "scale" in table.column:
        if not cell("scale"):
            raise ValueError("scale is empty")
        speed = scaled(Path(table.file).parent / cell("scale"), cell("mode") or None)
        if gpus not in (speed.sizes or (gpus,)):
            raise ValueError(f"its speed is unknown on the {gpus} GPUs that it asks for in {cell('scale')}")
    work = _steps(cell) if TARGET in table.column else above_zero(cell(size := _size(table)), size)
    facts: dict[str, float | str] = {key: _fact(key, cell(key)) for key in FACTS if cell(key)}
    if cell("application"):
        facts["application"] = cell("application")
    least = whole(cell("least"), "least") if cell("least") else 1
    most = whole(cell("most"), "most") if cell("most") else None
    return Job(cell("name"), number(cell("arrival_s"), "arrival_s"), gpus, work, speed, least, most, facts)


def _fact(key: str, cell: str) -> float:
    """Value of a fact for policies. Raises ValueError for a value that the fact cannot have."""
    value = above_zero(cell, key) if key == "step_s" else number(cell, key)
    if key in ("exposed", "forward_share") and not 0 <= value < 1:
        raise ValueError(f"{key} = {value:g} is not a share: it must be from 0 to below 1")
    if value < 0:
        raise ValueError(f"{key} = {value:g} is below zero")
    return value


def _size(table: Table) -> str:
    return next(name for name in SIZES if name in table.column)


def _steps(cell: Callable[[str], str]) -> float:
    """Steps to the target loss. Raises SpecError for an invalid curve, or one that never gets there."""
    beta = [number(cell(name), name) for name in BETA]
    target = number(cell(TARGET), TARGET)
    steps = LossCurve((beta[0], beta[1], beta[2])).steps_to(target)
    if steps <= 0:
        raise ValueError(f"its loss is {target:g} before the first step")
    return steps
