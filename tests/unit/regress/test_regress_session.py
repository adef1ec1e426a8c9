"""A session of launches: their order, number and length, its record, launches that fail; orders and answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from regress_fakes import LAUNCH_S, MACHINE, WORKLOAD, Clock, FakeTree, check, suite

from xbench.records import Case, Suite
from xbench.regress import pairs_for
from xbench.regress.protocol import VERSION, Block, Counts, JobRequest, JobResult, Message, PlannedFigures
from xbench.regress.session import (
    MAX_STEPS,
    MIN_IN_TURN,
    MIN_STEPS,
    SPARE_PAIRS,
    TIRED,
    Layer,
    Measuring,
    RegressRequest,
    Shape,
    launch_s,
    pair_messages,
    pair_plan_of,
    shape_of,
)


class Bench:
    """A measuring of two fake trees."""

    def __init__(self, of: Suite, *layers: Layer, **fields: object) -> None:
        self.clock, self.log, self.said = Clock(), [], []
        self.base = FakeTree("base", self.clock, self.log, **fields.get("base", {}))  # type: ignore[arg-type]
        self.head = FakeTree("head", self.clock, self.log, **fields.get("head", {}))  # type: ignore[arg-type]
        request = RegressRequest(of, Path(), layers or ("deterministic", "wall"))
        self.measuring = Measuring(request, self.said.append, self.clock)
        self.sides = [self.measuring.look(tree, tree.title, None) for tree in (self.base, self.head)]

    def ready(self) -> Measuring:
        self.measuring.first_launches((self.base, self.head))
        self.log.clear()
        return self.measuring


def test_launches_go_a_b_b_a() -> None:
    bench = Bench(suite())
    bench.ready().run_pairs(bench.base, bench.head, 4, lambda: None)
    assert bench.log == [f"{side} time" for side in ["base", "head", "head", "base", "base", "head", "head", "base"]]
    assert [pair.first for pair in bench.measuring.pairs] == ["base", "head", "base", "head"]


def test_the_two_launches_of_a_pair_stand_side_by_side_in_every_check() -> None:
    bench = Bench(suite(check("one"), check("two")))
    bench.ready().run_pairs(bench.base, bench.head, 1, lambda: None)
    assert bench.log == ["base time", "head time", "base time", "head time"]
    assert [m.check for m in bench.measuring.pairs[0].base] == ["one", "two"]


def test_the_first_launch_of_each_side_counts_for_nothing_but_the_shape() -> None:
    bench = Bench(suite(), base={"step_s": {"ddp": 0.05}}, head={"step_s": {"ddp": 0.2}})
    measuring = bench.ready()
    assert measuring.pairs == []
    measuring.run_pairs(bench.base, bench.head, 1, lambda: None)
    shapes = {(order.rounds, order.steps) for tree in (bench.base, bench.head) for order in tree.orders[-1:]}
    assert shapes == {(2, 3)}  # 1.2 s of steps of 0.2 s, the slower side's, in two blocks, on both sides


def test_every_pair_is_kept_as_soon_as_it_is_there_with_its_times_and_samples() -> None:
    bench = Bench(suite(), head={"step_s": {"ddp": 0.11}})
    measuring = bench.ready()
    kept: list[int] = []
    measuring.run_pairs(bench.base, bench.head, 3, lambda: kept.append(len(measuring.pairs)))
    assert kept == [1, 2, 3]
    pair = measuring.pairs[1]
    assert (pair.number, pair.took_s) == (1, 2 * LAUNCH_S)
    assert pair.started_s == pytest.approx(6 * LAUNCH_S)  # two looks, two first launches, one pair
    (found,) = pair.head
    assert (found.value, found.unit, found.label) == (pytest.approx(0.11), "s", "real")
    assert found.samples == [pytest.approx(0.11)] * 10


def test_a_metric_is_made_of_the_steps_as_its_name_says() -> None:
    of = suite(check(metrics=("step_time", "time_per_sample", "exposed")))
    bench = Bench(of, base={"step_s": {"ddp": 0.1, "compute": 0.08}}, head={"step_s": {"ddp": 0.1, "compute": 0.08}})
    bench.ready().run_pairs(bench.base, bench.head, 1, lambda: None)
    found = {one.metric: one.value for one in bench.measuring.pairs[0].base}
    assert found == {
        "step_time": pytest.approx(0.1), "time_per_sample": pytest.approx(0.025), "exposed": pytest.approx(0.02)
    }  # fmt: skip
    assert bench.base.orders[-1].modes == ("compute", "ddp")
    assert {one.mode for one in bench.measuring.pairs[0].base} == {"ddp"}


TURNS = {"base": {"takes_turns": True}, "head": {"takes_turns": True}}


def test_where_both_sides_can_a_pair_is_alive_at_once_and_takes_turns() -> None:
    bench = Bench(suite(), **TURNS)
    bench.ready().run_pairs(bench.base, bench.head, 2, lambda: None)
    over = ["head is over", "base is over"]
    assert bench.log == ["base begins", "head begins", "base time", "head time", *over,
                         "head begins", "base begins", "head time", "base time", *over[::-1]]  # fmt: skip
    base, head = bench.base.orders[-1], bench.head.orders[-1]
    assert base.turn_folder.rpartition("/")[0] == head.turn_folder.rpartition("/")[0]
    assert base.turn_folder != head.turn_folder
    assert (base.rounds, base.turns, base.steps) == (head.rounds, head.turns, head.steps) == (2, 10, 2)
    (pair, _) = bench.measuring.pairs
    assert pair.in_turns == ("step",)
    assert len(pair.base[0].samples) == len(pair.head[0].samples) == 2 * 10 * 2


@pytest.mark.parametrize("unable", ["base", "head", "suite"])
def test_where_a_side_cannot_take_turns_or_the_suite_asks_for_none_launches_follow_each_other(unable: str) -> None:
    asked = suite(in_turns=unable != "suite")
    bench = Bench(asked, **{side: could for side, could in TURNS.items() if side != unable})
    bench.ready().run_pairs(bench.base, bench.head, 1, lambda: None)
    assert bench.log == ["base time", "head time"]
    assert bench.measuring.pairs[0].in_turns == ()
    assert bench.base.orders[-1].turn_folder is None


def test_a_side_that_fails_in_its_turns_leaves_the_other_s_figures() -> None:
    bench = Bench(suite(), base=TURNS["base"], head={**TURNS["head"], "trouble": {2: "rank 1 died"}})
    bench.ready().run_pairs(bench.base, bench.head, 2, lambda: None)
    assert [(len(pair.base), len(pair.head)) for pair in bench.measuring.pairs] == [(1, 0), (1, 1)]
    (failure,) = bench.measuring.failures
    assert (failure.side, failure.pair, failure.reason) == ("head", 0, "rank 1 died")


def test_only_what_is_suspected_is_launched_again() -> None:
    bench = Bench(suite(check("one", modes=("ddp", "wfbp")), check("two")))
    doubtful = [Case("one", "wfbp", "step_time")]
    bench.ready().run_pairs(bench.base, bench.head, 2, lambda: None, doubtful)
    assert bench.measuring.pairs == []
    assert [one.case for one in bench.measuring.confirmation[1].head] == doubtful
    assert bench.head.orders[-1].modes == ("wfbp",)


def test_a_launch_that_fails_leaves_its_side_of_the_pair_empty_and_says_why() -> None:
    bench = Bench(suite(), head={"trouble": {3: "rank 1 died"}})
    bench.ready().run_pairs(bench.base, bench.head, 4, lambda: None)
    assert [len(pair.head) for pair in bench.measuring.pairs] == [1, 0, 1, 1]
    assert [len(pair.base) for pair in bench.measuring.pairs] == [1, 1, 1, 1]
    (failure,) = bench.measuring.failures
    assert (failure.side, failure.pair, failure.mode, failure.reason) == ("head", 1, None, "rank 1 died")


def test_a_check_that_fails_again_and_again_is_given_up() -> None:
    bench = Bench(suite(), head={"trouble": dict.fromkeys(range(2, 100), "rank 1 died")})
    bench.ready().run_pairs(bench.base, bench.head, 10, lambda: None)
    assert bench.log.count("head time") == TIRED
    assert len(bench.measuring.failures) == 1  # the same sentence is not kept ten times
    (case,) = {case for one in bench.measuring.pairs for case in (found.case for found in one.base)}
    bench.measuring.run_pairs(bench.base, bench.head, 10, lambda: None, [case])
    assert bench.log.count("head time") == 2 * TIRED  # the launches that confirm are tried anew


def test_a_check_whose_first_launch_fails_is_not_timed() -> None:
    bench = Bench(suite(), base={"trouble": {1: "no memory"}})
    assert bench.ready().timeable == []
    assert [(one.side, one.pair, one.reason) for one in bench.measuring.failures] == [("base", None, "no memory")]


def test_a_check_without_a_metric_of_the_layer_is_not_even_looked_at() -> None:
    of = suite(check("counts", metrics=("buckets",)), check("step"))
    bench = Bench(of, "deterministic")
    assert bench.log == ["base look", "head look"]
    side = bench.sides[1]
    assert [(one.case, one.value, one.label) for one in side.measurements] == [
        (Case("counts", "ddp", "buckets"), 4, "simulated")
    ]
    assert side.checks == of.checks


def test_ranks_are_started_for_a_look_only_where_something_is_to_be_counted() -> None:
    for metric, counted, planned in (("buckets", False, True), ("wire_bytes", True, False)):
        bench = Bench(suite(check(metrics=(metric,))))
        (order,) = bench.head.orders
        assert (order.counted, order.planned) == (counted, planned)


def test_progress_says_what_runs_and_what_remains() -> None:
    bench = Bench(suite())
    bench.ready()
    bench.said.clear()
    bench.measuring.run_pairs(bench.base, bench.head, 3, lambda: None)
    assert bench.said[1:] == ["pair 2 of 3; about 20 s left", "pair 3 of 3; about 10 s left"]


@pytest.mark.parametrize(("step_s", "steps"), [(0.1, 6), (0.001, MAX_STEPS), (5.0, MIN_STEPS), (0.0, MAX_STEPS)])
def test_a_launch_times_about_a_second_of_the_slowest_mode(step_s: float, steps: int) -> None:
    assert shape_of({"ddp": step_s, "wfbp": step_s / 2}) == Shape(2, steps)


@given(st.floats(1e-4, 30), st.integers(1, 9))
def test_a_block_is_made_of_whole_cycles(step_s: float, cycle: int) -> None:
    for shape, fewest in ((shape_of({"spb": step_s}, cycle), MIN_STEPS),
                          (shape_of({"spb": step_s}, cycle, turns=True), MIN_IN_TURN)):  # fmt: skip
        assert shape.steps % cycle == 0
        assert shape.steps >= fewest


@pytest.mark.parametrize(
    ("step_s", "turns", "steps"), [(0.016, 21, 6), (0.1, 10, 2), (1.0, 2, 2), (0.001, 24, MAX_STEPS), (0.0, 24, 60)]
)
def test_a_turn_is_a_fraction_of_a_second_or_two_steps(step_s: float, turns: int, steps: int) -> None:
    assert shape_of({"ddp": step_s}, turns=True) == Shape(2, steps, turns)
    assert Shape(2, steps, turns).timed_steps == 2 * steps * turns


def test_a_longer_launch_is_longer_by_its_steps() -> None:
    assert launch_s(5.0, Shape(2, 6), {"ddp": 0.1, "wfbp": 0.2}) == pytest.approx(5.0 + 9 * 0.3)


def test_without_a_word_there_are_pairs_to_spare() -> None:
    of = suite()
    plan = pair_plan_of(of, 10.0, pairs=None, left_s=600.0)
    assert (plan.pairs, plan.needed) == (pairs_for(of) + SPARE_PAIRS, pairs_for(of))
    assert plan.pair_s == 10.0
    assert not plan.too_few


def test_the_budget_bounds_them_and_is_named() -> None:
    plan = pair_plan_of(suite(budget_minutes=1), 10.0, pairs=None, left_s=50.0)
    assert (plan.pairs, plan.too_few) == (5, True)
    first, second = pair_messages(plan, 1)
    assert first.startswith(
        "5 pairs of launches for 1 wall-clock case (what the budget of 1 min has room for): about 50 s"
    )
    assert f"--pairs {plan.needed}" in second


@pytest.mark.parametrize(("asked", "own", "expected"), [(9, 3, 9), (None, 3, 3)])
def test_what_was_asked_for_goes_first(asked: int | None, own: int, expected: int) -> None:
    plan = pair_plan_of(suite(pairs=own), 100.0, pairs=asked, left_s=1.0)
    assert (plan.pairs, plan.reason) == (expected, "as asked for")


@given(st.integers(1, 6), st.floats(0.1, 100), st.floats(0, 10_000))
def test_a_course_fits_its_budget_unless_one_pair_does_not(cases: int, pair_s: float, left_s: float) -> None:
    of = suite(*(check(f"check{number}") for number in range(cases)))
    plan = pair_plan_of(of, pair_s, pairs=None, left_s=left_s)
    assert 1 <= plan.pairs <= pairs_for(of) + SPARE_PAIRS
    assert plan.pairs == 1 or plan.pairs * plan.pair_s <= left_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("quiet_from", "left_s", "pairs"),
    [(1, 600.0, 7), (8, 600.0, 8), (12, 600.0, 12), (13, 600.0, 16), (20, 600.0, 24), (99, 600.0, 40), (99, 150.0, 15)],
)
def test_where_the_noise_is_known_there_are_as_many_as_it_takes(quiet_from: int, left_s: float, pairs: int) -> None:
    plan = pair_plan_of(suite(), 10.0, pairs=None, left_s=left_s, quiet_enough=lambda count: count >= quiet_from)
    assert plan.pairs == pairs
    assert ("budget" in plan.reason) == (pairs == 15)
    assert ("too noisy" in plan.reason) == (pairs == 40)


# --- orders and answers between revisions: what was written once must mean the same for ever ---

GOLDEN = Path(__file__).parents[2] / "golden" / "orders"
ORDER = JobRequest(
    kind="time", workload="resnet18", modes=("ddp", "spb"), fabric="local:ranks=2", device="cpu",
    plan_from="/somewhere/record.json", workers=16, resolved={"run": {}}, rounds=2, steps=6, seed=3, slow_step=1.1,
)  # fmt: skip
ANSWER = JobResult(
    xbench="0.1.0", label="real", environment=MACHINE, workload=WORKLOAD, resolved={"run": {}},
    planned={"ddp": PlannedFigures(buckets=3, planned_step_s=0.5, simulated_step_s=0.75)},
    counted={"ddp": Counts(collectives=5, wire_bytes=40, peak_bytes=4096)},
    blocks=[Block(mode="spb", round=1, steps_s=[0.5, 0.25], warmup_s=[1.0], cycle=2)],
    samples_per_step=4, failed={"wfbp": "no memory"}, warnings=["noisy"], launched_s=4.5,
)  # fmt: skip


@pytest.mark.parametrize(("name", "message"), [("order-v1", ORDER), ("answer-v1", ANSWER)])
def test_version_1_is_read_as_it_was_written(name: str, message: Message) -> None:
    path = GOLDEN / f"{name}.json"
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(message.model_dump_json(indent=1) + "\n")
    text = path.read_text()
    assert type(message).model_validate_json(text) == message
    assert VERSION == 1, "a new version needs a golden file of its own"
    assert set(json.loads(text)) <= set(type(message).model_fields), "no field may go"
