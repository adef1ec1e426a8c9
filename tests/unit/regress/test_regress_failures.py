"""Whole checks, records and calibrations of which a part fails or is not known, on a tree that answers at once."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import sample_regressions as made
from regress_fakes import suite
from regress_tree import FAKE, SUITE, checked, git, request, stored, verdicts
from rich.console import Console
from test_regress_session import Bench

from xbench.errors import RunError, SpecError
from xbench.records import Baseline, Noise
from xbench.regress import exit_code
from xbench.regress.record import CALIBRATION_PAIRS, _affordable, _with_floors, calibrate, record
from xbench.report.formats import junit
from xbench.runs.run_folder import Kept

pytestmark = pytest.mark.usefixtures("hangs_up", "in_this_process")
UNCOUNTED = FAKE.replace('made["counted"] = ', 'made["failed"] = {"ddp": "boom"}\n    _ = ')
UNTIMED = FAKE.replace('made |= {"blocks": [block] * blocks', 'made |= {"error": "boom", "blocks": []')
UNBUILT = FAKE.replace('made |= {"environment"', 'made |= {"error": "no model"}\n    _ = {"environment"')
BOTH = ("deterministic", "wall")


def of_head(root: Path, program: str) -> None:
    assert program != FAKE
    (root / "xbench" / "__main__.py").write_text(program)


def calibrated(root: Path, said: io.StringIO | None = None, **fields: object) -> Kept[Baseline | Noise]:
    return calibrate(request(root, layers=("wall",), **fields), Console(file=said or io.StringIO(), width=200))


@pytest.mark.parametrize("base", [UNBUILT, "import sys; sys.exit(2)\n"])
def test_a_head_that_fails_counts_where_base_cannot_be_compared(root: Path, base: str) -> None:
    of_head(root, base)
    git(root, "commit", "--quiet", "-am", "a base that cannot be compared")
    of_head(root, UNCOUNTED)
    found, _ = checked(root, base="HEAD")
    assert [(case.verdict, case.reason) for case in found.cases] == [("missing", "head failed: boom")] * 2
    assert exit_code(found, strict=False) == 1
    assert [case.status for case in junit.cases(found)] == ["error"] * 2


def test_a_stored_baseline_is_not_replaced_by_one_without_values(root: Path) -> None:
    path = stored(root, BOTH)
    before = path.read_bytes()
    for program, lacks in ((UNTIMED, "step ddp step_time has"), (UNCOUNTED, "step ddp collectives has")):
        of_head(root, program)
        kept = record(request(root, layers=BOTH), Console(file=io.StringIO()))
        assert isinstance(kept.error, RunError)
        assert str(kept.error) == f"{lacks} no value: boom"
        assert kept.error.hint == "what was stored before stays as it is; --check NAME records other checks"
        assert (path.read_bytes(), kept.path.is_relative_to(root / "results" / "runs")) == (before, True)
        assert (kept.record.complete, kept.record.error) == (False, str(kept.error))


def test_a_noise_floor_is_not_replaced_by_one_of_too_few_pairs(root: Path) -> None:
    path = calibrated(root, pairs=6).path
    before = path.read_bytes()
    of_head(root, UNTIMED)
    kept = calibrated(root, pairs=6)
    assert str(kept.error) == "step ddp step_time has no noise floor: boom"
    assert (path.read_bytes(), kept.path.is_relative_to(root / "results" / "runs")) == (before, True)


def test_a_case_without_a_ratio_does_not_hold_up_the_others() -> None:
    """The second case is not above zero in one pair: it has no floor, but it was measured."""
    pairs = made.pairs({made.DDP: 1.0, made.OPTIMAL: 1.0}, count=6)
    first = pairs[0].head
    pairs[0] = pairs[0].model_copy(update={"head": [first[0], first[1].model_copy(update={"value": -0.001})]})
    assert _with_floors(made.SUITE, pairs) == {made.DDP, made.OPTIMAL}
    assert _with_floors(made.SUITE, pairs[1:]) == set()
    alone = [pair.model_copy(update={"base": pair.base[1:], "head": pair.head[1:]}) for pair in pairs]
    assert _with_floors(made.SUITE, alone) == set()


def test_a_calibration_of_too_few_pairs_is_refused(root: Path) -> None:
    with pytest.raises(SpecError, match="--pairs 5: a noise floor takes 6 pairs or more"):
        calibrated(root, pairs=5)
    assert not (root / "launches").exists()


@pytest.mark.parametrize(
    ("minutes", "pairs"), [(2.0, 8), (4.0, 18), (5.0, CALIBRATION_PAIRS), (600.0, CALIBRATION_PAIRS)]
)
def test_a_calibration_has_as_many_pairs_as_its_budget_has_room_for(minutes: float, pairs: int) -> None:
    """A pair takes 11.8 s, and 20 s have passed."""
    assert _affordable(Bench(suite()).ready(), minutes) == pairs


def test_a_budget_without_room_for_a_floor_is_refused() -> None:
    with pytest.raises(RunError, match="--budget: 1 min have room for 3 pairs, and a floor takes 6") as caught:
        _affordable(Bench(suite()).ready(), 1.0)
    assert caught.value.hint == "--pairs 6 runs them whatever they take"


def test_a_calibration_of_other_checks_says_nothing_of_the_noise_of_these(root: Path) -> None:
    calibrated(root, pairs=6)
    renamed = SUITE.replace('"resnet18"', '"resnet34"').replace("pairs = 7", "")
    (root / "xbench.toml").write_text(renamed)
    found, said = checked(root, base="HEAD")
    assert "the noise floor of these checks is not known: xbench regress calibrate learns it" in said
    assert "too noisy" not in said
    assert (len(found.pairs), found.floors) == (12, [])  # 7 can reach the p, and 5 are to spare


@pytest.mark.parametrize(
    ("asked", "pairs", "reason"),
    [(None, 7, "as many as the baseline has"), (40, 7, "as many as the baseline has"), (3, 3, "as asked for")],
)
def test_a_check_against_a_baseline_says_why_it_has_so_many_pairs(
    root: Path, asked: int | None, pairs: int, reason: str
) -> None:
    stored(root, BOTH)
    found, said = checked(root, pairs=asked)
    assert len(found.pairs) == pairs
    assert f"{pairs} pairs of launches for 1 wall-clock case ({reason}): " in said


def test_a_base_with_submodules_is_warned_of(root: Path) -> None:
    (root / ".gitmodules").touch()
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", "submodules")
    found, _ = checked(root, base="HEAD", layers=("deterministic",))
    assert verdicts(found) == {"collectives": "equivalent"}
    assert any(warning.startswith("base has git submodules") for warning in found.warnings)
