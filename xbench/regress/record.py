"""`xbench regress record` and `calibrate`: what a later check compares with, and how far this machine's noise reaches.

Both are kept under results/baselines/<machine>/ beside the suite: see `baselines`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

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
    Kept,
    RegressRequest,
    check_place,
    guarded,
    head_tree,
    measuring_of,
    nothing_measured,
    speaker,
)
from xbench.regress.revision_runner import Checkout
from xbench.runs.build_records import now
from xbench.runs.run_folder import keep, new_run_folder
from xbench.runs.tune import format_minutes

CALIBRATION_PAIRS = 20
"""Enough to draw the pairs of a check from, again and again, and see their spread."""


def record(request: RegressRequest, console: Console) -> Kept:
    """Measure the suite and store it. What is wrong before a launch is raised; what goes wrong later is returned.

    What was cut short goes to the runs, and takes no baseline's place.
    """
    check_place(baselines.folder_of(request.folder))
    say = speaker(console)
    measuring = measuring_of(request, say)
    head, _, revision = head_tree(request)
    warnings = environment.noise_warnings() if "wall" in request.layers else []
    folder = baselines.folder_of(request.folder)
    unfinished = _Unfinished(request)
    side: Side | None = None

    def made(error: XbenchError | None, *, complete: bool) -> Baseline:
        assert side is not None
        launches = [pair.head for pair in measuring.pairs]
        shared = baselines.portable(request.suite, request.layers)
        return Baseline(
            created=now(),
            command=request.command,
            xbench=version(),
            machine=baselines.ANY if shared else baselines.machine_of(side.environment),
            complete=complete,
            error=str(error) if error is not None else None,
            warnings=list(dict.fromkeys([*warnings, *measuring.warnings])),
            suite=request.suite,
            side=side,
            launches=launches,
            floors=launch_floors(request.suite, launches, len(launches)),
            failures=measuring.failures,
        )

    def so_far() -> None:
        with interrupts_held():
            keep(made(None, complete=False), unfinished.path)

    def measure() -> None:
        nonlocal side
        side = measuring.look(head, head.title, revision)
        if side is None or "wall" not in request.layers:
            return
        measuring.first_launches((head,))
        if measuring.timeable:
            launches = measuring.course(request.pairs, 60.0 * request.suite.budget_minutes).pairs
            measuring.run_head(head, [[]] * launches, so_far)

    with interrupts_held() as held:
        error = guarded(measure, held)
        if side is None:
            raise nothing_measured(measuring, error)
        baseline = made(error, complete=error is None)
        path = folder / baseline.machine / baselines.BASELINE if error is None else unfinished.path
        _say_what_goes(path, baseline, say)
        path = keep(baseline, path)
        interrupted = held.interrupted()
    return Kept(baseline, path, error or interrupted)


def calibrate(request: RegressRequest, console: Console) -> Kept:
    """A/A: this tree against itself, to learn how far apart two launches of the same code are on this machine.

    The floors that are stored are of checks with as many pairs as a check of this suite would have; a check of another
    number draws its own from the pairs. What was cut short goes to the runs.
    """
    if not wall_clock(request.suite.cases()):
        raise SpecError("the suite has no wall-clock metric, so there is no noise to learn", hint="step_time is one")
    check_place(baselines.folder_of(request.folder))
    say = speaker(console)
    measuring = measuring_of(request, say)
    head, _, revision = head_tree(request)
    twin = Checkout("base", head.root, head.folder, head.head_root, f"{head.title}, as its own base")
    warnings = environment.noise_warnings()
    unfinished = _Unfinished(request)
    side: Side | None = None
    checked = 0

    def made(error: XbenchError | None, *, complete: bool) -> Noise:
        assert side is not None
        return Noise(
            created=now(),
            command=request.command,
            xbench=version(),
            machine=baselines.machine_of(side.environment),
            complete=complete,
            error=str(error) if error is not None else None,
            warnings=list(dict.fromkeys([*warnings, *measuring.warnings])),
            suite=request.suite,
            side=side,
            pairs=measuring.pairs,
            floors=floors_of(request.suite, measuring.pairs, checked),
            failures=measuring.failures,
        )

    def so_far() -> None:
        with interrupts_held():
            keep(made(None, complete=False), unfinished.path)

    def measure() -> None:
        nonlocal side, checked
        side = measuring.look(head, head.title, revision)
        if side is None:
            return
        measuring.same_look(twin, head)
        measuring.first_launches((twin, head))
        if measuring.timeable:
            checked = measuring.checked_pairs(60.0 * request.suite.budget_minutes)
            pairs = request.pairs or CALIBRATION_PAIRS
            say(f"{pairs} pairs of launches of one tree: about {format_minutes(measuring.takes_s(pairs))}")
            measuring.run_pairs(twin, head, pairs, so_far)

    with interrupts_held() as held:
        error = guarded(measure, held)
        if side is None:
            raise nothing_measured(measuring, error)
        noise = made(error, complete=error is None)
        stored = baselines.folder_of(request.folder) / noise.machine / baselines.NOISE
        path = stored if error is None else unfinished.path
        _say_what_goes(path, noise, say)
        path = keep(noise, path)
        interrupted = held.interrupted()
    return Kept(noise, path, error or interrupted)


def _say_what_goes(path: Path, record: Baseline | Noise, say: Callable[[str], None]) -> None:
    """Which checks the file had, and has no longer once this record replaces it: `--check NAME` measures some alone."""
    try:
        before = load(path) if path.exists() else None
    except RecordError:
        return
    stored = of_kind(before, Baseline) or of_kind(before, Noise)
    if stored is not None:
        lost = [check.name for check in stored.suite.checks if check.name not in {c.name for c in record.suite.checks}]
        if lost:
            say(f"{path} no longer has {', '.join(lost)}: it holds the checks of this command alone")


class _Unfinished:
    """The place of what was cut short: a folder among the runs, made when there is something to keep."""

    def __init__(self, request: RegressRequest) -> None:
        self._request = request

    @cached_property
    def path(self) -> Path:
        return (new_run_folder(self._request.output, "baseline") / RECORD).absolute()
