"""`xbench regress baseline`: counts that later checks compare with, and the size of this machine's noise.

They are stored under results/baselines beside the suite. What holds on every machine (plans, counts, predictions from a
committed record) is in `any`. What depends on the machine is in a folder that is named after its fingerprint
(`xbench.environment.fingerprint`): counts of OF_THE_MACHINE, and A/A pairs. A check takes what it needs from each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from rich.console import Console

from xbench import environment
from xbench.errors import RecordError, RunError, SpecError, XbenchError
from xbench.interrupts import interrupts_held
from xbench.output_files import check_folder
from xbench.record_files import RECORD
from xbench.records import Baseline, Case, Environment, LaunchPair, Measurement, Side, Suite, load, of_kind
from xbench.regress.checkout import Checkout, working_tree
from xbench.regress.judge import floors_of
from xbench.regress.metrics import METRICS, wall_clock
from xbench.regress.session import Measuring, RegressRequest, speaker
from xbench.runs.run_folder import Kept, keep, measure_and_keep, new_run_folder
from xbench.runs.tune import format_minutes
from xbench.stats.regression import MIN_PAIRS
from xbench.text import counted

ANY = "any"
BASELINE, NOISE = "baseline.json", "noise.json"
OF_THE_MACHINE = frozenset({"peak_memory"})
"""Deterministic metrics that may differ on another machine or with another torch."""

AA_PAIRS = 20
"""Enough pairs to resample those of a check many times and see their spread."""


def baseline(request: RegressRequest, console: Console) -> Kept[Baseline]:
    """Measure this tree, and store its counts and its A/A pairs, in which the tree is its own base.

    Errors before a launch are raised, SpecError for fewer pairs than a noise floor takes; later ones are returned. The
    whole record is kept among the runs. It replaces what is stored only if it is complete and has every case's figure.
    """
    timed = "wall" in request.layers and bool(wall_clock(request.suite.cases()))
    if timed and request.pairs is not None and request.pairs < MIN_PAIRS:
        raise SpecError(
            f"--pairs {request.pairs}: a noise floor takes {MIN_PAIRS} pairs or more", hint=f"try --pairs {MIN_PAIRS}"
        )
    check_folder(folder_of(request.folder), "the baseline")
    making = _Making(request, console, timed=timed)
    kept = measure_and_keep(making.measure, making.ended, lambda _: making.path)
    if kept.record.complete:
        making.store(kept.record)
    return kept


class _Making:
    """A baseline in progress."""

    def __init__(self, request: RegressRequest, console: Console, *, timed: bool) -> None:
        self._request, self._timed = request, timed
        self._say = speaker(console)
        self._measuring = Measuring(request, self._say)
        self._head, self._revision = working_tree(request.folder)
        self._warnings = environment.noise_warnings() if timed else []
        self._side: Side | None = None
        self._checked_pairs = 0

    @cached_property
    def path(self) -> Path:
        """Path of the record, in a folder among the runs that is made for the first one."""
        return (new_run_folder(self._request.output, "baseline") / RECORD).absolute()

    def measure(self) -> None:
        """Count, then time pairs. Raises RunError if a case of the requested layers has no figure afterwards."""
        head, measuring = self._head, self._measuring
        self._side = measuring.look(head, head.title, self._revision)
        if self._side is None:
            return
        if self._timed:
            twin = Checkout("base", head.root, head.folder, head.head_root, f"{head.title}, as its own base")
            measuring.same_look(twin, head)
            measuring.first_launches((twin, head))
        if self._timed and measuring.timeable:
            self._checked_pairs = measuring.checked_pairs()
            pairs = self._request.pairs or _affordable(measuring)
            self._say(f"{pairs} pairs of launches of one tree: about {format_minutes(measuring.takes_s(pairs))}")
            measuring.run_pairs(twin, head, pairs, self._keep_so_far)
        self._check_whole(self._side)

    def ended(self, error: XbenchError | None) -> Baseline:
        """Return the record. Raises the error if there is nothing to record."""
        if self._side is None or isinstance(error, SpecError):
            raise self._measuring.nothing(error)
        return self._record(self._side, error, complete=error is None)

    def store(self, record: Baseline) -> None:
        """Write each part of the record in its place, and say what goes with the file that was there."""
        for folder, name, part in _parts(record):
            path = folder_of(self._request.folder) / folder / name
            _say_what_goes(path, part, self._say)
            self._say(f"stored: {keep(part, path)}")

    def _record(self, side: Side, error: XbenchError | None, *, complete: bool) -> Baseline:
        measuring = self._measuring
        return Baseline(
            **measuring.heading(error, self._warnings, complete=complete),
            machine=machine_of(side.environment),
            side=side,
            floors=floors_of(measuring.suite, measuring.pairs, self._checked_pairs),
        )

    def _keep_so_far(self) -> None:
        assert self._side is not None
        with interrupts_held():
            keep(self._record(self._side, None, complete=False), self.path)

    def _check_whole(self, side: Side) -> None:
        suite, layers = self._request.suite, self._request.layers
        known = {one.case for one in side.measurements} | _with_floors(suite, self._measuring.pairs)
        asked = [case for case in suite.cases() if METRICS[case.metric].layer in layers]
        lacking = [case for case in asked if case not in known]
        if not lacking:
            return
        first, more = lacking[0], len(lacking) - 1
        what = "noise floor" if METRICS[first.metric].layer == "wall" else "value"
        others = f" and {counted(more, 'other case')} have" if more else " has"
        why = next((f": {one.reason}" for one in self._measuring.failures if one.check == first.check), "")
        raise RunError(
            f"{first.check} {first.mode} {first.metric}{others} no {what}{why}",
            hint="what was stored before stays as it is; --check NAME measures other checks",
        )


def _affordable(measuring: Measuring) -> int:
    """Return the A/A pairs that the budget has room for. Raises RunError for fewer than a floor takes."""
    pair_s, budget_minutes = measuring.takes_s(1), measuring.suite.budget_minutes
    left_s = max(0.0, 60.0 * budget_minutes - measuring.spent_s)
    room = int(left_s / pair_s) if pair_s > 0 else AA_PAIRS
    if room < MIN_PAIRS:
        raise RunError(
            f"--budget: {budget_minutes:g} min have room for {counted(room, 'pair')}, and a floor takes {MIN_PAIRS}",
            hint=f"--pairs {MIN_PAIRS} runs them whatever they take",
        )
    return min(AA_PAIRS, room)


def _with_floors(suite: Suite, pairs: Sequence[LaunchPair]) -> set[Case]:
    """Return the cases with enough pairs for a noise floor.

    A case that is not above zero in one of them has no ratio and no floor, which is no failure. So it is among them,
    unless no case has a floor.
    """
    times = Counter(one.case for pair in pairs for one in pair.head if one.case in {other.case for other in pair.base})
    enough = {case for case, count in times.items() if count >= MIN_PAIRS}
    return enough if floors_of(suite, pairs, MIN_PAIRS) else set()


# --- storage ------------------------------------------------------------------------------------------------------


def _parts(record: Baseline) -> Iterator[tuple[str, str, Baseline]]:
    """Return the parts of a record that are stored, each with its folder and name."""

    def of(machine: str, counts: Sequence[Measurement], pairs: Sequence[LaunchPair] = ()) -> Baseline:
        side = record.side.model_copy(update={"measurements": list(counts)})
        floors = record.floors if pairs else []
        return record.model_copy(update={"machine": machine, "side": side, "pairs": list(pairs), "floors": floors})

    counts, machine = record.side.measurements, record.machine
    own = [one for one in counts if one.metric in OF_THE_MACHINE]
    portable = [one for one in counts if one not in own]
    if portable:
        yield ANY, BASELINE, of(ANY, portable)
    if own:
        yield machine, BASELINE, of(machine, own)
    if record.pairs:
        yield machine, NOISE, of(machine, [], record.pairs)


def _say_what_goes(path: Path, record: Baseline, say: Callable[[str], None]) -> None:
    """Report the checks that the file loses when this record replaces it. `--check NAME` measures some alone."""
    try:
        before = of_kind(load(path), Baseline) if path.exists() else None
    except RecordError:
        return
    if before is not None:
        lost = [check.name for check in before.suite.checks if check.name not in {c.name for c in record.suite.checks}]
        if lost:
            say(f"{path} no longer has {', '.join(lost)}: it holds the checks of this command alone")


def folder_of(suite_folder: Path) -> Path:
    """Return the folder of the baselines of all machines."""
    return suite_folder / "results" / "baselines"


def machine_of(described: Environment) -> str:
    """Return the folder's name for this machine and its software: 'cpu-3f9a1c02-77d0b1e4'."""
    kind = "cpu" if described.device == "cpu" else described.device.split(" and ")[0]
    word = "-".join("".join(letter if letter.isalnum() else " " for letter in kind.lower()).split())
    return f"{word}-{environment.fingerprint(described)}"


def stored_counts(folder: Path, described: Environment) -> list[tuple[Path, Baseline]]:
    """Return the stored counts that hold on this machine: its own, then those of any. Raises RecordError."""
    paths = (folder / machine / BASELINE for machine in (machine_of(described), ANY))
    return [(path, read_baseline(path)) for path in paths if path.exists()]


def base_of(stored: Sequence[Baseline]) -> Side:
    """Return one side with the counts of several baselines. Where two have a case, or a check, the first counts."""
    sides = [one.side for one in reversed(stored)]
    known = {one.case: one for side in sides for one in side.measurements}
    return stored[0].side.model_copy(
        update={
            "checks": tuple({check.name: check for side in sides for check in side.checks}.values()),
            "workloads": {name: workload for side in sides for name, workload in side.workloads.items()},
            "measurements": list(known.values()),
        }
    )


def machines_with_counts(folder: Path) -> list[str]:
    """Return the machines that have stored counts, by the names of their folders."""
    return sorted(path.parent.name for path in folder.glob(f"*/{BASELINE}"))


def read_baseline(path: Path) -> Baseline:
    """Read a baseline from its file or folder. Raises RecordError for anything else."""
    path = path / BASELINE if path.is_dir() else path
    record = load(path)
    found = of_kind(record, Baseline)
    if found is None:
        raise RecordError(
            f"{str(path)!r} is a {record.kind} record and no baseline", hint="xbench regress baseline makes one"
        )
    return found


def noise_of(folder: Path, described: Environment) -> Baseline | None:
    """Return the record with this machine's A/A pairs; None if there is none. Raises RecordError for a broken file."""
    path = folder / machine_of(described) / NOISE
    return read_baseline(path) if path.exists() else None
