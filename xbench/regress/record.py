"""`xbench regress record` and `calibrate`: the baseline of later checks, and the size of this machine's noise.

Both are stored under results/baselines/<machine>/ beside the suite (`baselines`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from xbench import environment
from xbench.errors import RecordError, SpecError, XbenchError
from xbench.interrupts import interrupts_held
from xbench.record_files import RECORD
from xbench.records import Baseline, Noise, Side, load, of_kind
from xbench.regress import baselines, floors_of, launch_floors
from xbench.regress.metrics import wall_clock
from xbench.regress.protocol import version
from xbench.regress.request import (
    RegressRequest,
    check_place,
    head_tree,
    measuring_of,
    nothing_measured,
    speaker,
)
from xbench.regress.revision_runner import Checkout
from xbench.runs.build_records import now
from xbench.runs.run_folder import Kept, keep, measure_and_keep, new_run_folder
from xbench.runs.tune import format_minutes

CALIBRATION_PAIRS = 20
"""Enough pairs to resample those of a check many times and see their spread."""


def record(request: RegressRequest, console: Console) -> Kept[Baseline | Noise]:
    """Measure the suite and store it. Errors before a launch are raised; later ones are returned.

    An incomplete record is stored among the runs, and replaces no baseline.
    """
    recording = _Recording(request, console, noisy="wall" in request.layers)
    measuring = recording.measuring

    def made(error: XbenchError | None, *, complete: bool) -> Baseline:
        launches = [pair.head for pair in measuring.pairs]
        facts = recording.facts(error, complete=complete)
        if baselines.portable(request.suite, request.layers):
            facts["machine"] = baselines.ANY
        return Baseline(**facts, launches=launches, floors=launch_floors(request.suite, launches, len(launches)))

    def measure() -> None:
        if recording.look() is None or "wall" not in request.layers:
            return
        measuring.first_launches((recording.head,))
        if measuring.timeable:
            launches = measuring.course(request.pairs, 60.0 * request.suite.budget_minutes).pairs
            measuring.run_head(recording.head, [[]] * launches, lambda: recording.keep_so_far(made))

    return recording.run(measure, made, baselines.BASELINE)


def calibrate(request: RegressRequest, console: Console) -> Kept[Baseline | Noise]:
    """Measure this tree against itself (A/A), to find the difference between two launches of the same code here.

    The stored floors are for checks with as many pairs as a check of this suite would have. A check of another number
    resamples the pairs itself. An incomplete record is stored among the runs.
    """
    if not wall_clock(request.suite.cases()):
        raise SpecError("the suite has no wall-clock metric, so there is no noise to learn", hint="step_time is one")
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
            pairs = request.pairs or CALIBRATION_PAIRS
            recording.say(f"{pairs} pairs of launches of one tree: about {format_minutes(measuring.takes_s(pairs))}")
            measuring.run_pairs(twin, head, pairs, lambda: recording.keep_so_far(made))

    return recording.run(measure, made, baselines.NOISE)


class _Make(Protocol):
    """Function that builds the record of the measurements so far."""

    def __call__(self, error: XbenchError | None, *, complete: bool) -> Baseline | Noise: ...


class _Recording:
    """A baseline or a calibration in progress: this tree, its measurements, and the record's path."""

    def __init__(self, request: RegressRequest, console: Console, *, noisy: bool) -> None:
        check_place(baselines.folder_of(request.folder))
        self.say = speaker(console)
        self.measuring = measuring_of(request, self.say)
        self.head, _, self._revision = head_tree(request)
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

    def facts(self, error: XbenchError | None, *, complete: bool) -> dict[str, Any]:
        """Return the fields that a baseline and a calibration share."""
        assert self._side is not None
        return {
            "created": now(),
            "command": self._request.command,
            "xbench": version(),
            "machine": baselines.machine_of(self._side.environment),
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

    def run(self, measure: Callable[[], None], made: _Make, name: str) -> Kept[Baseline | Noise]:
        """Measure, and save the record: as `name` in this machine's folder if it is complete."""

        def ended(error: XbenchError | None) -> Baseline | Noise:
            if self._side is None or isinstance(error, SpecError):
                raise nothing_measured(self.measuring, error)
            return made(error, complete=error is None)

        def path_of(record: Baseline | Noise) -> Path:
            stored = baselines.folder_of(self._request.folder) / record.machine / name
            path = stored if record.complete else self._unfinished
            _say_what_goes(path, record, self.say)
            return path

        return measure_and_keep(measure, ended, path_of)


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
