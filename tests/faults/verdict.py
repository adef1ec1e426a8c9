"""Rules that must hold after a fault. `wrong` is pure, and every rule of it has a test that breaks it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .observation import Observation, RunSeen

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Expected:
    """Requirements on one case, beyond the rules that hold after every one (see `wrong`)."""

    codes: tuple[int, ...] = (FAILED,)
    """Exit codes that are right; negative: ended by that signal."""
    says: str | None = None
    """A pattern that the error or the end of stderr must match."""
    complete: bool | None = None
    """Value that each record must have as `complete`; None: that follows from the exit code."""
    tells: str | None = None
    """A pattern that the record's error or warnings must match: a change is said where the numbers stand."""
    leaves: bool = False
    """True if it may leave what `xbench clean` takes: a killed run cannot clean up."""
    at_least: int = 0
    """Number of whole blocks that the fault must find measured; fewer: the case missed its aim."""
    unaimed: bool = False
    """True if the run may have ended before the fault came: its ordinary end is right too."""
    silent: bool = False
    """True if it may end without a sentence: killed, or without a stderr to say it on."""
    keeps: bool = True
    """True if what was measured must be kept; False where its only disk was taken away."""
    errors: int = 1
    """At most so many sentences: of several runs at once, one each."""


def wrong(expected: Expected, seen: Observation) -> list[str]:
    """Every rule that is broken, one sentence each; none where all holds.

    After every case: the run ends by itself, with a right exit code and at most one sentence (exactly one where it
    failed, none where it did not), no traceback and no 'bug in xbench'; no process is left, and nothing else but what
    `xbench clean` takes, where that is allowed; every block that was whole in the journals of all ranks is in
    the record, or in the record rebuilt of the journals; no two runs are mixed; exit code 0 means a complete record.
    """
    if expected.unaimed and not seen.planted:
        expected = replace(expected, codes=(*expected.codes, DONE), complete=None, tells=None, says=None, at_least=0)
    found = [*seen.problems]
    if not seen.planted and not expected.unaimed:
        found.append("the fault was never planted: the run had ended before")
    found += _how_it_ended(expected, seen)
    found += _what_is_left(expected, seen)
    for run in seen.runs:
        found += _what_is_kept(expected, seen, run)
    if seen.units < expected.at_least:
        found.append(f"the fault missed its aim: {seen.units} blocks were whole, {expected.at_least} were wanted")
    if expected.tells is not None and not _told(expected.tells, seen):
        found.append(f"no record says what was changed: nothing matches {expected.tells!r}")
    return found


def _how_it_ended(expected: Expected, seen: Observation) -> list[str]:
    if seen.hung:
        return ["it hung: it did not end by itself"]
    found = []
    if seen.code not in expected.codes:
        found.append(f"exit code {seen.code}, and not {' or '.join(map(str, expected.codes))}")
    if seen.traceback:
        found.append("it printed a traceback")
    if seen.bug:
        found.append("it blamed itself: this is a bug in xbench")
    if len(seen.errors) > expected.errors:
        found.append(f"it said {len(seen.errors)} errors, and not one: {' | '.join(seen.errors[:3])}")
    if seen.code == DONE and seen.errors:
        found.append(f"it ended well and said an error: {seen.errors[0]}")
    if seen.code is not None and seen.code > 0 and not seen.errors and not expected.silent:
        found.append("it failed without a sentence")
    if expected.says is not None and not re.search(expected.says, "\n".join([*seen.errors, seen.said])):
        found.append(f"it did not say {expected.says!r}")
    return found


def _what_is_left(expected: Expected, seen: Observation) -> list[str]:
    found = [f"a process was left: {one}" for one in seen.processes]
    found += [f"left, and `xbench clean` does not take it: {one}" for one in seen.left_after_clean]
    if not expected.leaves:
        found += [f"left: {one}" for one in seen.left if one not in seen.left_after_clean]
    return found


def _what_is_kept(expected: Expected, seen: Observation, run: RunSeen) -> list[str]:
    found = [f"two runs are mixed: {sign}" for sign in run.mixed]
    record = run.record
    if record is None:
        if run.units and expected.keeps:
            found.append(f"lost: {len(run.units)} blocks are in the journals, and there is no record of {run.folder}")
        return found
    if record.broken is not None:
        return [*found, f"the record cannot be read: {record.broken}"]
    if expected.keeps and (lost := run.units - record.units):
        found.append(f"lost: {len(lost)} of {len(run.units)} blocks, such as {min(lost)!r}")
    if run.units and (foreign := record.units - run.units):
        found.append(f"two runs are mixed: the record holds {min(foreign)!r}, which no journal of its ranks does")
    if record.rebuilt and record.complete:
        found.append("a record was rebuilt of the journals, and does not say that it is incomplete")
    if record.complete and record.error:
        found.append(f"the record is complete, and holds an error: {record.error}")
    must = True if expected.complete is None and expected.tells is None and seen.code == DONE else expected.complete
    if must is not None and record.complete is not must:
        found.append(f"the record says complete: {record.complete}, and it is {must}")
    return found


def _told(pattern: str, seen: Observation) -> bool:
    return any(run.record is not None and re.search(pattern, run.record.words) for run in seen.runs)
