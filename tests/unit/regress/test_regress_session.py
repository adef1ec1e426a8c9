"""Who is launched when, what is kept of it, and what happens when launches fail."""

from __future__ import annotations

import pytest
from regress_fakes import LAUNCH_S, Clock, FakeTree, check, suite

from xbench.records import Case, Suite
from xbench.regress.session import TIRED, Measuring


class Bench:
    """A measuring of two fake trees."""

    def __init__(self, of: Suite, **fields: object) -> None:
        self.clock, self.log, self.said = Clock(), [], []
        self.base = FakeTree("base", self.clock, self.log, **fields.get("base", {}))  # type: ignore[arg-type]
        self.head = FakeTree("head", self.clock, self.log, **fields.get("head", {}))  # type: ignore[arg-type]
        self.measuring = Measuring(of, {}, self.said.append, layers=("deterministic", "wall"), clock=self.clock)
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
    assert base.turn_folder is not None
    assert head.turn_folder is not None
    assert base.turn_folder.rpartition("/")[0] == head.turn_folder.rpartition("/")[0]
    assert base.turn_folder != head.turn_folder
    assert (base.rounds, base.turns, base.steps) == (head.rounds, head.turns, head.steps) == (2, 10, 2)
    (pair, _) = bench.measuring.pairs
    assert pair.in_turns == ("step",)
    assert len(pair.base[0].samples) == len(pair.head[0].samples) == 2 * 10 * 2


@pytest.mark.parametrize("unable", ["base", "head"])
def test_a_side_that_cannot_take_turns_is_launched_one_after_the_other(unable: str) -> None:
    bench = Bench(suite(), **{side: could for side, could in TURNS.items() if side != unable})
    bench.ready().run_pairs(bench.base, bench.head, 1, lambda: None)
    assert bench.log == ["base time", "head time"]
    assert bench.measuring.pairs[0].in_turns == ()
    assert bench.base.orders[-1].turn_folder is None


def test_a_suite_can_do_without_turns() -> None:
    bench = Bench(suite(in_turns=False), **TURNS)
    bench.ready().run_pairs(bench.base, bench.head, 1, lambda: None)
    assert bench.log == ["base time", "head time"]


def test_the_first_launches_have_the_machine_to_themselves() -> None:
    bench = Bench(suite(), **TURNS)
    bench.log.clear()
    bench.measuring.first_launches((bench.head,))
    assert bench.log == ["head time"]


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
    clock, log, said = Clock(), [], []
    of = suite(check("counts", metrics=("buckets",)), check("step"))
    measuring = Measuring(of, {}, said.append, layers=("deterministic",), clock=clock)
    side = measuring.look(FakeTree("head", clock, log), "this tree", None)
    assert log == ["head look"]
    assert side is not None
    assert [(one.case, one.value, one.label) for one in side.measurements] == [
        (Case("counts", "ddp", "buckets"), 4, "simulated")
    ]
    assert side.checks == of.checks


def test_ranks_are_started_for_a_look_only_where_something_is_to_be_counted() -> None:
    for metric, counted, planned in (("buckets", False, True), ("wire_bytes", True, False)):
        bench = Bench(suite(check(metrics=(metric,))))
        (order,) = bench.head.orders
        assert (order.counted, order.planned) == (counted, planned)


def test_one_side_alone_takes_half_as_long() -> None:
    both, alone = Bench(suite()), Bench(suite())
    both.measuring.first_launches((both.base, both.head))
    alone.measuring.first_launches((alone.head,))
    assert alone.measuring.takes_s(3) == both.measuring.takes_s(3) / 2 > 0


def test_progress_says_what_runs_and_what_remains() -> None:
    bench = Bench(suite())
    bench.ready()
    bench.said.clear()
    bench.measuring.run_pairs(bench.base, bench.head, 3, lambda: None)
    assert bench.said[1:] == ["pair 2 of 3; about 20 s left", "pair 3 of 3; about 10 s left"]
