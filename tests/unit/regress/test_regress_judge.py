"""From raw launches to verdicts and exit codes: every verdict, and every rule that leads to it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
import sample_regressions as made
from sample_regressions import DDP, OPTIMAL, TIMED, WFBP
from test_suite_file import suite_of

from xbench.records import Case, Failure, Judged, LaunchPair, Measurement, NoiseFloor, Regression
from xbench.regress import exit_code, floors_of, judge, pairs_for, suspected
from xbench.regress.judge import threshold_of
from xbench.report.formats import junit

BUCKETS = Case("resnet18", "optimal", "buckets")
PLANNED = Case("resnet18", "optimal", "planned_step")
COLLECTIVES = Case("small", "wfbp", "collectives")
EXACT = "changed, and it gates exactly: if that is meant, the check passes again once base has it"


def of(record: Regression, case: Case) -> Judged:
    return next(judged for judged in record.cases if judged.case == case)


def with_figure(case: Case, value: float) -> Regression:
    """A check whose head has another deterministic figure."""
    head = made.side("this tree")
    figures = [one.model_copy(update={"value": value}) if one.case == case else one for one in head.measurements]
    return made.regression(head=head.model_copy(update={"measurements": figures}))


def test_unchanged_code_passes() -> None:
    record = made.regression()
    assert [case.verdict for case in record.cases] == ["equivalent"] * len(made.SUITE.cases())
    assert suspected(record) == []
    assert exit_code(record, strict=True) == 0


def test_a_slow_down_is_suspected_then_confirmed() -> None:
    record = made.regression({OPTIMAL: 1.1})
    assert suspected(record) == [OPTIMAL]
    assert of(record, OPTIMAL).verdict == "inconclusive"
    assert "not yet confirmed" in of(record, OPTIMAL).reason
    assert exit_code(record, strict=False) == 0
    confirmed = judge(record.model_copy(update={"confirmation": made.pairs({OPTIMAL: 1.1})}))
    found = of(confirmed, OPTIMAL)
    assert (found.verdict, found.suspected) == ("regressed", True)
    assert found.found.ratio == pytest.approx(1.1, rel=0.01)
    assert found.found.ci95[0] > 1.025
    assert found.confirmation is not None
    assert exit_code(confirmed, strict=False) == 3


def test_fresh_launches_that_do_not_agree_acquit() -> None:
    record = made.regression({OPTIMAL: 1.1}, confirmation=made.pairs({OPTIMAL: 1.0}))
    assert of(record, OPTIMAL).verdict == "inconclusive"
    assert "do not agree" in of(record, OPTIMAL).reason
    assert exit_code(record, strict=False) == 0


def test_the_confirmation_is_a_family_of_its_own() -> None:
    record = made.regression({OPTIMAL: 1.2}, confirmation=made.pairs({OPTIMAL: 1.2}, count=7))
    assert of(record, OPTIMAL).verdict == "regressed"
    assert made.regression({OPTIMAL: 1.2}, count=7).cases[5].verdict == "inconclusive"


@pytest.mark.parametrize("ratio", [0.8, 0.97, 1.0, 1.04, 1.2])
def test_swapping_the_sides_swaps_the_verdicts(ratio: float) -> None:
    pairs = made.pairs(dict.fromkeys(TIMED, ratio))
    swapped = [pair.model_copy(update={"base": pair.head, "head": pair.base}) for pair in pairs]
    mirror = {"regressed": "improved", "improved": "regressed"}
    one, other = (made.regression(pairs=found, confirm=False, layers=("wall",)) for found in (pairs, swapped))
    assert [mirror.get(case.verdict, case.verdict) for case in one.cases] == [case.verdict for case in other.cases]
    for before, after in zip(one.cases, other.cases, strict=True):
        assert before.found.ratio == pytest.approx(1 / after.found.ratio)


@pytest.mark.parametrize("count", [1, 5, 7])
def test_too_few_pairs_say_so_and_how_many_it_takes(count: int) -> None:
    record = made.regression({OPTIMAL: 1.5}, count=count)
    told = of(record, OPTIMAL)
    assert told.verdict == "inconclusive"
    assert "cannot decide: 9 are the least for 3 cases at alpha 0.01" in told.reason
    assert "--pairs 9" in told.reason
    assert exit_code(record, strict=True) == 4
    assert pairs_for(made.SUITE) == 9


@pytest.mark.parametrize(("wider", "advised"), [(3, 18), (6, 54), (20, 200)])
def test_an_undecided_case_names_the_pairs_that_may_decide_it(
    wider: int, advised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "SPREAD", tuple(wider * noise for noise in made.SPREAD))
    told = of(judge(made.regression({OPTIMAL: 1.045})), OPTIMAL)
    assert told.verdict == "inconclusive"
    assert f"--pairs {advised}" in told.reason
    assert ("quieter machine" in told.reason) == (advised == 200)


@pytest.mark.parametrize(
    ("case", "value", "verdict", "reason"),
    [
        (BUCKETS, 4.0, "regressed", EXACT),
        (BUCKETS, 2.0, "regressed", EXACT),
        (COLLECTIVES, 0.0, "regressed", EXACT),
        (COLLECTIVES, 1000.0, "regressed", EXACT),
        (PLANNED, 0.403, "equivalent", "within 1 %"),
        (PLANNED, 0.41, "regressed", "more by 2.5 %"),
        (PLANNED, 0.39, "improved", "less by 2.5 %"),
    ],
)
def test_deterministic_figures_gate_at_once(case: Case, value: float, verdict: str, reason: str) -> None:
    record = with_figure(case, value)
    assert (of(record, case).verdict, of(record, case).reason) == (verdict, reason)
    assert (of(record, case).base, of(record, case).head) == (
        {BUCKETS: 3.0, PLANNED: 0.4, COLLECTIVES: 8.0}[case],
        value,
    )
    assert exit_code(record, strict=False) == (3 if verdict == "regressed" else 0)


def test_a_count_that_left_its_baseline_says_how_to_move_the_baseline() -> None:
    record = judge(with_figure(BUCKETS, 4.0).model_copy(update={"against": "baseline"}))
    assert "make a new baseline" in of(record, BUCKETS).reason


def test_a_layer_that_was_not_asked_for_is_not_judged() -> None:
    record = made.regression(layers=("deterministic",))
    assert {case.metric for case in record.cases} == {"buckets", "planned_step", "collectives"}
    assert {case.metric for case in made.regression(layers=("wall",)).cases} == {"step_time"}


def test_without_a_baseline_everything_is_missing() -> None:
    record = made.regression(base=None)
    assert {(case.verdict, case.reason) for case in record.cases} == {("missing", "there is no baseline")}
    assert (exit_code(record, strict=False), exit_code(record, strict=True)) == (0, 5)


def test_what_the_baseline_does_not_hold_is_missing() -> None:
    older = made.side("this tree", checks=(made.RESNET.model_copy(update={"modes": ("ddp",)}),))
    record = made.regression(base=older, against="baseline")
    assert of(record, OPTIMAL).reason == "the baseline has no such mode"
    assert of(record, WFBP).reason == "the baseline has no such check"
    assert (of(record, DDP).verdict, "--base" in of(record, DDP).reason) == ("missing", True)
    assert of(record, Case("resnet18", "ddp", "buckets")).verdict == "equivalent"


def test_another_machine_is_named_and_only_clocks_care() -> None:
    record = made.regression(base=ELSEWHERE)
    assert {of(record, case).reason for case in TIMED} == {"cores: 16 and 8"}
    assert {of(record, case).verdict for case in TIMED} == {"not comparable"}
    assert {case.verdict for case in record.cases if not case.wall_clock} == {"equivalent"}
    assert (exit_code(record, strict=False), exit_code(record, strict=True)) == (0, 5)


def test_another_fabric_compares_with_nothing() -> None:
    shaped = made.SMALL.model_copy(update={"fabric": "shaped:hosts=2,rate=1gbit"})
    record = made.regression(base=made.side("b", checks=(made.RESNET, shaped)))
    assert of(record, WFBP).reason == "fabric: shaped:hosts=2,rate=1gbit and local:ranks=2"


def test_memory_needs_the_same_torch() -> None:
    check = made.SMALL.model_copy(update={"metrics": ("peak_memory", "collectives")})
    suite = made.SUITE.model_copy(update={"checks": (check,)})
    peak = Case("small", "wfbp", "peak_memory")
    figures = [made.measured(peak, 1e6), made.measured(Case("small", "wfbp", "collectives"), 8.0)]
    one = made.side("this tree", checks=(check,), measurements=figures)
    other = one.model_copy(update={"environment": made.ENVIRONMENT.model_copy(update={"torch": "2.14.0"})})
    record = made.regression(suite=suite, base=other, head=one, pairs=[])
    assert [(case.verdict, case.reason) for case in record.cases] == [
        ("not comparable", "torch: 2.14.0 and 2.15.0"),
        ("equivalent", "the same"),
    ]


HEAD = Failure(check="small", mode="wfbp", side="head", pair=0, reason="rank 1 died: SIGKILL")
OLD = [Failure(check=name, side="base", reason="base is too old") for name in ("resnet18", "small")]
OTHERS = made.pairs({DDP: 1.0, OPTIMAL: 1.0})
FEW = made.pairs(dict.fromkeys(TIMED, 1.0))[:3]
SLOWER = made.pairs(dict.fromkeys(TIMED, 1.0) | {WFBP: 1.3})
ELSEWHERE = made.side("b", environment=made.ENVIRONMENT.model_copy(update={"cores": 16}))


@pytest.mark.parametrize(
    ("changes", "verdict", "reason", "code"),
    [
        ({"pairs": OTHERS, "failures": [HEAD]}, "missing", "head failed: rank 1 died: SIGKILL", 1),
        ({"pairs": OTHERS, "failures": [HEAD.model_copy(update={"side": "base"})]}, "missing", "base failed: ", 5),
        ({"pairs": FEW, "failures": [HEAD]}, "inconclusive", "3 pairs cannot decide", 1),
        ({"pairs": FEW}, "inconclusive", "3 pairs cannot decide", 4),
        ({"pairs": SLOWER, "failures": [HEAD]}, "inconclusive", "suspected, not yet .*; head failed: rank 1", 1),
        ({"base": None, "pairs": [], "failures": [*OLD, HEAD]}, "missing", "head failed: rank 1 died: SIGKILL", 1),
        ({"base": None, "pairs": [], "failures": OLD}, "not comparable", "base is too old", 5),
        ({"base": ELSEWHERE, "failures": [HEAD]}, "not comparable", "cores: 16 and 8", 1),
    ],
)
def test_a_head_that_fails_is_no_pass(changes: dict[str, Any], verdict: str, reason: str, code: int) -> None:
    record = made.regression(**changes)
    found = of(record, WFBP)
    assert (found.verdict, found.suspected) == (verdict, changes.get("pairs") is SLOWER)
    assert re.match(reason, found.reason)
    assert [exit_code(record, strict=strict) for strict in (False, True)] == [1 if code == 1 else 0, code]
    statuses = {case.name: case.status for case in junit.cases(record)}
    assert (statuses["wfbp step_time"] == "error") == (code == 1)


def test_a_pair_that_lost_a_side_does_not_count() -> None:
    pairs = made.pairs(dict.fromkeys(TIMED, 1.0))
    pairs[3] = pairs[3].model_copy(update={"head": [one for one in pairs[3].head if one.case != OPTIMAL]})
    assert of(made.regression(pairs=pairs), OPTIMAL).found.pairs == 9


def turns_of(values: Sequence[float], turn_steps: int | None) -> Measurement:
    value = statistics.median(values)
    return made.measured(DDP, value).model_copy(update={"samples": list(values), "turn_steps": turn_steps})


@pytest.mark.parametrize(
    ("base", "head", "turn_steps", "ratio"),
    [
        # The machine was half as fast in the second turn of both: turn by turn that is in neither.
        ([1.0, 1.0, 2.0, 2.0, 1.0, 1.0], [1.1, 1.1, 2.2, 2.2, 1.1, 1.1], 2, 1.1),
        # Its last turn alone disturbed head, and the median of the turns' ratios passes that over.
        ([1.0, 1.0, 1.0], [1.1, 1.1, 9.0], 1, 1.1),
        # Ratios 2 and 1/2: alike on both sides, so that they cancel.
        ([1.0, 1.0], [2.0, 0.5], 1, 1.0),
        # Head was cut short after two turns.
        ([1.0, 2.0, 9.0], [1.2, 2.4], 1, 1.2),
        # No turns: value over value.
        ([1.0, 1.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 3.0, 3.0], None, 0.5),
        # A turn that measured nothing above zero has no ratio to offer: value over value.
        ([1.0, 0.0, 2.0], [1.0, 1.0, 3.0], 1, 1.0),
    ],
)
def test_a_pair_in_turns_is_compared_turn_by_turn(
    base: list[float], head: list[float], turn_steps: int | None, ratio: float
) -> None:
    sides = [[turns_of(values, turn_steps)] for values in (base, head)]
    pair = LaunchPair(number=0, first="base", base=sides[0], head=sides[1])
    assert pair.ratio(DDP) == pytest.approx(ratio)
    assert pair.ratio(OPTIMAL) is None


def test_the_verdict_is_on_the_ratio_of_turns() -> None:
    found = made.regression(count=9)
    sped_up = [1.0, 1.0, 1.0, 4.0, 4.0]  # base's values say 1.0 and head's 4.0; turn by turn head is a tenth slower
    slower = [1.1, 1.1, 4.4, 4.4, 4.4]
    in_turns = [
        pair.model_copy(update={"base": [turns_of(sped_up, 1)], "head": [turns_of(slower, 1)]}) for pair in found.pairs
    ]
    judged = judge(found.model_copy(update={"pairs": in_turns, "confirmation": in_turns}))
    case = next(one for one in judged.cases if one.case == DDP)
    assert case.verdict == "regressed"
    assert case.found.ratio == pytest.approx(1.1)


def test_what_is_not_above_zero_has_no_ratio() -> None:
    exposed = Case("small", "wfbp", "exposed")
    check = made.SMALL.model_copy(update={"metrics": ("exposed",)})
    suite = made.SUITE.model_copy(update={"checks": (check,)})
    pairs = made.pairs({exposed: 1.0})
    pairs[0] = pairs[0].model_copy(update={"head": [made.measured(exposed, -0.001)]})
    sides = {"base": made.side("b", checks=(check,)), "head": made.side("h", checks=(check,))}
    record = made.regression(suite=suite, pairs=pairs, **sides)
    assert [case.verdict for case in record.cases] == ["inconclusive"]
    assert "above zero" in record.cases[0].reason


def test_regressions_come_before_everything_else() -> None:
    assert exit_code(made.slower(), strict=False) == 3
    assert exit_code(made.slower(), strict=True) == 3


def test_a_check_that_judged_nothing_proves_nothing() -> None:
    record = made.regression().model_copy(update={"cases": []})
    assert (exit_code(record, strict=False), exit_code(record, strict=True)) == (0, 4)


def test_judging_again_changes_nothing() -> None:
    assert judge(made.slower()) == made.slower()


def test_the_threshold_is_the_suite_s_else_the_larger_of_default_and_twice_the_floor() -> None:
    def floor(share: float) -> list[NoiseFloor]:
        return [NoiseFloor(**DDP._asdict(), floor=share, measured_pairs=20, checked_pairs=10)]

    quiet, loud = threshold_of(DDP, made.SUITE, floor(0.01)), threshold_of(DDP, made.SUITE, floor(0.04))
    assert (quiet.share, quiet.source, quiet.floor) == (0.05, "default", 0.01)
    assert (loud.share, loud.source, loud.floor) == (0.08, "noise floor", 0.04)
    assert threshold_of(OPTIMAL, made.SUITE, floor(0.04)).share == 0.05
    asked = made.SUITE.model_copy(update={"thresholds": {"step_time": 0.03}})
    assert (threshold_of(DDP, asked, floor(0.04)).share, threshold_of(DDP, asked, ()).source) == (0.03, "suite")
    assert threshold_of(BUCKETS, made.SUITE, ()).share == 0.0


def test_floors_are_of_wall_clock_cases_with_enough_pairs() -> None:
    floors = floors_of(made.SUITE, made.pairs({DDP: 1.0, OPTIMAL: 1.0}), 12)
    assert [floor.case for floor in floors] == [DDP, OPTIMAL]
    assert {(floor.measured_pairs, floor.checked_pairs) for floor in floors} == {(10, 12)}
    assert all(0.02 < floor.floor < 0.06 for floor in floors)
    assert floors_of(made.SUITE, made.pairs({DDP: 1.0}, count=5), 12) == []


def test_a_suite_of_counts_alone_needs_no_pairs() -> None:
    assert pairs_for(suite_of(metrics=["collectives"])) == 0
