"""Whole checks of a real repository whose trees answer at once: each holds an xbench that takes the step that it says.

Git, records and verdicts are real, and only what a launch does is not. Processes are real too, except in tests of what
is made of their answers (`ANSWERS`): a check starts about 20, each an interpreter.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from regress_fakes import MACHINE
from regress_tree import FAKE, SUITE, checked, git, request, stored, verdicts
from rich.console import Console

from xbench.errors import Interrupted, RunError, SpecError
from xbench.records import AnyRecord, Baseline, Noise, Regression, load, save
from xbench.regress import exit_code
from xbench.regress import record as recording
from xbench.regress.record import calibrate
from xbench.runs import run_folder
from xbench.runs.run_folder import keep
from xbench.stats.regression import noise_floor

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
        stored(root, ("deterministic", "wall"))
        (root / "launches").unlink()
    (root / "parameters").write_text("11")
    record, said = checked(root, base=base)
    assert verdicts(record) == {"step_time": "changed", "collectives": "changed"}
    assert "step: the model changed: 10 -> 11 parameters\nnothing is timed: the check fails already\n" in said
    assert (record.complete, record.pairs, (root / "launches").exists()) == (True, [], False)
    assert exit_code(record, strict=False) == 3


@ANSWERS
def test_a_larger_model_that_is_expected_passes_untimed_and_the_key_is_called_stale_later(root: Path) -> None:
    (root / "parameters").write_text("11")
    (root / "xbench.toml").write_text(f'{SUITE}expect_change = "parameters 10 -> 11"\n')
    record, _ = checked(root, base="HEAD")
    assert verdicts(record) == {"step_time": "expected", "collectives": "expected"}
    assert (record.pairs, exit_code(record, strict=True)) == ([], 0)
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", "a larger model")
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
    git(root, "add", "-A")
    git(root, "commit", "-m", "a smaller model")
    git(root, "checkout", "feature")
    record, said = checked(root, base="main", layers=("deterministic",))
    assert verdicts(record) == {"collectives": "equivalent"}
    parted = git(root, "rev-parse", "HEAD~1")
    assert record.base is not None
    assert record.base.revision == parted
    (warned,) = [warning for warning in record.warnings if "1 commit ahead" in warning]
    assert parted[:10] in warned
    assert warned in said


@ANSWERS
def test_a_file_that_git_ignores_is_named_where_base_fails_without_it(root: Path) -> None:
    (root / ".gitignore").write_text("*.pt\n")
    (root / "sample.pt").touch()
    (root / "needs").write_text("sample.pt")
    git(root, "add", "-A")
    git(root, "commit", "-m", "a file that is not in git")
    record, said = checked(root, base="HEAD", layers=("deterministic",))
    (case,) = record.cases
    (failure,) = record.failures
    assert (case.verdict, failure.side) == ("not comparable", "base")
    for text in (said, case.reason, failure.reason):
        assert "'sample.pt' is ignored by git" in text


@ANSWERS
def test_a_slow_down_that_was_put_in_on_purpose_is_found_and_named(root: Path) -> None:
    record, _ = checked(root, base="HEAD", slow_step=1.1)
    assert verdicts(record)["step_time"] == "regressed"
    assert record.injected == "every step of head takes 1.1 times as long"


@ANSWERS
def test_without_confirmation_the_first_launches_speak_alone(root: Path) -> None:
    record, _ = checked(root, base="HEAD", slow_step=1.1, confirm=False)
    assert record.confirmation == []
    assert verdicts(record)["step_time"] == "regressed"


def test_a_check_that_is_ended_keeps_what_it_has_and_leaves_nothing(root: Path) -> None:
    (root / "stop_at").write_text("4")  # head's: one that does not count, and three pairs before it
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        checked(root, base="HEAD")
    (path,) = (root / "results" / "runs").glob("*/record.json")
    record = load(path)
    assert isinstance(record, Regression)
    assert (record.complete, record.error, len(record.pairs)) == (False, "interrupted", 3)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def in_turns(root: Path) -> Path:
    """The same, where launches take turns; what had one is in `log`, wherever base is checked out."""
    source = FAKE.replace('tree.parent / "log"', f'Path({str(root.parent)!r}) / "log"')
    (root / "xbench" / "__main__.py").write_text(source)
    (root / "takes_turns").touch()
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", "turns")
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
    assert found.turn_steps is not None
    assert len(found.samples) > found.turn_steps


def test_a_check_that_is_ended_in_turns_keeps_what_it_has_and_leaves_nothing(in_turns: Path) -> None:
    (in_turns / "stop_at").write_text("4")
    with pytest.raises(Interrupted):
        checked(in_turns, base="HEAD")
    (path,) = (in_turns / "results" / "runs").glob("*/record.json")
    record = load(path)
    assert isinstance(record, Regression)
    assert (record.complete, record.error, len(record.pairs)) == (False, "interrupted", 3)
    assert list((in_turns.parent / "temporary").iterdir()) == []


def test_a_base_without_the_gate_is_not_comparable_in_one_sentence(root: Path) -> None:
    (root / "xbench" / "__main__.py").write_text("import sys; sys.exit(2)\n")
    git(root, "commit", "--quiet", "-am", "an xbench of long ago")
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
def test_the_baseline_of_this_machine_serves_the_next_check(root: Path) -> None:
    path = stored(root, ("deterministic", "wall"))
    assert path.parent.parent == root / "results" / "baselines"
    baseline = load(path)
    assert isinstance(baseline, Baseline)
    assert (path.parent.name, len(baseline.launches)) == (baseline.machine, 7)
    assert baseline.machine.startswith("cpu-")
    record, said = checked(root)
    assert verdicts(record) == {"step_time": "equivalent", "collectives": "equivalent"}
    assert record.against == "baseline"
    assert "check --base REV is the trustworthy way" in said
    assert any("measured earlier" in warning for warning in record.warnings)
    (root / "step_s").write_text("0.13")
    assert verdicts(checked(root)[0])["step_time"] == "regressed"


def test_a_baseline_that_loses_checks_is_said_to(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "baseline.json"
    golden = Path(__file__).parents[2] / "golden" / "baseline-v1.json"
    baseline = load(golden)
    assert isinstance(baseline, Baseline)
    path.write_bytes(golden.read_bytes())
    fewer = baseline.model_copy(
        update={"suite": baseline.suite.model_copy(update={"checks": baseline.suite.checks[:1]})}
    )
    recording._say_what_goes(path, fewer, said.append)
    lost = ", ".join(check.name for check in baseline.suite.checks[1:])
    assert said == [f"{path} no longer has {lost}: it holds the checks of this command alone"]
    recording._say_what_goes(path, baseline, said.append)
    assert len(said) == 1


def test_it_is_said_which_of_two_baselines_counts(tmp_path: Path) -> None:
    own, portable = (tmp_path / name / "baseline.json" for name in (recording.machine_of(MACHINE), "any"))
    said: list[str] = []
    for written in (own, portable):
        written.parent.mkdir()
        written.touch()
        recording._say_which_counts(written, tmp_path, MACHINE, said.append)
    recording._say_which_counts(own, tmp_path, MACHINE, said.append)
    assert said == [
        f"checks on this machine still compare with {own}, and not with {portable}: delete the one that is old",
        f"checks on this machine compare with {own} from now on, and not with {portable}",
    ]


@ANSWERS
def test_what_no_machine_changes_is_kept_for_any(root: Path) -> None:
    assert stored(root, ("deterministic",)).parent.name == recording.ANY
    record, _ = checked(root, layers=("deterministic",))
    assert verdicts(record) == {"collectives": "equivalent"}
    record, _ = checked(root)  # of which the clock's half has nothing to compare with
    assert verdicts(record)["collectives"] == "equivalent"
    assert verdicts(record)["step_time"] in ("missing", "not comparable", "inconclusive")
    assert exit_code(record, strict=False) == 0


@ANSWERS
def test_without_a_baseline_everything_is_missing_and_the_folders_that_are_there_are_named(root: Path) -> None:
    other = root / "results" / "baselines" / "cpu-of-another"
    path = stored(root, ("deterministic", "wall"))
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
def test_a_baseline_of_another_machine_names_the_field(root: Path) -> None:
    path = stored(root, ("deterministic", "wall"))
    path.write_text(path.read_text().replace('"a processor"', '"another"'))
    record, _ = checked(root, baseline=path)
    assert verdicts(record) == {"step_time": "not comparable", "collectives": "equivalent"}
    assert "cpu: another and a processor" in next(c.reason for c in record.cases if c.metric == "step_time")


@ANSWERS
def test_what_was_learned_of_the_noise_moves_the_threshold(root: Path) -> None:
    kept = calibrate(request(root, layers=("wall",), pairs=9), Console(file=io.StringIO()))
    assert isinstance(kept.record, Noise)
    assert kept.path.name == "noise.json"
    (floor,) = kept.record.floors
    assert (floor.measured_pairs, floor.checked_pairs) == (9, 7)
    (root / "xbench.toml").write_text(f'{SUITE}expect_change = "parameters 9 -> 10"\n')  # which changes no step
    record, said = checked(root, base="HEAD")
    (used,) = record.floors
    assert used.floor == pytest.approx(floor.floor)
    assert "noise floor of this machine is not known" not in said


@ANSWERS
def test_what_was_learned_of_launches_in_turns_says_nothing_of_others(root: Path) -> None:
    path = calibrate(request(root, layers=("wall",), pairs=9), Console(file=io.StringIO())).path
    noise = load(path)
    assert isinstance(noise, Noise)
    in_turns = [pair.model_copy(update={"in_turns": ("step",)}) for pair in noise.pairs]
    save(noise.model_copy(update={"pairs": in_turns}), path)
    record, _ = checked(root, base="HEAD")  # whose trees take no turns
    assert record.pairs[0].in_turns == ()
    assert record.floors == []


@ANSWERS
def test_a_baseline_has_the_noise_floor_of_its_own_launches(root: Path) -> None:
    baseline = load(stored(root, ("deterministic", "wall")))
    assert isinstance(baseline, Baseline)
    (floor,) = baseline.floors
    assert (floor.measured_pairs, floor.checked_pairs) == (6, 7)  # 7 launches: each and the next
    steps_s = [one.value for launch in baseline.launches for one in launch]
    differences = [math.log(after / before) for before, after in pairwise(steps_s)]
    assert floor.floor == pytest.approx(noise_floor(differences, 7))
    record, _ = checked(root)
    assert record.floors == [floor]


def test_a_calibration_that_is_ended_takes_no_floor_s_place(root: Path) -> None:
    (root / "stop_at").write_text("5")
    kept = calibrate(request(root, layers=("wall",)), Console(file=io.StringIO()))
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


@ANSWERS
def test_two_checks_of_one_second_have_folders_of_their_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20260131-142501")
    for _ in range(2):
        checked(root, base="HEAD")
    names = sorted(path.name for path in (root / "results" / "runs").iterdir() if path.is_dir())
    assert names == ["20260131-142501-regression", "20260131-142501-regression-2"]
