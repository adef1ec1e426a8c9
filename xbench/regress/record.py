"""`xbench regress record` and `calibrate`: the baseline of later checks, and the size of this machine's noise.

Both are stored under results/baselines/<machine>/ beside the suite, one folder for each kind of machine. A machine is
identified by its fingerprint (`xbench.environment.fingerprint`). If it differs, times cannot be compared. Results that
do not depend on the machine (plans, counts, predictions from a committed record) are stored under `any`. They serve
every machine without a folder of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from xbench import environment
from xbench.errors import RecordError, RunError, SpecError, XbenchError
from xbench.interrupts import interrupts_held
from xbench.output_files import check_folder
from xbench.record_files import RECORD, now
from xbench.records import Baseline, Case, Environment, LaunchPair, Measurement, Noise, Side, Suite, load, of_kind
from xbench.regress.checkout import Checkout
from xbench.regress.judge import floors_of, launch_floors
from xbench.regress.metrics import METRICS, wall_clock
from xbench.regress.request import RegressRequest, head_tree, measuring_of, nothing_measured, speaker
from xbench.regress.session import Measuring
from xbench.runs.run_folder import Kept, keep, measure_and_keep, new_run_folder
from xbench.runs.tune import format_minutes
from xbench.stats.regression import MIN_PAIRS
from xbench.text import counted
from xbench.version import __version__

ANY = "any"
BASELINE, NOISE = "baseline.json", "noise.json"
OF_THE_MACHINE = frozenset({"peak_memory"})
"""Deterministic metrics that may differ on another machine or with another torch."""

CALIBRATION_PAIRS = 20
"""Enough pairs to resample those of a check many times and see their spread."""


def record(request: RegressRequest, console: Console) -> Kept[Baseline | Noise]:
    """Measure the suite and store it. Errors before a launch are raised; later ones are returned.

    A record that is incomplete, or that lacks the value of a case, is stored among the runs. It replaces no baseline.
    """
    recording = _Recording(request, console, noisy="wall" in request.layers)
    measuring = recording.measuring

    def made(error: XbenchError | None, *, complete: bool) -> Baseline:
        launches = [pair.head for pair in measuring.pairs]
        facts = recording.facts(error, complete=complete)
        if _portable(request.suite, request.layers):
            facts["machine"] = ANY
        return Baseline(**facts, launches=launches, floors=launch_floors(request.suite, launches, len(launches)))

    def measure() -> None:
        if recording.look() is None or "wall" not in request.layers:
            return
        measuring.first_launches((recording.head,))
        if measuring.timeable:
            launches = measuring.plan_pairs(request.pairs, 60.0 * request.suite.budget_minutes).pairs
            measuring.run_head(recording.head, [[]] * launches, lambda: recording.keep_so_far(made))

    def known() -> set[Case]:
        return {one.case for one in chain(recording.measurements, *(pair.head for pair in measuring.pairs))}

    return recording.run(measure, made, BASELINE, known, "value")


def calibrate(request: RegressRequest, console: Console) -> Kept[Baseline | Noise]:
    """Measure this tree against itself (A/A), to find the difference between two launches of the same code here.

    The stored floors are for checks with as many pairs as a check of this suite would have. A check of another number
    resamples the pairs itself. A record that is incomplete, or that lacks pairs of a case, is stored among the runs.

    Raises SpecError for fewer pairs than a floor takes.
    """
    if not wall_clock(request.suite.cases()):
        raise SpecError("the suite has no wall-clock metric, so there is no noise to learn", hint="step_time is one")
    if request.pairs is not None and request.pairs < MIN_PAIRS:
        raise SpecError(
            f"--pairs {request.pairs}: a noise floor takes {MIN_PAIRS} pairs or more", hint=f"try --pairs {MIN_PAIRS}"
        )
    recording = _Recording(request, console, noisy=True)
    measuring, head = recording.measuring, recording.head
    twin = Checkout("base", head.root, head.folder, head.head_root, f"{head.title}, as its own base")
    checked = 0

    def made(error: XbenchError | None, *, complete: bool) -> Noise:
        floors = floors_of(request.suite, measuring.pairs, checked)
        return Noise(**recording.facts(error, complete=complete), pairs=measuring.pairs, floors=floors)

    def measure() -> None:
        nonlocal checked
        if recording.look() is None:
            return
        measuring.same_look(twin, head)
        measuring.first_launches((twin, head))
        if measuring.timeable:
            checked = measuring.checked_pairs(60.0 * request.suite.budget_minutes)
            pairs = request.pairs or _affordable(measuring, request.suite.budget_minutes)
            recording.say(f"{pairs} pairs of launches of one tree: about {format_minutes(measuring.takes_s(pairs))}")
            measuring.run_pairs(twin, head, pairs, lambda: recording.keep_so_far(made))

    return recording.run(measure, made, NOISE, lambda: _with_floors(request.suite, measuring.pairs), "noise floor")


def _affordable(measuring: Measuring, budget_minutes: float) -> int:
    """Return the pairs of a calibration that the budget has room for. Raises RunError for fewer than a floor takes."""
    pair_s = measuring.takes_s(1)
    left_s = max(0.0, 60.0 * budget_minutes - measuring.spent_s)
    room = int(left_s / pair_s) if pair_s > 0 else CALIBRATION_PAIRS
    if room < MIN_PAIRS:
        raise RunError(
            f"--budget: {budget_minutes:g} min have room for {counted(room, 'pair')}, and a floor takes {MIN_PAIRS}",
            hint=f"--pairs {MIN_PAIRS} runs them whatever they take",
        )
    return min(CALIBRATION_PAIRS, room)


class _Make(Protocol):
    """Function that builds the record of the measurements so far."""

    def __call__(self, error: XbenchError | None, *, complete: bool) -> Baseline | Noise: ...


class _Recording:
    """A baseline or a calibration in progress: this tree, its measurements, and the record's path."""

    def __init__(self, request: RegressRequest, console: Console, *, noisy: bool) -> None:
        check_folder(folder_of(request.folder), "the baseline")
        self.say = speaker(console)
        self.measuring = measuring_of(request, self.say)
        self.head, self._revision = head_tree(request)
        self._request = request
        self._warnings = environment.noise_warnings() if noisy else []
        self._side: Side | None = None

    @cached_property
    def _unfinished(self) -> Path:
        """Path of an incomplete record, in a folder among the runs that is made for the first one."""
        return (new_run_folder(self._request.output, "baseline") / RECORD).absolute()

    def look(self) -> Side | None:
        """Return this tree as a side; None if no check could be resolved."""
        self._side = self.measuring.look(self.head, self.head.title, self._revision)
        return self._side

    @property
    def measurements(self) -> list[Measurement]:
        """Deterministic measurements of this tree."""
        return self._side.measurements if self._side is not None else []

    def facts(self, error: XbenchError | None, *, complete: bool) -> dict[str, Any]:
        """Return the fields that a baseline and a calibration share."""
        assert self._side is not None
        return {
            "created": now(),
            "command": self._request.command,
            "xbench": __version__,
            "machine": machine_of(self._side.environment),
            "complete": complete,
            "error": str(error) if error is not None else None,
            "warnings": list(dict.fromkeys([*self._warnings, *self.measuring.warnings])),
            "suite": self._request.suite,
            "side": self._side,
            "failures": self.measuring.failures,
        }

    def keep_so_far(self, made: _Make) -> None:
        """Save the measurements so far."""
        with interrupts_held():
            keep(made(None, complete=False), self._unfinished)

    def run(
        self, measure: Callable[[], None], made: _Make, name: str, known: Callable[[], Collection[Case]], what: str
    ) -> Kept[Baseline | Noise]:
        """Measure, and save the record: as `name` in this machine's folder if it is complete.

        It is complete if the cases of the requested layers are `known`. `what` names what an unknown case lacks.
        """

        def measured() -> None:
            measure()
            if self._side is not None:
                self._check_whole(known(), what)

        def ended(error: XbenchError | None) -> Baseline | Noise:
            if self._side is None or isinstance(error, SpecError):
                raise nothing_measured(self.measuring, error)
            return made(error, complete=error is None)

        def path_of(record: Baseline | Noise) -> Path:
            stored = folder_of(self._request.folder) / record.machine / name
            path = stored if record.complete else self._unfinished
            _say_what_goes(path, record, self.say)
            if record.complete and name == BASELINE and self._side is not None:
                _say_which_counts(path, folder_of(self._request.folder), self._side.environment, self.say)
            return path

        return measure_and_keep(measured, ended, path_of)

    def _check_whole(self, known: Collection[Case], what: str) -> None:
        """Raise RunError for a case of the requested layers without the value, or the noise floor, that is stored."""
        layers = self._request.layers
        asked = [case for case in self._request.suite.cases() if METRICS[case.metric].layer in layers]
        lacking = [case for case in asked if case not in known]
        if not lacking:
            return
        first, more = lacking[0], len(lacking) - 1
        others = f" and {counted(more, 'other case')} have" if more else " has"
        why = next((f": {one.reason}" for one in self.measuring.failures if one.check == first.check), "")
        raise RunError(
            f"{first.check} {first.mode} {first.metric}{others} no {what}{why}",
            hint="what was stored before stays as it is; --check NAME records other checks",
        )


def _with_floors(suite: Suite, pairs: Sequence[LaunchPair]) -> set[Case]:
    """Return the cases with enough pairs for a noise floor.

    A case that is not above zero in one of them has no ratio and no floor, which is no failure. So it is among them,
    unless no case has a floor.
    """
    times = Counter(one.case for pair in pairs for one in pair.head if one.case in {other.case for other in pair.base})
    enough = {case for case, count in times.items() if count >= MIN_PAIRS}
    return enough if floors_of(suite, pairs, MIN_PAIRS) else set()


def _say_what_goes(path: Path, record: Baseline | Noise, say: Callable[[str], None]) -> None:
    """Report the checks that the file loses when this record replaces it. `--check NAME` measures some alone."""
    try:
        before = load(path) if path.exists() else None
    except RecordError:
        return
    stored = of_kind(before, Baseline) or of_kind(before, Noise)
    if stored is not None:
        lost = [check.name for check in stored.suite.checks if check.name not in {c.name for c in record.suite.checks}]
        if lost:
            say(f"{path} no longer has {', '.join(lost)}: it holds the checks of this command alone")


def _say_which_counts(written: Path, folder: Path, described: Environment, say: Callable[[str], None]) -> None:
    """Name the file that checks compare with, where this machine's and the one for any machine both exist."""
    own, portable = folder / machine_of(described) / BASELINE, folder / ANY / BASELINE
    if written == own and portable.exists():
        say(f"checks on this machine compare with {own} from now on, and not with {portable}")
    if written == portable and own.exists():
        say(f"checks on this machine still compare with {own}, and not with {portable}: delete the one that is old")


# --- storage ------------------------------------------------------------------------------------------------------


def folder_of(suite_folder: Path) -> Path:
    """Return the folder of the baselines of all machines."""
    return suite_folder / "results" / "baselines"


def machine_of(described: Environment) -> str:
    """Return the folder's name for this machine and its software: 'cpu-3f9a1c02-77d0b1e4'."""
    kind = "cpu" if described.device == "cpu" else described.device.split(" and ")[0]
    word = "-".join("".join(letter if letter.isalnum() else " " for letter in kind.lower()).split())
    return f"{word}-{environment.fingerprint(described)}"


def _portable(suite: Suite, layers: tuple[str, ...]) -> bool:
    """True if these layers of the suite give the same results on every machine."""
    asked = {metric for check in suite.checks for metric in check.metrics}
    return "wall" not in layers and not asked & OF_THE_MACHINE


def find_baseline(given: Path | None, folder: Path, described: Environment) -> tuple[Baseline | None, Path, str | None]:
    """Return the baseline to compare with, its actual or expected path, and a message if there is none.

    Without `given` it is this machine's, else the one for any machine. Raises RecordError if `given` does not exist or
    is no baseline.
    """
    if given is not None:
        return read_baseline(given), given, None
    own = folder / machine_of(described) / BASELINE
    for path in (own, folder / ANY / BASELINE):
        if path.exists():
            return read_baseline(path), path, None
    there = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{BASELINE}")))
    why = (
        f"nothing was compared: there is no baseline of this machine, {own.parent.name}, but of {there}; "
        "xbench regress record makes one here, and check --base REV needs none"
    )
    return None, own, why


def any_baseline(folder: Path) -> bool:
    """True if a baseline of any machine is stored."""
    return any(folder.glob(f"*/{BASELINE}"))


def read_baseline(path: Path) -> Baseline:
    """Read a baseline from its file or folder. Raises RecordError for anything else."""
    path = path / BASELINE if path.is_dir() else path
    record = load(path)
    baseline = of_kind(record, Baseline)
    if baseline is None:
        raise RecordError(
            f"{str(path)!r} is a {record.kind} record and no baseline", hint="xbench regress record makes one"
        )
    return baseline


def noise_of(folder: Path, described: Environment) -> Noise | None:
    """Return `calibrate`'s result on this machine; None if it was never run. Raises RecordError for a broken file."""
    path = folder / machine_of(described) / NOISE
    return of_kind(load(path), Noise) if path.exists() else None
