"""Rebuild the record of a killed `cluster run` or `cluster restart` from its frame and its journals."""

from __future__ import annotations

from pathlib import Path

from xbench.cluster.live import ledger
from xbench.cluster.live.outcome import outcome
from xbench.cluster.live.restart_result import RESTARTS, record_of
from xbench.cluster.live.state import State
from xbench.errors import RecordError
from xbench.records import LiveRun, Restart, RestartTimes
from xbench.runs.frames import LiveFrame, RestartFrame
from xbench.runs.rebuild import WHY, made, read_frame


def live(folder: Path) -> LiveRun:
    """The record of a run of a live cluster, whose journal is its ledger. Raises RecordError."""
    stored = read_frame(folder, LiveFrame)
    try:
        events, _ = ledger.read(folder)
    except OSError as failed:
        raise RecordError(f"{failed.filename} cannot be read: {failed.strerror}") from None

    def make() -> LiveRun:
        state = State.of(events)
        return outcome(state, None if state.over else WHY.replace("journals", "ledger"), stored.environment)

    return made(folder, make)


def restart(folder: Path) -> Restart:
    """The record of a study of restarts. Raises RecordError."""
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
