"""A trace of one's own, as a CSV. Strict: a column or an order that is not described here is refused.

| column | what |
| --- | --- |
| name | of the job, unlike all others |
| arrival_s | seconds since the trace began, not before the row above |
| gpus | that the job asks for |
| duration_s | on those GPUs, undisturbed; the job is then rigid |
| work | instead of duration_s: samples, steps, whatever the speeds are in |
| loss_target | instead of work: the job is done when its loss is this, and speeds are in steps |
| loss_beta0, loss_beta1, loss_beta2 | with it: its curve 1/(β0·k + β1) + β2 after k steps (see `loss_curve`) |
| speed_1, speed_2, speed_4, ... | with either: how much of it a second on so many GPUs; empty where that is not known |
| scale | instead of speeds: what `xbench scale` wrote, a path seen from the CSV; work is then in samples |
| mode | with it: which of its modes, where it has several |
| least, most | GPUs that it can run on, optional; empty: 1, and as many as there are |
| application | what it trains, optional |
| exposed, step_s, forward_share | facts for sharing policies, see `step_times`; optional; empty: not known |
| memory_bytes | that it needs of each GPU, likewise |

The speed has to be known on the GPUs that the job asks for; between two known numbers it is interpolated (see
`TableSpeed`), and outside them it stays unknown.

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
"""How much there is to do: one of these."""

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
    """The place of each column speed_N, by N. Raises SpecError for columns that contradict each other."""
    found = {}
    for name, place in table.column.items():
        if name.startswith("speed_"):
            if not re.fullmatch(r"speed_[1-9]\d*", name):
                raise SpecError(f"{table.file} has a column {name!r}", hint="speed_4 is the speed on 4 GPUs")
            found[int(name.removeprefix("speed_"))] = place
    given = [name for name in SIZES if name in table.column]
    if len(given) != 1:
        said = f"both {given[0]} and {given[1]}" if given else "none of duration_s, work and loss_target"
        raise SpecError(
            f"{table.file} has {said}", hint="duration_s for rigid jobs; work or a loss with speed_1, speed_2, ..."
        )
    lacking = [name for name in BETA if name not in table.column]
    if TARGET in given and lacking:
        raise SpecError(f"{table.file} has {TARGET} and no {lacking[0]}", hint="a curve is 1/(β0·k + β1) + β2")
    if TARGET not in given and len(lacking) < len(BETA):
        raise SpecError(f"{table.file} has a loss curve and no {TARGET}", hint="say where a job is done")
    timed, scaled = "duration_s" in given, "scale" in table.column
    if scaled and (found or TARGET in given):
        other = "speeds" if found else TARGET
        raise SpecError(f"{table.file} has both scale and {other}", hint="scale tells samples a second: give work")
    if "mode" in table.column and not scaled:
        raise SpecError(f"{table.file} has mode and no scale", hint="mode says which of a scale record's")
    if not timed and not found and not scaled:
        raise SpecError(f"{table.file} has {given[0]} and no speed_1, speed_2, ...", hint="or give duration_s instead")
    if timed and (found or scaled):
        raise SpecError(f"{table.file} has duration_s and speeds", hint="give work instead of duration_s")
    return dict(sorted(found.items()))


def _job(
    table: Table, cells: list[str], speeds: dict[int, int], scaled: Callable[[Path, str | None], TableSpeed]
) -> Job:
    def cell(column: str) -> str:
        place = table.column.get(column)
        return "" if place is None else cells[place]

    if not cell("name"):
        raise ValueError("name is empty")
    gpus = whole(cell("gpus"), "gpus")
    if gpus < 1:
        raise ValueError(f"gpus {cell('gpus')!r} is less than one")
    speed: Speed = RigidSpeed(gpus)
    if speeds:
        known = {size: above_zero(cells[place], f"speed_{size}") for size, place in speeds.items() if cells[place]}
        if not known or not min(known) <= gpus <= max(known):
            raise ValueError(f"there is no speed on the {gpus} GPUs that it asks for")
        speed = TableSpeed.of(known)
    elif "scale" in table.column:
        if not cell("scale"):
            raise ValueError("scale is empty")
        speed = scaled(Path(table.file).parent / cell("scale"), cell("mode") or None)
        if gpus not in (speed.sizes or (gpus,)):
            raise ValueError(f"there is no speed on the {gpus} GPUs that it asks for in {cell('scale')}")
    work = _steps(cell) if TARGET in table.column else above_zero(cell(size := _size(table)), size)
    facts: dict[str, float | str] = {key: _fact(key, cell(key)) for key in FACTS if cell(key)}
    if cell("application"):
        facts["application"] = cell("application")
    least = whole(cell("least"), "least") if cell("least") else 1
    most = whole(cell("most"), "most") if cell("most") else None
    return Job(cell("name"), number(cell("arrival_s"), "arrival_s"), gpus, work, speed, least, most, facts)


def _fact(key: str, cell: str) -> float:
    """Value of a fact that a policy may be told of a job. Raises ValueError for a value that the fact cannot have."""
    value = above_zero(cell, key) if key == "step_s" else number(cell, key)
    if key in ("exposed", "forward_share") and not 0 <= value < 1:
        raise ValueError(f"{key} = {value:g} is no share: it is from 0 to below 1")
    if value < 0:
        raise ValueError(f"{key} = {value:g} is below zero")
    return value


def _size(table: Table) -> str:
    return next(name for name in SIZES if name in table.column)


def _steps(cell: Callable[[str], str]) -> float:
    """To the target of its loss. Raises SpecError where the curve is none, or never gets there."""
    beta = [number(cell(name), name) for name in BETA]
    target = number(cell(TARGET), TARGET)
    steps = LossCurve((beta[0], beta[1], beta[2])).steps_to(target)
    if steps <= 0:
        raise ValueError(f"its loss is {target:g} before the first step")
    return steps
