"""A user's trace as a CSV; docs/cluster.md describes its columns. Strict: an unknown column or order is refused.

A job with `duration_s` instead of `work` is rigid. One with `loss_target` ends at this loss, 1/(β0·k + β1) + β2 after k
steps. `scale` is a record of `xbench plan --workers`, relative to the CSV, with work in samples.

The speed has to be known on the requested GPUs. Between two known numbers it is interpolated (see `TableSpeed`), and
outside them it stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from xbench.cluster.jobs import Job, RigidSpeed, Speed
from xbench.cluster.speeds import TableSpeed, checked_fact, scaled_speed
from xbench.cluster.traces import Rows, RowsPolicy, Trace
from xbench.cluster.traces.reading import Table, above_zero, gpus_of, number, read_table, whole
from xbench.errors import SpecError
from xbench.records import load
from xbench.text import counted

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
    sizes = _speed_columns(table)
    collected = Rows(path.name, rows)
    scaled = cache(lambda record, mode: scaled_speed(load(path.parent / record), mode))
    names: set[str] = set()
    before_s = 0.0

    def parse(row: int, cell: dict[str, str]) -> Job:
        nonlocal before_s
        job = _job(cell, sizes, scaled)
        if job.name in names:
            raise ValueError(f"there is already a job {job.name!r}")
        if job.arrival_s < before_s:
            raise ValueError(f"arrival_s {job.arrival_s:g} comes after {before_s:g}: rows go by arrival")
        before_s = job.arrival_s
        names.add(job.name)
        return job

    return collected.trace(collected.read(table, parse))


def _speed_columns(table: Table) -> list[int]:
    """N of each column speed_N, ascending. Raises SpecError for columns that contradict each other."""
    file, columns = table.file, table.column
    speeds = [name for name in columns if name.startswith("speed_")]
    for name in speeds:
        if not re.fullmatch(r"speed_[1-9]\d*", name):
            raise SpecError(f"{file} has a column {name!r}", hint="speed_4 is the speed on 4 GPUs")
    given = [name for name in SIZES if name in columns]
    if len(given) != 1:
        found = f"both {given[0]} and {given[1]}" if given else "none of duration_s, work and loss_target"
        raise SpecError(
            f"{file} has {found}", hint="duration_s for rigid jobs; work or a loss with speed_1, speed_2, ..."
        )
    lacking = [name for name in BETA if name not in columns]
    if TARGET in given and lacking:
        raise SpecError(f"{file} has {TARGET} and no {lacking[0]}", hint="a curve is 1/(β0·k + β1) + β2")
    if TARGET not in given and len(lacking) < len(BETA):
        raise SpecError(f"{file} has a loss curve and no {TARGET}", hint="say where a job is done")
    timed, scaled = "duration_s" in given, "scale" in columns
    if scaled and (speeds or TARGET in given):
        other = "speeds" if speeds else TARGET
        raise SpecError(f"{file} has both scale and {other}", hint="scale tells samples a second: give work")
    if "mode" in columns and not scaled:
        raise SpecError(f"{file} has mode and no scale", hint="mode says which of a scale record's")
    if not timed and not speeds and not scaled:
        raise SpecError(f"{file} has {given[0]} and no speed_1, speed_2, ...", hint="or give duration_s instead")
    if timed and (speeds or scaled):
        raise SpecError(f"{file} has duration_s and speeds", hint="give work instead of duration_s")
    return sorted(int(name.removeprefix("speed_")) for name in speeds)


def _job(cell: Mapping[str, str], sizes: Sequence[int], scaled: Callable[[str, str | None], TableSpeed]) -> Job:
    """The job of a row. `sizes` are those with a column of speeds."""
    if not cell["name"]:
        raise ValueError("name is empty")
    gpus = gpus_of(cell["gpus"], "gpus")
    speed: Speed = RigidSpeed(gpus)
    if sizes:
        columns = {size: f"speed_{size}" for size in sizes}
        known = {size: above_zero(cell[name], name) for size, name in columns.items() if cell[name]}
        if not known or not min(known) <= gpus <= max(known):
            raise ValueError(f"its speed is unknown on the {counted(gpus, 'GPU')} that it asks for")
        speed = TableSpeed.of(known)
    elif "scale" in cell:
        if not cell["scale"]:
            raise ValueError("scale is empty")
        speed = scaled(cell["scale"], cell.get("mode") or None)
        if gpus not in speed.sizes:
            raise ValueError(f"its speed is unknown on the {counted(gpus, 'GPU')} that it asks for in {cell['scale']}")
    size = next(name for name in SIZES if name in cell)
    work = _steps(cell) if size == TARGET else above_zero(cell[size], size)
    facts: dict[str, float | str] = {
        key: checked_fact(key, above_zero(cell[key], key) if key == "step_s" else number(cell[key], key))
        for key in FACTS
        if cell.get(key)
    }
    if cell.get("application"):
        facts["application"] = cell["application"]
    least, most = (whole(cell[name], name) if cell.get(name) else None for name in ("least", "most"))
    return Job(
        cell["name"],
        number(cell["arrival_s"], "arrival_s"),
        gpus,
        work,
        speed,
        1 if least is None else least,
        most,
        facts,
    )


def _steps(cell: Mapping[str, str]) -> float:
    """Steps, not rounded, after which loss(k) = 1/(β0·k + β1) + β2 is the target. Raises ValueError without any."""
    beta = [number(cell[name], name) for name in BETA]
    target = number(cell[TARGET], TARGET)
    slope, start, floor = beta
    if min(beta) < 0:
        raise ValueError(f"a loss curve's β is three numbers, none below zero, and {tuple(beta)} is not")
    if slope + start <= 0:
        raise ValueError("a loss curve of β0 = β1 = 0 is infinite")
    if target <= floor:
        raise ValueError(f"a loss of {target:g} is never reached: the curve tends to {floor:g}")
    if 1.0 / (target - floor) <= start:
        raise ValueError(f"its loss is {target:g} before the first step")
    if slope == 0:
        raise ValueError(f"a loss of {target:g} is never reached: the curve stays at {1.0 / start + floor:g}")
    return (1.0 / (target - floor) - start) / slope
