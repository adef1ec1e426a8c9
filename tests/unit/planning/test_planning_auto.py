from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import constant, gradients_of, line, partitions

from xbench.planning import auto as auto_module
from xbench.planning import merge
from xbench.planning.auto import PENALTIES_S, Search
from xbench.planning.plans import Planner
from xbench.planning.simulate import simulate
from xbench.planning.step import Gradient, StepModel

TIE_PRICE = 3e-4
DTYPES = ("float32", "bfloat16")


@st.composite
def searches(draw: st.DrawFn, dtypes: tuple[str, ...] = ("float32",)) -> Search:
    count = draw(st.integers(1, 8))
    gaps = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
    kinds = draw(st.lists(st.sampled_from(dtypes), min_size=count, max_size=count))
    gradients = [
        Gradient(f"g{k}", size, at / 10, kind)
        for k, (size, at, kind) in enumerate(zip(sizes, itertools.accumulate(gaps), kinds, strict=True))
    ]
    return Search(
        gradients,
        line(draw(st.floats(0, 2)), draw(st.floats(0, 0.1))),
        backward_s=gradients[-1].ready_s,
        optimizer_s=draw(st.sampled_from([0.0, 1.5])),
        contention=constant(draw(st.floats(1, 3)), draw(st.floats(1, 3))),
    )


def test_the_climb_ends_at_the_plan_of_least_worth() -> None:
    """T = 1 + M. Of a, b and c one bucket takes 20032 s, a|bc 20022, ab|c 20023, and a|b|c 20021: not 0.03 % less."""
    gradients = [
        Gradient(name, size, at_s) for name, size, at_s in (("a", 10, 0.0), ("b", 1, 10.0), ("c", 20_000, 20.0))
    ]
    search = Search(gradients, line(1.0, 1.0), backward_s=20.0, optimizer_s=0.0)
    plans = zip(partitions(3), (20032, 20022, 20023, 20021), strict=True)
    for buckets, took_s in plans:
        assert search.seconds(buckets) == took_s
        assert search._improved(auto_module.Candidate("", buckets, took_s)).buckets == [[0], [1, 2]]


def test_a_climb_from_the_plan_of_least_worth_stays_there() -> None:
    """T = 1 + M. Apart, a ends at 20011 s and the others at 41017; together they end 13 s later, which is 0.032 %."""
    gradients = gradients_of([10, 11, 14, 24], [20_000, 5, 1000, 20_000])
    search = Search(gradients, line(1.0, 1.0), backward_s=24.0, optimizer_s=0.0)
    assert [search.seconds(buckets) for buckets in ([[0], [1, 2, 3]], [[0, 1, 2, 3]])] == [41017, 41030]
    best = min(partitions(4), key=lambda buckets: worth(search.seconds(buckets), len(buckets)))
    assert best == [[0], [1, 2, 3]]
    assert search._improved(auto_module.Candidate("", best, 41017)).buckets == best


def worth(seconds: float, buckets: int) -> float:
    return seconds * (1 + TIE_PRICE * buckets)


@given(searches(DTYPES))
def test_ddps_and_every_schedules_buckets_are_candidates(search: Search) -> None:
    candidates = [candidate.buckets for candidate in search.candidates()]
    gradients = search.gradients
    for buckets in (
        merge.ddp(gradients),
        merge.single(gradients),
        merge.wfbp(gradients),
        merge.mgwfbp(gradients, search.cost.alpha_s, search.cost.beta_s_per_byte),
        merge.optimal(gradients, search.curve),
    ):
        assert buckets in candidates
    assert len({str(buckets) for buckets in candidates}) == len(candidates)


@given(searches(DTYPES))
def test_the_best_is_worth_no_less_than_any_candidate_and_no_bucket_of_either_holds_two_dtypes(search: Search) -> None:
    best = search.best()
    assert best.step_s == pytest.approx(search.seconds(best.buckets), rel=1e-9)
    for candidate in [*search.candidates(), best]:
        assert worth(best.step_s, len(best.buckets)) <= worth(candidate.step_s, len(candidate.buckets)) * (1 + 1e-9)
        assert sorted(itertools.chain(*candidate.buckets)) == list(range(len(search.gradients)))
        for bucket in candidate.buckets:
            assert len({search.gradients[index].dtype for index in bucket}) == 1


def two(first_bytes: int) -> Search:
    """Apart they end at 10, together one second a thousand bytes of the first later."""
    gradients = [Gradient("a", first_bytes, 0.0), Gradient("b", 9000, 1.0)]
    return Search(gradients, line(0.0, 1e-3), backward_s=1.0, optimizer_s=0.0)


def test_a_bucket_more_must_be_worth_its_price() -> None:
    # three parts in ten thousand of 10 s are 3 ms: to send 1 byte early gains 1 ms, 10 bytes gain 10 ms
    cheap, dear = two(1), two(10)
    assert [cheap.seconds([[0], [1]]), cheap.seconds([[0, 1]])] == [pytest.approx(10.0), pytest.approx(10.001)]
    assert cheap.best().buckets == [[0, 1]]
    assert dear.seconds([[0, 1]]) == pytest.approx(10.01)
    assert dear.best().buckets == [[0], [1]]


def test_cuts_move_as_far_back_as_ahead() -> None:
    search = Search(
        [Gradient(f"g{k}", 10, float(k)) for k in range(40)], line(0.1, 0.01), backward_s=40.0, optimizer_s=0.0
    )
    moved = {cuts[0] - 20 for cuts in search._hill.neighbours([20]) if len(cuts) == 1}
    assert moved == {-distance for distance in moved}


def test_improvement_finds_what_no_family_has_and_stops_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    ready = np.sort(random.uniform(0, 10, 40)).tolist()
    sizes = random.integers(1, 10**6, 40).tolist()
    gradients = [Gradient(f"g{k}", size, at) for k, (size, at) in enumerate(zip(sizes, ready, strict=True))]
    search = Search(gradients, line(0.05, 5e-7), backward_s=10.0, optimizer_s=2.0, contention=constant(1.5, 1.6))
    first = search.candidates()[0]
    best = search.best()
    assert best.name.endswith(", improved")
    assert worth(best.step_s, len(best.buckets)) < worth(first.step_s, len(first.buckets))
    monkeypatch.setattr(auto_module, "MAX_TRIALS", 0)
    assert search.best().buckets == first.buckets
    monkeypatch.setattr(auto_module, "MAX_TRIALS", 7)
    tried = 0
    seconds = search._seconds_of_cuts

    def counted(cuts: Any) -> float:
        nonlocal tried
        tried += 1
        return seconds(cuts)

    monkeypatch.setattr(search, "_seconds_of_cuts", counted)
    search._improved(first)
    assert tried == 7 + 1  # and once for the plan that is returned


def test_a_plan_that_is_not_contiguous_stays_as_it_is() -> None:
    gradients = [Gradient(f"g{k}", 10, 0.0, DTYPES[k % 2]) for k in range(6)]
    search = Search(gradients, line(1.0, 1e-3), backward_s=1.0, optimizer_s=0.0)
    best = search.best()
    assert best.buckets == [[0, 2, 4], [1, 3, 5]]
    assert search._improved(best) is best


def test_names_of_candidates_tell_where_they_come_from() -> None:
    gradients = [Gradient(f"g{k}", 10**6, float(k)) for k in range(60)]
    search = Search(gradients, line(0.3, 1e-6), backward_s=60.0, optimizer_s=0.0, others=[("mine", [list(range(60))])])
    names = [candidate.name for candidate in search.candidates()]
    assert "mine" in names
    assert "single" not in names  # the same buckets, which came first as "mine"
    assert {"ddp", "wfbp", "uniform in 2", "uniform in 32"} <= set(names)
    assert set(names) <= {
        "mine", "ddp", "wfbp", "mgwfbp", "optimal", *(f"uniform in {parts}" for parts in auto_module.UNIFORM),
        *(f"optimal + {penalty_s * 1e3:g} ms" for penalty_s in PENALTIES_S),
    }  # fmt: skip


def test_the_plan_of_auto_holds_every_gradient_by_name_and_is_what_the_simulator_says() -> None:
    # a gradient without bytes is one still; parameters that got no gradient are none of the planner's
    gradients = (Gradient("c", 4000, 1.0), Gradient("empty", 0, 1.5), Gradient("a", 8000, 2.0))
    step = StepModel(gradients, forward_s=1.0, backward_s=2.0, optimizer_s=0.5)
    contention = constant(2.0, 1.5)
    plan = Planner(step, line(0.1, 1e-4), contention).plan("auto")
    assert sorted(itertools.chain(*plan.buckets)) == ["a", "c", "empty"]
    assert sum(plan.bucket_bytes) == 12000
    place = {gradient.name: index for index, gradient in enumerate(gradients)}
    buckets = [[place[name] for name in bucket] for bucket in plan.buckets]
    search = Search(gradients, line(0.1, 1e-4), backward_s=2.0, optimizer_s=0.5, contention=contention)
    assert plan.predicted_step_s == pytest.approx(1.0 + search.seconds(buckets))
    again = simulate(step, buckets, search.curve, early_update=True, contention=contention)
    assert plan.predicted_step_s == pytest.approx(again.step_s)
