"""Results of a study of restarts, from the journals of the attempts: parts of a restart, and two loss curves.

`record_of` makes the record of a whole study and of one that ended early, `rebuilt` that of one that was killed.
Nothing here imports torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar, get_args

from xbench.errors import RecordError
from xbench.rank.events import (
    CheckpointKept,
    Event,
    GroupJoined,
    ModelBuilt,
    RankReady,
    RankStarted,
    StepTrained,
)
from xbench.records import LossCheck, Restart, RestartPart, RestartResult, RestartTimes
from xbench.runs.frames import RestartFrame
from xbench.runs.rebuild import WHY, made, read_frame
from xbench.stats.summary import median_estimate
from xbench.units import format_seconds

Kind = TypeVar("Kind", bound=Event)
RESTARTS = "restarts.jsonl"
"""In the run's folder: a line of `RestartTimes` for each restart so far."""


def record_of(
    frame: RestartFrame,
    times: Sequence[RestartTimes],
    *,
    checkpoint_bytes: int | None = None,
    check: LossCheck | None = None,
    losses: Iterable[float] = (),
    uncut_losses: Iterable[float] = (),
    error: str | None = None,
) -> Restart:
    """The record of one restart at least. `error`: why the study ended early; `check` is then None.

    `losses` and `uncut_losses` by step.
    """
    results = results_of(times)
    return Restart(
        **{key: value for key, value in frame if key not in ("kind", "format")},
        complete=error is None,
        error=error,
        checkpoint_bytes=checkpoint_bytes,
        findings=findings(results, check),
        restarts=list(times),
        results=results,
        check=check,
        losses=[_number(one) for one in losses],
        uncut_losses=[_number(one) for one in uncut_losses],
    )


def rebuilt(folder: Path) -> Restart:
    """The record of a study that was killed, from its frame and the restarts so far. Raises RecordError."""
    stored = read_frame(folder, RestartFrame)
    try:
        lines = (folder / RESTARTS).read_bytes().split(b"\n")[:-1]  # after the last line end: cut off, or nothing
    except FileNotFoundError:
        raise RecordError(f"{str(folder)!r} has no restart that was timed") from None
    times = []
    for line in lines:
        try:
            times.append(RestartTimes.model_validate_json(line))
        except ValueError:
            stored.warnings.append(f"{RESTARTS} has a broken line, which was left out")
    return made(folder, lambda: record_of(stored, times, error=WHY.replace("the journals", RESTARTS)))


def times_of(
    stopped: Sequence[Event],
    started: Sequence[Event],
    asked_s: float,
    gone_s: float,
    from_workers: int,
    to_workers: int,
) -> RestartTimes:
    """The parts of one restart, from the two journals of rank 0 and from when the stop was asked for and done."""
    last, kept = _all_of(StepTrained, stopped)[-1], _all_of(CheckpointKept, stopped)[-1]
    hello, steps = _all_of(RankStarted, started)[0], _all_of(StepTrained, started)
    ends = {  # of each part
        "last_step_s": last.t,
        "checkpoint_s": kept.t,
        "teardown_s": gone_s,
        "start_s": hello.started_s,
        "imports_s": hello.t,
        "join_s": _all_of(GroupJoined, started)[0].t,
        "build_s": _all_of(ModelBuilt, started)[0].t,
        "load_s": _all_of(RankReady, started)[0].t,
        "first_step_s": steps[0].t,
    }
    # The last step may have ended in the instant in which the stop was asked for.
    lengths = [later - earlier for earlier, later in pairwise(accumulate([asked_s, *ends.values()], max))]
    ordinary = [later.t - earlier.t for earlier, later in pairwise(steps)]
    return RestartTimes(
        from_workers=from_workers,
        to_workers=to_workers,
        steps=last.step,
        step_s=statistics.median(ordinary) if ordinary else lengths[-1],
        **dict(zip(ends, lengths, strict=True)),
    )


def _all_of(kind: type[Kind], events: Iterable[Event]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def compare_losses(
    cut: dict[int, float], uncut: dict[int, float], tolerance: float, workers: Sequence[int], depends: Sequence[str]
) -> LossCheck:
    """Comparison of two loss curves: one if they have the same steps, and no loss differs by more than `tolerance`."""
    steps = sorted(cut.keys() | uncut.keys())
    worst, worst_step = 0.0, steps[0]
    for step in steps:
        one, other = cut.get(step, math.nan), uncut.get(step, math.nan)
        off = abs(one - other) / abs(other) if other else abs(one - other)
        if not off <= worst:  # a missing loss, or one that is no number, is the worst of all
            worst, worst_step = off, step
            if not math.isfinite(off):
                break
    return LossCheck(
        held=worst <= tolerance,
        steps=len(steps),
        worst=_number(worst),
        worst_step=worst_step,
        tolerance=tolerance,
        workers=list(workers),
        depends=list(depends),
    )


def findings(results: Sequence[RestartResult], check: LossCheck | None) -> list[str]:
    """The answer in sentences; None: the loss curves were not compared."""
    medians = {one.part: one.seconds.median for one in results if one.from_workers is None}
    total, lost = medians["total"], medians["lost"]
    parts = {name: medians[name] for name in ("checkpoint", "tear-down", "launch", "first step")}
    longest = max(parts, key=lambda name: parts[name])
    return [
        f"A restart takes {format_seconds(total)} from the stop being asked for to the first step applied, and "
        f"{format_seconds(lost)} of that are lost to training.",
        f"The longest part is {longest}: {format_seconds(parts[longest])}.",
        *([loss_sentence(check)] if check is not None else []),
    ]


def loss_sentence(check: LossCheck) -> str:
    """Sentence that says whether the loss curve goes on."""
    against = f"{check.steps} steps against a run without a stop"
    if check.worst == 0:
        return f"The loss curve goes on: {against}, every loss the same to the last bit."
    worst = "no number" if check.worst is None else f"{check.worst:.1e}"
    return (
        f"The loss curve {'goes on' if check.held else 'does NOT go on'}: {against}, largest relative difference "
        f"{worst} at step {check.worst_step}, allowed {check.tolerance:g}."
    )


def results_of(times: Sequence[RestartTimes]) -> list[RestartResult]:
    """Each part, over all restarts and each way by itself."""
    ways = list(dict.fromkeys((one.from_workers, one.to_workers) for one in times))
    found = []
    for way in [None, *ways]:
        here = [one for one in times if way is None or (one.from_workers, one.to_workers) == way]
        for part in get_args(RestartPart):
            seconds = median_estimate([one.part_s(part) for one in here])
            start, to = way or (None, None)
            found.append(RestartResult(part=part, from_workers=start, to_workers=to, seconds=seconds))
    return found


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
