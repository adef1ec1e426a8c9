"""The verdict on made-up observations: each rule holds where it should, and breaks where it should."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .draws import as_case, draw, expected_of
from .observation import Observation, RecordSeen, RunSeen, Said, mixed_in, read_record, run_folders, units_of
from .suite import TITLES, Result, all_cases, keep, kept, share
from .verdict import DONE, FAILED, INTERRUPTED, Expected, wrong

UNITS = frozenset({"block ddp launch 0 round 0 job 0", "block wfbp launch 0 round 0 job 0"})
WHOLE = RunSeen("r", UNITS, record=RecordSeen("comparison", True, None, units=UNITS))
CUT = RunSeen("r", UNITS, record=RecordSeen("comparison", False, "rank 1 was killed", units=UNITS))
DONE_WELL = Observation(DONE, runs=(WHOLE,))
SENTENCE = "rank 1 on host 0 was killed"
FAILED_WELL = Observation(FAILED, errors=(SENTENCE,), said=f"error: {SENTENCE}", runs=(CUT,))


def test_what_holds_is_not_broken() -> None:
    assert wrong(Expected(codes=(DONE,), at_least=2), DONE_WELL) == []
    assert wrong(Expected(says=r"rank 1 .*killed", complete=False, tells="killed"), FAILED_WELL) == []


LEFT = "namespace xb123456-0"
ONE = frozenset([min(UNITS)])
ONE_LESS = RecordSeen("comparison", False, "e", units=ONE)
UNREADABLE = RecordSeen(None, None, None, broken="no JSON")
CONTRADICTION = RecordSeen("comparison", True, "e", units=UNITS)
REBUILT = RecordSeen("comparison", True, None, units=UNITS, rebuilt=True)


def failed(**changes: Any) -> Observation:
    """A failed run of which all is well but these."""
    return replace(FAILED_WELL, **changes)


BROKEN: dict[str, tuple[Expected, Observation, str]] = {
    "hang": (Expected(), failed(code=None), "hung"),
    "exit code": (Expected(), failed(code=2), "exit code 2"),
    "traceback": (Expected(), failed(traceback=True), "traceback"),
    "bug": (Expected(), failed(bug=True), "bug in xbench"),
    "two errors": (Expected(), failed(errors=("one", "two")), "2 errors"),
    "no sentence": (Expected(), failed(errors=()), "without a sentence"),
    "error, exit code 0": (Expected(codes=(DONE,)), replace(DONE_WELL, errors=("one",)), "ended well and said"),
    "another sentence": (Expected(says="rank 2"), FAILED_WELL, "did not say"),
    "process": (Expected(), failed(processes=("python worker",)), "a process was left"),
    "leftover": (Expected(), failed(left=(LEFT,)), f"left: {LEFT}"),
    "lasting leftover": (Expected(leaves=True), failed(left=(LEFT,), left_after_clean=(LEFT,)), "does not take"),
    "no record": (Expected(), failed(runs=(replace(CUT, record=None),)), "lost: 2 blocks"),
    "sample lost": (Expected(), failed(runs=(RunSeen("r", UNITS, record=ONE_LESS),)), "lost: 1 of 2"),
    "foreign sample": (Expected(), failed(runs=(replace(CUT, units=ONE),)), "no journal of its ranks"),
    "two beginnings": (Expected(), failed(runs=(replace(CUT, mixed=("2 beginnings",)),)), "two runs are mixed"),
    "unreadable record": (Expected(), failed(runs=(replace(CUT, record=UNREADABLE),)), "cannot be read"),
    "incomplete, exit code 0": (Expected(codes=(DONE,)), replace(DONE_WELL, runs=(CUT,)), "complete: False"),
    "complete, with an error": (Expected(), failed(runs=(replace(WHOLE, record=CONTRADICTION),)), "holds an error"),
    "rebuilt, complete": (Expected(), failed(runs=(replace(WHOLE, record=REBUILT),)), "not say that it is incomplete"),
    "change not told": (Expected(codes=(DONE,), tells="link"), DONE_WELL, "says what was changed"),
    "changed, complete": (Expected(codes=(DONE,), complete=False), DONE_WELL, "complete: True"),
    "missed aim": (Expected(at_least=3), FAILED_WELL, "missed its aim"),
    "never planted": (Expected(), failed(planted=False), "never planted"),
    "own finding": (Expected(), failed(problems=("2 runs made 1 record",)), "2 runs made 1 record"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str) -> None:
    expected, seen, said = BROKEN[name]
    found = wrong(expected, seen)
    assert len(found) == 1, found
    assert said in found[0]


def test_allowances_are_allowed() -> None:
    killed = Observation(-9, left=(LEFT,), runs=(replace(CUT, record=replace(CUT.record, rebuilt=True)),))  # type: ignore[type-var]
    assert wrong(Expected(codes=(-9,), silent=True, leaves=True), killed) == []
    assert wrong(Expected(keeps=False), replace(FAILED_WELL, runs=(replace(CUT, record=None),))) == []
    late = replace(DONE_WELL, planted=False)
    assert wrong(Expected(codes=(INTERRUPTED,), complete=False, unaimed=True), late) == []


def test_what_was_said_is_read() -> None:
    said = Said.of("launch 1\n\x1b[31merror:\x1b[0m rank 1 died\n  hint: try\nrerror: no\nerror: two\r")
    assert said.errors == ("rank 1 died", "two")
    assert not said.traceback
    assert Said.of("Traceback (most recent call last):\n  File").traceback
    assert Said.of("error: this is a bug in xbench: KeyError").bug


# --- journals and records ---------------------------------------------------------------------------------------------


def _block(mode: str, round_: int = 0, stamps: int = 5) -> dict[str, Any]:
    return {"event": "block", "mode": mode, "round": round_, "warmup": 2, "stamps": list(range(stamps))}


def _journal(folder: Path, job: int, rank: int, *events: dict[str, Any], tail: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(event) + "\n" for event in ({"event": "hello", "pid": 1}, *events))
    with open(folder / f"job{job}-rank{rank}.jsonl", "a") as stream:
        stream.write(lines + tail)


def test_a_block_counts_when_all_ranks_have_it(tmp_path: Path) -> None:
    launch = tmp_path / "run" / "launch0"
    _journal(launch, 0, 0, _block("ddp"), _block("wfbp"), _block("auto", stamps=3))
    _journal(launch, 0, 1, _block("ddp"), _block("auto", stamps=3), tail='{"event": "block", "mode": "wf')
    assert units_of(tmp_path / "run") == {"block ddp launch 0 round 0 job 0"}
    assert run_folders(tmp_path) == [tmp_path / "run"]
    assert mixed_in(tmp_path / "run") == ()
    _journal(launch, 0, 0)
    assert len(mixed_in(tmp_path / "run")) == 1


def test_two_jobs_at_once_are_one_measurement(tmp_path: Path) -> None:
    for job in (0, 1):
        for rank in (0, 1):
            blocks = [_block("sequential"), _block("crossover")]
            _journal(tmp_path / "launch2-2", job, rank, *(blocks if (job, rank) != (1, 1) else blocks[:1]))
    assert units_of(tmp_path) == {f"block sequential launch 2 round 0 job {job}" for job in (0, 1)}


def test_a_process_of_two_jobs_says_of_which_a_block_is(tmp_path: Path) -> None:
    both = [_block("crossover"), _block("crossover") | {"of_job": 1}]
    for rank in (0, 1):
        _journal(tmp_path / "launch0", 0, rank, *both, *([_block("crossover", 1)] if rank else []))
    assert units_of(tmp_path) == {f"block crossover launch 0 round 0 job {job}" for job in (0, 1)}


def test_a_curve_counts_when_all_ranks_have_it(tmp_path: Path) -> None:
    _journal(tmp_path, 0, 0, {"event": "trained", "mode": "ddp", "seed": 3})
    _journal(tmp_path, 0, 1, {"event": "trained", "mode": "ddp", "seed": 3})
    assert units_of(tmp_path) == {"curve ddp seed 3"}


def test_a_record_names_what_it_holds() -> None:
    sample = {"mode": "ddp", "launch": 0, "round": 0, "job": 0}
    record = read_record(json.dumps({"kind": "comparison", "complete": True, "samples": [sample], "warnings": ["w"]}))
    assert record.units == {"block ddp launch 0 round 0 job 0"}
    assert record.words == "\nw"
    assert read_record("{").broken is not None
    assert read_record("[]").broken is not None


# --- the table and the draws ------------------------------------------------------------------------------------------


def test_every_family_has_cases_and_a_share_has_every_family() -> None:
    table = all_cases()
    assert {one.family for one in table.values()} == set(TITLES) - {"draw"}
    drawn = share(table.values(), 20, seed=1)
    assert len({one.name for one in drawn}) == 20
    assert {one.family for one in drawn} == set(TITLES) - {"draw"}
    assert [one.name for one in share(table.values(), 20, seed=1)] == [one.name for one in drawn]


def test_draws_are_the_same_for_ever_and_reach_everything() -> None:
    many = draw(0, 400)
    assert draw(0, 5) == many[:5]
    assert draw(1, 5) != many[:5]
    assert len({as_case(one).name for one in many}) == 400
    assert set(Counter(one.target for one in many)) == {"parent", "rank", "agent", "link"}
    assert set(Counter(one.fabric for one in many)) == {"local", "shaped", "crossover", "emulated"}
    assert len({one.phase for one in many}) == 8


def test_a_killed_parent_is_never_asked_for_a_sentence_and_a_killed_rank_always_is() -> None:
    for one in draw(0, 400):
        if one.fault == "kill" and one.phase not in ("timeline", "end", "save"):
            assert expected_of(one).silent == (one.target == "parent")
            assert expected_of(one).codes == ((-9,) if one.target == "parent" else (FAILED,))


def test_results_are_kept_and_counted_until_a_case_holds(tmp_path: Path) -> None:
    output = tmp_path / "faults.json"
    assert kept(output) == kept(None) == {}
    for result in (
        Result("P-raise", [], {"code": 2}), Result("P-segv", ["a rule"], {}), Result("P-term", [], {}, "needs root"),
    ):  # fmt: skip
        keep(output, 0, result)
    counts = {"title": "faults in the probe of the model", "run": 2, "held": 1, "broken": 1, "skipped": 1}
    assert json.loads(output.read_text())["summary"] == {"P": counts}
    keep(output, 0, Result("P-segv", [], {}))
    assert list(kept(output)) == ["P-raise", "P-segv", "P-term"]
    assert kept(output)["P-segv"] == {"broken": [], "seen": {}, "skipped": None}
