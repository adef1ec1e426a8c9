"""Record of a run that was killed, rebuilt from its frame and its journals by the code of live runs.

A journal's last line may be cut off and is then ignored; every line before it counts. A broken line elsewhere is
skipped with a warning. Nothing is written. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from xbench.errors import RecordError
from xbench.rank.journal import JournalReader, Take
from xbench.record_files import FRAME
from xbench.records import Comparison, Convergence, Profile
from xbench.runs.build_records import comparison_record, profile_record
from xbench.runs.converge import Curves, convergence_record
from xbench.runs.event_collector import Collector
from xbench.runs.frames import ConvergenceFrame, LiveFrame, RunFrame

WHY = "rebuilt from the journals: the run was killed, or has not ended yet"

Made = TypeVar("Made")
F = TypeVar("F", RunFrame, ConvergenceFrame, LiveFrame)


def measured(folder: Path) -> Profile | Comparison:
    """Rebuild the record of a profile, comparison or tuning. Raises RecordError."""
    stored = read_frame(folder, RunFrame)
    workloads = stored.workloads
    found = Collector(stored.run, [one.samples for one in workloads], [one.burst for one in workloads])
    found.failed.update(stored.failed)
    make = profile_record if stored.run.kind == "profile" else comparison_record

    def record() -> Profile | Comparison:
        for number, launch in launches(folder):
            found.begin_launch(number)
            _replay(launch, found.take)
        return make(stored, found, WHY)

    return made(folder, record)


def convergence(folder: Path) -> Convergence:
    """Rebuild the record of a convergence study. Raises RecordError."""
    stored = read_frame(folder, ConvergenceFrame)
    curves = Curves(stored.run.fabric.world_size, stored.run, stored.an_epoch, lambda said: None)

    def record() -> Convergence:
        _replay(folder, curves.take)
        return convergence_record(stored, curves, WHY)

    return made(folder, record)


def launches(folder: Path) -> list[tuple[int, Path]]:
    """Return the launches of a run's folder with their numbers, in order: `launch0`, `launch0-2` (a second start), …"""
    found = []
    for launch in folder.glob("launch*"):
        number, _, start = launch.name.removeprefix("launch").partition("-")
        if number.isdecimal() and (start.isdecimal() or not start) and launch.is_dir():
            found.append((int(number), int(start or 1), launch))
    return [(number, launch) for number, _, launch in sorted(found)]


def _replay(launch: Path, take: Take) -> None:
    """Pass on the events of all journals of a launch, by the time of each."""
    found = []
    for path in launch.glob("job*-rank*.jsonl"):
        job, _, rank = path.stem.removeprefix("job").partition("-rank")
        if job.isdecimal() and rank.isdecimal():
            found += [(int(job), int(rank), event) for event in JournalReader(launch, int(job), int(rank)).poll()]
    for job_, rank_, event in sorted(found, key=lambda one: (one[2].t, one[0], one[1])):
        take(job_, rank_, event)


def read_frame(folder: Path, kind: type[F]) -> F:
    """Read the frame of a run's folder. Raises RecordError."""
    path = folder / FRAME
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise RecordError(f"{str(path)!r} says nothing that a record can be made of: {first}") from None


def made(folder: Path, make: Callable[[], Made]) -> Made:
    """Return the record. Raises RecordError if the journals were changed or belong to another version."""
    try:
        return make()
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise RecordError(f"no record can be made of the journals in {str(folder)!r}: {told}") from None
