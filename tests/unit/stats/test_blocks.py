"""The timing order is balanced in place and in succession; steps of jobs that share devices count in their window."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xbench.records import Sample
from xbench.spec import FabricSpec, ModeSpec, RunSpec, WorkloadSpec
from xbench.stats.blocks import balanced_orders, mode_values, overlap_rates, weighted_progress


def names(count: int) -> list[str]:
    return [f"mode{index}" for index in range(count)]


def spread(counts: Counter[tuple[object, object]], keys: list[tuple[object, object]]) -> int:
    return max(counts[key] for key in keys) - min(counts[key] for key in keys)


def place_spread(orders: list[list[str]], items: list[str]) -> int:
    places = Counter((item, place) for order in orders for place, item in enumerate(order))
    return spread(places, list(product(items, range(len(items)))))


def follow_spread(orders: list[list[str]], items: list[str]) -> int:
    follows = Counter(pair for order in orders for pair in pairwise(order))
    return spread(follows, [(a, b) for a, b in product(items, items) if a != b])


@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 2**32))
def test_every_round_holds_every_mode_once(count: int, rounds: int, seed: int) -> None:
    orders = balanced_orders(names(count), rounds, seed)
    assert len(orders) == rounds
    assert all(sorted(order) == names(count) for order in orders)
    assert orders == balanced_orders(names(count), rounds, seed)


@given(st.integers(2, 9), st.integers(1, 3), st.integers(1, 40), st.integers(0, 2**32))
def test_whole_cycles_are_balanced_exactly_and_cut_ones_nearly(count: int, cycles: int, cut: int, seed: int) -> None:
    items = names(count)
    for rounds, allowed in ((cycles * count * (1 + count % 2), 0), (cut, 1 + count % 2)):
        orders = balanced_orders(items, rounds, seed)
        assert place_spread(orders, items) <= allowed
        assert follow_spread(orders, items) <= allowed


@given(st.integers(2, 9), st.integers(1, 10), st.integers(0, 2**32))
def test_rounds_come_in_mirrored_pairs(count: int, pairs: int, seed: int) -> None:
    orders = balanced_orders(names(count), 2 * pairs, seed)
    assert all(first == second[::-1] for first, second in zip(orders[::2], orders[1::2], strict=True))


def test_seeds_differ() -> None:
    assert len({str(balanced_orders(names(6), 6, seed)) for seed in range(20)}) == 20


def test_the_seed_also_deals_the_rows() -> None:
    dealt = set()
    for seed in range(30):
        orders = balanced_orders(names(8), 3, seed)
        dealt.add(tuple(orders[0].index(item) for item in orders[2]))  # the third round, in terms of the first
    assert len(dealt) > 1


@pytest.mark.parametrize(("items", "rounds"), [([], 3), (["a", "a"], 3), (["a", "b"], -1)])
def test_what_cannot_be_ordered_is_refused(items: list[str], rounds: int) -> None:
    with pytest.raises(ValueError, match=r"distinct|cannot be ordered"):
        balanced_orders(items, rounds, 0)


STAMPS = st.builds(
    lambda start, steps: [start + sum(steps[:end]) for end in range(len(steps) + 1)],
    st.floats(0.0, 5.0),
    st.lists(st.floats(0.1, 2.0), min_size=1, max_size=20),
)


@pytest.mark.parametrize(
    ("boundaries_s", "rates_per_s"),
    [
        ([[0.0, 2.0, 4.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0]], [0.5, 1.0]),  # fractions of steps count at the edges
        ([[0.0, 10.0], [4.0, 5.0, 6.0]], [0.1, 1.0]),  # the window lies inside one step
        ([[1.0, 1.5, 2.0]], [2.0]),  # a job alone is its own window
    ],
)
def test_steps_are_counted_in_the_window_of_all_jobs(boundaries_s: list[list[float]], rates_per_s: list[float]) -> None:
    assert overlap_rates(boundaries_s) == pytest.approx(rates_per_s)


@pytest.mark.parametrize(
    ("boundaries_s", "message"),
    [
        ([], "at least one job"),
        ([[0.0, 1.0], [1.0, 2.0]], "never ran together"),
        ([[0.0, 1.0], [3.0, 4.0]], "never ran together"),
        ([[0.0, 1.0], [0.5]], "job 1 has 1 step boundaries"),
        ([[0.0, 1.0, 1.0]], "of job 0 do not increase"),
        ([[0.0, math.nan, 1.0]], "of job 0 do not increase"),
        ([[0.0, math.inf]], "of job 0 do not increase"),
    ],
)
def test_no_window_is_refused(boundaries_s: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlap_rates(boundaries_s)


@given(STAMPS, st.lists(STAMPS, max_size=3), st.floats(-100.0, 100.0))
def test_steps_are_bounded_and_the_clocks_zero_does_not_matter(
    first: list[float], others: list[list[float]], shift_s: float
) -> None:
    jobs = [first, *others]
    assume(min(job[-1] for job in jobs) - max(job[0] for job in jobs) > 0.01)
    window_s = min(job[-1] for job in jobs) - max(job[0] for job in jobs)
    rates = overlap_rates(jobs)
    assert all(0 < rate * window_s <= len(job) - 1 + 1e-9 for rate, job in zip(rates, jobs, strict=True))
    moved = overlap_rates([[stamp + shift_s for stamp in job] for job in jobs])
    assert moved == pytest.approx(rates, rel=1e-6)


def test_turns_without_overlap_are_worth_one_whatever_the_proportion() -> None:
    alone_step_s = (0.3, 0.1)
    fair = overlap_rates([[0.0, 0.4, 0.8, 1.2], [0.0, 0.4, 0.8, 1.2]])
    assert weighted_progress(fair, alone_step_s) == pytest.approx(1.0)
    favours_the_short = overlap_rates([[0.0, 0.6, 1.2], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]])
    assert weighted_progress(favours_the_short, alone_step_s) == pytest.approx(1.0)
    assert sum(favours_the_short) > sum(fair)  # what counting steps would have rewarded
    assert weighted_progress((2.0, 5.0), (0.5, 0.2)) == pytest.approx(2.0)  # neither disturbs the other


@pytest.mark.parametrize(
    ("rates_per_s", "alone_step_s"),
    [((), ()), ((1.0,), (1.0, 2.0)), ((-1.0,), (1.0,)), ((1.0,), (0.0,)), ((math.nan,), (1.0,))],
)
def test_progress_of_nonsense_is_refused(rates_per_s: tuple[float, ...], alone_step_s: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rates"):
        weighted_progress(rates_per_s, alone_step_s)


def sample(mode: str, job: int, step_s: float, samples: int) -> Sample:
    return Sample(
        launch=0, round=0, position=0, mode=mode, job=job, steps_s=[step_s], step_s=step_s, warmup_s=[],
        samples_per_step=samples, started_s=0.0,
    )  # fmt: skip


def test_samples_of_twins_that_run_at_once_add_up() -> None:
    """8 samples in 0.4 s and 8 in 0.5 s are 20 and 16 a second: 36 together. One after the other, 16 take 0.9 s."""
    together, in_turn = (
        ModeSpec(text=name, name=name, carrier="wfbp", paired=True) for name in ("crossover", "sequential")
    )
    run = RunSpec(
        kind="comparison", workloads=(WorkloadSpec(name="resnet18"),) * 2, modes=(together, in_turn),
        fabric=FabricSpec(name="local", ranks=2),
    )  # fmt: skip
    samples = [sample(mode.text, job, step_s, 8) for mode in run.modes for job, step_s in enumerate((0.4, 0.5))]
    assert mode_values(run, together, samples) == [(0, 0, pytest.approx(1 / 36))]
    assert mode_values(run, in_turn, samples) == [(0, 0, pytest.approx(0.9 / 16))]
