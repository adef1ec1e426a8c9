"""Whole checks of a real repository whose trees answer at once: each holds an xbench that takes the step that it says.

Git, records and verdicts are real, and only what a launch does is not. Processes are real too, except in tests of what
is made of their answers (`ANSWERS`): a check starts about 20, each an interpreter.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
from pathlib import Path

import pytest
import sample_regressions as made
from regress_fakes import suite
from regress_tree import FAKE, SUITE, based, checked, commit, git, stored, verdicts
from test_regress_session import Bench

from xbench.errors import Interrupted, RunError, SpecError
from xbench.records import AnyRecord, Baseline, Regression, load, save
from xbench.regress import exit_code
from xbench.regress.baseline import AA_PAIRS, ANY, _affordable, _with_floors, base_of
from xbench.regress.session import Layer
from xbench.report.formats import junit
from xbench.runs import run_folder
from xbench.runs.run_folder import keep

pytestmark = pytest.mark.usefixtures("hangs_up")
ANSWERS = pytest.mark.usefixtures("in_this_process")


def test_a_slower_head_regresses_once_fresh_launches_agree(root: Path) -> None:
    (root / "step_s").write_text("0.12")
    record, said = checked(root, base="HEAD")
    assert verdicts(record) == {"step_time": "regressed", "collectives": "equivalent"}
    assert (len(record.pairs), len(record.confirmation)) == (7, 7)
    assert "suspected, so measured again by fresh launches: step ddp step_time" in said
    assert exit_code(record, strict=False) == 3
    assert record.head.revision == git(root, "rev-parse", "HEAD") + "+"


@ANSWERS
def test_an_unchanged_head_passes_without_a_second_look(root: Path) -> None:
    record, _ = checked(root, base="HEAD")
    assert verdicts(record) == {"step_time": "equivalent", "collectives": "equivalent"}
    assert record.confirmation == []
    assert exit_code(record, strict=True) == 0


@ANSWERS
@pytest.mark.parametrize("base", ["HEAD", None])
def test_a_larger_model_fails_before_anything_is_launched_to_be_timed(root: Path, base: str | None) -> None:
    if base is None:
        stored(root)
    (root / "parameters").write_text("11")
    record, said = checked(root, base=base)
    assert verdicts(record) == {"step_time": "changed", "collectives": "changed"}
    assert "step: the model changed: 10 -> 11 parameters\n" in said
    assert ("nothing is timed: the check fails already\n" in said) == (base is not None)
    assert (record.complete, record.pairs, (root / "launches").exists()) == (True, [], False)
    assert exit_code(record, strict=False) == 3


@ANSWERS
def test_a_larger_model_that_is_expected_passes_untimed_and_the_key_is_called_stale_later(root: Path) -> None:
    (root / "parameters").write_text("11")
    (root / "xbench.toml").write_text(f'{SUITE}expect_change = "parameters 10 -> 11"\n')
    record, _ = checked(root, base="HEAD")
    assert verdicts(record) == {"step_time": "expected", "collectives": "expected"}
    assert (record.pairs, exit_code(record, strict=True)) == ([], 0)
    commit(root, "a larger model")
    record, said = checked(root, base="HEAD")
    assert verdicts(record) == {"step_time": "equivalent", "collectives": "equivalent"}
    told = "step: the workload is that of base, so expect_change can go"
    assert told in said
    assert told in record.warnings


@ANSWERS
def test_what_base_alone_has_is_no_change_of_this_tree(root: Path) -> None:
    git(root, "checkout", "-b", "feature")
    git(root, "commit", "--allow-empty", "-m", "ours")
    git(root, "checkout", "main")
    (root / "parameters").write_text("9")
    commit(root, "a smaller model")
    git(root, "checkout", "feature")
    record, said = checked(root, base="main", layers=("deterministic",))
    assert verdicts(record) == {"collectives": "equivalent"}
    parted = git(root, "rev-parse", "HEAD~1")
    assert record.base.revision == parted
    (warned,) = [warning for warning in record.warnings if "1 commit ahead" in warning]
    assert parted[:10] in warned
    assert warned in said


@ANSWERS
def test_a_file_that_git_ignores_is_named_where_base_fails_without_it(root: Path) -> None:
    (root / ".gitignore").write_text("*.pt\n")
    (root / "sample.pt").touch()
    (root / "needs").write_text("sample.pt")
    commit(root, "a file that is not in git")
    record, said = checked(root, base="HEAD", layers=("deterministic",))
    (case,) = record.cases
    (failure,) = record.failures
    assert (case.verdict, failure.side) == ("not comparable", "base")
    for text in (said, case.reason, failure.reason):
        assert "'sample.pt' is ignored by git" in text


@ANSWERS
def test_without_confirmation_the_first_launches_speak_alone(root: Path) -> None:
    (root / "step_s").write_text("0.12")
    record, _ = checked(root, base="HEAD", confirm=False)
    assert record.confirmation == []
    assert verdicts(record)["step_time"] == "regressed"


@pytest.fixture
def in_turns(root: Path) -> Path:
    """The same, where launches take turns; what had one is in `log`, wherever base is checked out."""
    source = FAKE.replace('tree.parent / "log"', f'Path({str(root.parent)!r}) / "log"')
    (root / "xbench" / "__main__.py").write_text(source)
    (root / "takes_turns").touch()
    commit(root, "turns")
    return root


def test_launches_of_a_pair_are_alive_at_once_and_begin_by_turns(in_turns: Path) -> None:
    (in_turns / "step_s").write_text("0.12")
    record, _ = checked(in_turns, base="HEAD")
    assert verdicts(record)["step_time"] == "regressed"
    assert {pair.in_turns for pair in (*record.pairs, *record.confirmation)} == {("step",)}
    turns = (in_turns.parent / "log").read_text().split()
    assert turns == ["base", "head", "head", "base"] * 3 + ["base", "head"] + (
        ["base", "head", "head", "base"] * 3 + ["base", "head"]
    )
    (found,) = record.pairs[0].head
    assert len(found.samples) > found.turn_steps


@pytest.mark.parametrize("tree", ["root", "in_turns"])
def test_a_check_that_is_ended_keeps_what_it_has_and_leaves_nothing(tree: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(tree)
    (root / "stop_at").write_text("4")  # head's: one that does not count, and three pairs before it
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        checked(root, base="HEAD")
    (path,) = (root / "results" / "runs").glob("*/record.json")
    record = load(path)
    assert isinstance(record, Regression)
    assert (record.complete, record.error, len(record.pairs)) == (False, "interrupted", 3)
    assert list((root.parent / "temporary").iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_base_without_the_gate_is_not_comparable_in_one_sentence(root: Path) -> None:
    (root / "xbench" / "__main__.py").write_text("import sys; sys.exit(2)\n")
    commit(root, "an xbench of long ago")
    (root / "xbench" / "__main__.py").write_text(FAKE)
    record, said = checked(root, base="HEAD")
    assert set(verdicts(record).values()) == {"not comparable"}
    (why,) = {case.reason for case in record.cases}
    assert "has no xbench regress: it is older than this gate" in why
    assert "has no xbench regress" in said
    assert (exit_code(record, strict=False), exit_code(record, strict=True)) == (0, 5)


@ANSWERS
def test_a_base_without_the_suite_s_folder_is_not_comparable(root: Path) -> None:
    nested = root / "bench"
    nested.mkdir()
    for name in ("xbench.toml", "step_s"):
        shutil.copy(root / name, nested / name)
    record, _ = checked(nested, base="HEAD")
    assert {case.verdict for case in record.cases} == {"not comparable"}
    assert "has no folder 'bench'" in record.cases[0].reason


def test_a_head_that_cannot_be_measured_is_an_error_and_no_verdict(root: Path) -> None:
    (root / "xbench" / "__main__.py").write_text("raise SystemExit('the model is gone')\n")
    with pytest.raises(RunError, match=r"nothing could be measured: .*the model is gone"):
        checked(root, base="HEAD")


@ANSWERS
def test_stored_counts_serve_the_next_check_and_times_need_a_revision(root: Path) -> None:
    (path,) = stored(root)
    assert path.parent.name == ANY
    record, said = checked(root)
    assert (record.against, verdicts(record)) == ("baseline", {"step_time": "missing", "collectives": "equivalent"})
    assert "--base REV" in next(case.reason for case in record.cases if case.metric == "step_time")
    assert str(path) in said
    assert (exit_code(record, strict=False), exit_code(record, strict=True)) == (0, 5)
    record, _ = checked(root, layers=("deterministic",), baseline=path)
    assert exit_code(record, strict=True) == 0
    with pytest.raises(SpecError, match="no --base"):
        checked(root, layers=("wall",))


@ANSWERS
def test_what_each_place_holds_counts_whichever_was_written_last(root: Path) -> None:
    """Memory is of this machine, collectives are of any, and neither hides the other or the noise."""
    (root / "xbench.toml").write_text(SUITE.replace('"collectives"', '"collectives", "peak_memory"'))
    files = stored(root, ("deterministic", "wall"), pairs=9)
    assert [path.name for path in files] == ["baseline.json", "baseline.json", "noise.json"]
    kept = based(root, ("deterministic",))
    assert (len(kept.record.side.measurements), kept.record.pairs) == (2, [])
    held = {path: load(path) for path in files}
    assert [len(one.side.measurements) for one in held.values() if isinstance(one, Baseline)] == [1, 1, 0]
    assert [len(one.pairs) for one in held.values() if isinstance(one, Baseline)] == [0, 0, 9]
    assert files[0].parent.name == ANY
    assert files[1].parent.name.startswith("cpu-")
    record, _ = checked(root)
    assert verdicts(record) == {"step_time": "missing", "collectives": "equivalent", "peak_memory": "equivalent"}
    record, _ = checked(root, base="HEAD")
    assert len(record.floors) == 1


def test_of_two_baselines_of_a_case_the_machine_s_own_counts() -> None:
    own, portable = (made.baseline(), made.baseline())
    fewer = made.side(
        "any", measurements=[one.model_copy(update={"value": 9.0}) for one in made.side("x").measurements]
    )
    assert base_of([own, portable.model_copy(update={"side": fewer})]).measurements == own.side.measurements
    only = own.side.model_copy(update={"measurements": [], "checks": (made.SMALL,)})
    base = base_of([own.model_copy(update={"side": only}), portable])
    assert base.measurements == portable.side.measurements
    assert {check.name for check in base.checks} == {"resnet18", "small"}


@ANSWERS
def test_a_baseline_that_loses_checks_is_said_to(root: Path) -> None:
    stored(root)
    (root / "xbench.toml").write_text(SUITE.replace('"step"', '"other"'))
    based(root, ("deterministic",), said := io.StringIO())
    assert "no longer has step: " in said.getvalue()


@ANSWERS
def test_without_a_baseline_everything_is_missing_and_the_folders_that_are_there_are_named(root: Path) -> None:
    other = root / "results" / "baselines" / "cpu-of-another"
    (path,) = stored(root)
    shutil.move(path.parent, other)
    record, said = checked(root)
    assert set(verdicts(record).values()) == {"missing"}
    assert "but of cpu-of-another" in said
    assert record.failures == []
    assert any("nothing was compared" in warning for warning in record.warnings)
    assert (exit_code(record, strict=False), exit_code(record, strict=True)) == (0, 5)
    shutil.rmtree(other)
    with pytest.raises(SpecError, match="nothing to compare with") as caught:
        checked(root)
    assert "--base" in str(caught.value.hint)


@ANSWERS
def test_what_was_learned_of_the_noise_moves_the_threshold(root: Path) -> None:
    kept = based(root, ("wall",), pairs=9)
    (floor,) = kept.record.floors
    assert (floor.measured_pairs, floor.checked_pairs) == (9, 7)
    (root / "xbench.toml").write_text(f'{SUITE}expect_change = "parameters 9 -> 10"\n')  # which changes no step
    record, said = checked(root, base="HEAD")
    (used,) = record.floors
    assert used.floor == pytest.approx(floor.floor)
    assert "noise floor of this machine is not known" not in said


@ANSWERS
def test_what_was_learned_of_launches_in_turns_says_nothing_of_others(root: Path) -> None:
    (path,) = stored(root, ("wall",), pairs=9)
    noise = load(path)
    assert isinstance(noise, Baseline)
    in_turns = [pair.model_copy(update={"in_turns": ("step",)}) for pair in noise.pairs]
    save(noise.model_copy(update={"pairs": in_turns}), path)
    record, _ = checked(root, base="HEAD")  # whose trees take no turns
    assert record.pairs[0].in_turns == ()
    assert record.floors == []


def test_a_baseline_that_is_ended_takes_no_other_s_place(root: Path) -> None:
    (root / "stop_at").write_text("5")
    kept = based(root, ("wall",))
    assert isinstance(kept.error, Interrupted)
    assert kept.path.is_relative_to(root / "results" / "runs")
    assert list((root / "results").glob("baselines/**/*.json")) == []


@ANSWERS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_while_the_record_is_saved_comes_after_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def slowly(record: AnyRecord, path: Path) -> Path:
        if getattr(record, "complete", False):
            os.kill(os.getpid(), number)
        return keep(record, path)

    monkeypatch.setattr(run_folder, "keep", slowly)
    with pytest.raises(Interrupted):
        checked(root, base="HEAD")
    (path,) = (root / "results" / "runs").glob("*/record.json")
    record = load(path)
    assert isinstance(record, Regression)
    assert (record.complete, record.error) == (True, None)


# --- a part fails or is not known ---

UNCOUNTED = FAKE.replace('made["counted"] = ', 'made["failed"] = {"ddp": "boom"}\n    _ = ')
UNTIMED = FAKE.replace('made |= {"blocks": [block] * blocks', 'made |= {"error": "boom", "blocks": []')
UNBUILT = FAKE.replace('made |= {"environment"', 'made |= {"error": "no model"}\n    _ = {"environment"')
BOTH: tuple[Layer, ...] = ("deterministic", "wall")


def of_head(root: Path, program: str) -> None:
    assert program != FAKE
    (root / "xbench" / "__main__.py").write_text(program)


@ANSWERS
@pytest.mark.parametrize("base", [UNBUILT, "import sys; sys.exit(2)\n"])
def test_a_head_that_fails_counts_where_base_cannot_be_compared(root: Path, base: str) -> None:
    of_head(root, base)
    commit(root, "a base that cannot be compared")
    of_head(root, UNCOUNTED)
    found, _ = checked(root, base="HEAD")
    assert [(case.verdict, case.reason) for case in found.cases] == [("missing", "head failed: boom")] * 2
    assert exit_code(found, strict=False) == 1
    assert [case.status for case in junit.cases(found)] == ["error"] * 2


@ANSWERS
@pytest.mark.parametrize(
    ("program", "lacks"),
    [(UNTIMED, "step ddp step_time has no noise floor"), (UNCOUNTED, "step ddp collectives has no value")],
)
def test_a_stored_baseline_is_not_replaced_by_one_without_a_figure(root: Path, program: str, lacks: str) -> None:
    before = {path: path.read_bytes() for path in stored(root, BOTH, pairs=6)}
    of_head(root, program)
    kept = based(root, BOTH, pairs=6)
    assert isinstance(kept.error, RunError)
    assert str(kept.error).startswith(lacks)
    assert "--check NAME" in str(kept.error.hint)
    assert (len(before), before) == (2, {path: path.read_bytes() for path in before})
    assert kept.path.is_relative_to(root / "results" / "runs")
    assert (kept.record.complete, kept.record.error) == (False, str(kept.error))


def test_a_case_without_a_ratio_does_not_hold_up_the_others() -> None:
    """The second case is not above zero in one pair: it has no floor, but it was measured."""
    pairs = made.pairs({made.DDP: 1.0, made.OPTIMAL: 1.0}, count=6)
    first = pairs[0].head
    pairs[0] = pairs[0].model_copy(update={"head": [first[0], first[1].model_copy(update={"value": -0.001})]})
    assert _with_floors(made.SUITE, pairs) == {made.DDP, made.OPTIMAL}
    assert _with_floors(made.SUITE, pairs[1:]) == set()
    alone = [pair.model_copy(update={"base": pair.base[1:], "head": pair.head[1:]}) for pair in pairs]
    assert _with_floors(made.SUITE, alone) == set()


@pytest.mark.parametrize(("minutes", "pairs"), [(2.0, 8), (4.0, 18), (5.0, AA_PAIRS), (600.0, AA_PAIRS)])
def test_a_baseline_has_as_many_pairs_as_its_budget_has_room_for(minutes: float, pairs: int) -> None:
    """A pair takes 11.8 s, and 20 s have passed."""
    assert _affordable(Bench(suite(budget_minutes=minutes)).ready()) == pairs


def test_a_budget_without_room_for_a_floor_is_refused() -> None:
    with pytest.raises(RunError, match="--budget: 1 min have room for 3 pairs, and a floor takes 6") as caught:
        _affordable(Bench(suite(budget_minutes=1.0)).ready())
    assert caught.value.hint == "--pairs 6 runs them whatever they take"


@ANSWERS
def test_a_baseline_of_other_checks_says_nothing_of_the_noise_of_these(root: Path) -> None:
    based(root, ("wall",), pairs=6)
    renamed = SUITE.replace('"resnet18"', '"resnet34"').replace("pairs = 7", "")
    (root / "xbench.toml").write_text(renamed)
    found, said = checked(root, base="HEAD")
    assert "the noise floor of these checks is not known" in said
    assert "too noisy" not in said
    assert (len(found.pairs), found.floors) == (12, [])  # 7 can reach the p, and 5 are to spare


@ANSWERS
def test_a_base_with_submodules_is_warned_of(root: Path) -> None:
    (root / ".gitmodules").touch()
    commit(root, "submodules")
    found, _ = checked(root, base="HEAD", layers=("deterministic",))
    assert verdicts(found) == {"collectives": "equivalent"}
    assert any(warning.startswith("base has git submodules") for warning in found.warnings)
