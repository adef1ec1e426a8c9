"""Whole checks and baselines of which a part fails or is not known, on a tree that answers at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_regressions as made
from regress_fakes import suite
from regress_tree import FAKE, SUITE, based, checked, git, stored, verdicts
from test_regress_session import Bench

from xbench.errors import RunError, SpecError
from xbench.regress import exit_code
from xbench.regress.baseline import AA_PAIRS, _affordable, _with_floors
from xbench.report.formats import junit

pytestmark = pytest.mark.usefixtures("hangs_up", "in_this_process")
UNCOUNTED = FAKE.replace('made["counted"] = ', 'made["failed"] = {"ddp": "boom"}\n    _ = ')
UNTIMED = FAKE.replace('made |= {"blocks": [block] * blocks', 'made |= {"error": "boom", "blocks": []')
UNBUILT = FAKE.replace('made |= {"environment"', 'made |= {"error": "no model"}\n    _ = {"environment"')
BOTH = ("deterministic", "wall")


def of_head(root: Path, program: str) -> None:
    assert program != FAKE
    (root / "xbench" / "__main__.py").write_text(program)


@pytest.mark.parametrize("base", [UNBUILT, "import sys; sys.exit(2)\n"])
def test_a_head_that_fails_counts_where_base_cannot_be_compared(root: Path, base: str) -> None:
    of_head(root, base)
    git(root, "commit", "--quiet", "-am", "a base that cannot be compared")
    of_head(root, UNCOUNTED)
    found, _ = checked(root, base="HEAD")
    assert [(case.verdict, case.reason) for case in found.cases] == [("missing", "head failed: boom")] * 2
    assert exit_code(found, strict=False) == 1
    assert [case.status for case in junit.cases(found)] == ["error"] * 2


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


def test_a_baseline_of_too_few_pairs_is_refused(root: Path) -> None:
    with pytest.raises(SpecError, match="--pairs 5: a noise floor takes 6 pairs or more"):
        based(root, BOTH, pairs=5)
    assert not (root / "launches").exists()


@pytest.mark.parametrize(("minutes", "pairs"), [(2.0, 8), (4.0, 18), (5.0, AA_PAIRS), (600.0, AA_PAIRS)])
def test_a_baseline_has_as_many_pairs_as_its_budget_has_room_for(minutes: float, pairs: int) -> None:
    """A pair takes 11.8 s, and 20 s have passed."""
    assert _affordable(Bench(suite()).ready(), minutes) == pairs


def test_a_budget_without_room_for_a_floor_is_refused() -> None:
    with pytest.raises(RunError, match="--budget: 1 min have room for 3 pairs, and a floor takes 6") as caught:
        _affordable(Bench(suite()).ready(), 1.0)
    assert caught.value.hint == "--pairs 6 runs them whatever they take"


def test_a_baseline_of_other_checks_says_nothing_of_the_noise_of_these(root: Path) -> None:
    based(root, ("wall",), pairs=6)
    renamed = SUITE.replace('"resnet18"', '"resnet34"').replace("pairs = 7", "")
    (root / "xbench.toml").write_text(renamed)
    found, said = checked(root, base="HEAD")
    assert "the noise floor of these checks is not known" in said
    assert "too noisy" not in said
    assert (len(found.pairs), found.floors) == (12, [])  # 7 can reach the p, and 5 are to spare


def test_a_base_with_submodules_is_warned_of(root: Path) -> None:
    (root / ".gitmodules").touch()
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", "submodules")
    found, _ = checked(root, base="HEAD", layers=("deterministic",))
    assert verdicts(found) == {"collectives": "equivalent"}
    assert any(warning.startswith("base has git submodules") for warning in found.warnings)
