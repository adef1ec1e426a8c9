"""Facts seen of one run, as plain data: how it ended, what it said, what it left, what it measured and what it kept.

Nothing here starts or ends a process; traces.py sees what is left on the machine.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

JOURNAL = re.compile(r"job(?P<job>\d+)-rank(?P<rank>\d+)\.jsonl")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TOGETHER = ("block concurrent", "block crossover")
"""Two jobs at once are one measurement: it is whole when both jobs have their block."""


@dataclass(frozen=True)
class RecordSeen:
    """A record, from its file or rebuilt of the journals by `xbench report FOLDER --json -`."""

    kind: str | None
    complete: bool | None
    error: str | None
    warnings: tuple[str, ...] = ()
    units: frozenset[str] = frozenset()
    rebuilt: bool = False
    broken: str | None = None
    """Why it could not be read; nothing else is known then."""

    @property
    def words(self) -> str:
        """All that it says about how the run went."""
        return "\n".join([self.error or "", *self.warnings])


@dataclass(frozen=True)
class RunSeen:
    """A run's folder: what the journals of all its ranks hold in full (`units`), and its record, if there is one."""

    folder: str
    units: frozenset[str]
    mixed: tuple[str, ...] = ()
    """Signs that two runs wrote here."""
    record: RecordSeen | None = None


@dataclass(frozen=True)
class Observation:
    """One run after a fault was planted. `code` is None where the run had to be ended by force."""

    code: int | None
    seconds: float = 0.0
    planted: bool = True
    """True if the run was still alive, and in its phase, when the fault was planted."""
    errors: tuple[str, ...] = ()
    """The lines that begin with 'error:', without that word."""
    said: str = ""
    """The end of what it printed to stderr."""
    traceback: bool = False
    bug: bool = False
    processes: tuple[str, ...] = ()
    """Processes that lived on for `harness.GRACE_S` after the run had ended."""
    left: tuple[str, ...] = ()
    """Namespaces, files and folders outside of the run's folder, and half-written files in it."""
    left_after_clean: tuple[str, ...] = ()
    """Those of `left` that were still there after `xbench clean`."""
    runs: tuple[RunSeen, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems that the case's own steps found."""
    notes: tuple[str, ...] = ()

    @property
    def hung(self) -> bool:
        """True if it did not end by itself."""
        return self.code is None

    @property
    def units(self) -> int:
        """Blocks, curves and other pieces of measurement that were whole in the journals."""
        return sum(len(run.units) for run in self.runs)

    def summary(self) -> dict[str, Any]:
        """The facts that are kept in the results file."""
        kept = asdict(self) | {"units": self.units}
        kept["runs"] = [
            {
                "units": len(run.units), "kept": len(run.record.units) if run.record else None, "mixed": run.mixed,
                "complete": run.record.complete if run.record else None,
                "rebuilt": run.record.rebuilt if run.record else None,
                "error": run.record.error if run.record else None,
                "warnings": run.record.warnings if run.record else (),
                "broken": run.record.broken if run.record else None,
            }
            for run in self.runs
        ]  # fmt: skip
        empty: tuple[Any, ...] = ((), [], "", None)
        return {key: value for key, value in kept.items() if key in ("code", "planted") or value not in empty}


# --- what a run said --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """Facts that `Said.of` reads from stderr."""

    errors: tuple[str, ...]
    traceback: bool
    bug: bool
    tail: str

    @classmethod
    def of(cls, text: str) -> Said:
        """Read all that was printed. An error is counted once per line that begins with 'error:'."""
        lines = COLOUR.sub("", text).replace("\r", "\n").split("\n")
        errors = tuple(line.removeprefix("error:").strip()[:400] for line in lines if line.startswith("error:"))
        told = [line for line in lines if line.strip()]
        tail = "\n".join(line[:300] for line in told[-4:])
        return cls(errors, "Traceback (most recent call last)" in text, "this is a bug in xbench" in text, tail)


# --- what a run measured and kept -------------------------------------------------------------------------------------


def events_of(journal: Path) -> list[dict[str, Any]]:
    """Whole lines of a journal; a line that is cut short is left out."""
    with contextlib.suppress(OSError):
        return [event for line in journal.read_bytes().split(b"\n") if (event := _event(line)) is not None]
    return []


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def journals_of(folder: Path) -> dict[Path, dict[tuple[int, int], list[dict[str, Any]]]]:
    """Events by launch folder and (job, rank). A comparison has a folder for each launch, a convergence none."""
    found: dict[Path, dict[tuple[int, int], list[dict[str, Any]]]] = {}
    for path in sorted([*folder.glob("job*.jsonl"), *folder.glob("launch*/job*.jsonl")]):
        if name := JOURNAL.fullmatch(path.name):
            found.setdefault(path.parent, {})[(int(name["job"]), int(name["rank"]))] = events_of(path)
    return found


def units_of(folder: Path) -> frozenset[str]:
    """Names of what the journals of all ranks hold in full: blocks of modes, and curves of modes and seeds."""
    units: set[str] = set()
    for launch, journals in journals_of(folder).items():
        number = launch.name.removeprefix("launch").partition("-")[0] if launch != folder else "0"
        ranks = len({rank for _, rank in journals})
        seen: dict[tuple[str, int], int] = defaultdict(int)
        for (process_job, _), events in journals.items():
            # A process may hold both jobs: its events of the other name that one.
            named = ((_unit(event, number), event.get("of_job"), process_job) for event in events)
            for mine in {(name, own if of is None else of) for name, of, own in named if name is not None}:
                seen[mine] += 1
        whole: dict[str, set[int]] = defaultdict(set)
        for (name, job), count in seen.items():
            if count == ranks:
                whole[name].add(job)
        for name, jobs in whole.items():
            if name.startswith("curve"):
                units.add(name)
            elif not name.startswith(TOGETHER) or len(jobs) == 2:
                units |= {f"{name} job {job}" for job in jobs}
    return frozenset(units)


def _unit(event: Mapping[str, Any], launch: str) -> str | None:
    if event.get("event") == "block" and len(event["stamps"]) > event["warmup"] + 1:
        return f"block {event['mode']} launch {launch} round {event['round']}"
    if event.get("event") == "trained":
        return f"curve {event['mode']} seed {event['seed']}"
    return None


def mixed_in(folder: Path) -> tuple[str, ...]:
    """Journals in which more than one process wrote."""
    return tuple(
        f"{launch.name}/job{job}-rank{rank}.jsonl has {count} beginnings"
        for launch, journals in journals_of(folder).items()
        for (job, rank), events in journals.items()
        if (count := sum(event.get("event") == "hello" for event in events)) > 1
    )


def read_record(text: str, *, rebuilt: bool = False) -> RecordSeen:
    """A record's facts from its JSON."""
    try:
        content = json.loads(text)
        return RecordSeen(
            kind=content.get("kind"),
            complete=content.get("complete"),
            error=content.get("error"),
            warnings=tuple(str(one) for one in [*content.get("warnings", []), *content.get("findings", [])]),
            units=frozenset(_kept_units(content)),
            rebuilt=rebuilt,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return RecordSeen(None, None, None, rebuilt=rebuilt, broken=f"{type(error).__name__}: {error}"[:300])


def _kept_units(content: Mapping[str, Any]) -> Iterator[str]:
    for one in content.get("samples", []) if content.get("kind") == "comparison" else []:
        yield f"block {one['mode']} launch {one['launch']} round {one['round']} job {one['job']}"
    for one in content.get("curves", []):
        yield f"curve {one['mode']} seed {one['seed']}"


def run_folders(output: Path) -> list[Path]:
    """Every folder under an output folder in which ranks wrote journals, or a record lies."""
    found = {path.parent for path in output.rglob("record.json")}
    for path in output.rglob("job*-rank*.jsonl"):
        found.add(path.parent.parent if path.parent.name.startswith("launch") else path.parent)
    return sorted(found)
