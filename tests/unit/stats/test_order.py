"""The timing order is balanced in place and in succession, and the same for the same seed."""

from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.stats import balanced_orders


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


@given(st.integers(2, 9), st.integers(1, 3), st.integers(0, 2**32))
def test_whole_cycles_are_balanced_exactly(count: int, cycles: int, seed: int) -> None:
    items = names(count)
    rounds = cycles * (count if count % 2 == 0 else 2 * count)
    orders = balanced_orders(items, rounds, seed)
    assert place_spread(orders, items) == 0
    assert follow_spread(orders, items) == 0


@given(st.integers(2, 9), st.integers(1, 40), st.integers(0, 2**32))
def test_cut_cycles_are_nearly_balanced(count: int, rounds: int, seed: int) -> None:
    items = names(count)
    orders = balanced_orders(items, rounds, seed)
    allowed = 1 if count % 2 == 0 else 2
    assert place_spread(orders, items) <= allowed
    assert follow_spread(orders, items) <= allowed


@given(st.integers(2, 9), st.integers(1, 10), st.integers(0, 2**32))
def test_rounds_come_in_mirrored_pairs(count: int, pairs: int, seed: int) -> None:
    orders = balanced_orders(names(count), 2 * pairs, seed)
    assert all(first == second[::-1] for first, second in zip(orders[::2], orders[1::2], strict=True))


def test_two_modes_take_turns_and_one_is_alone() -> None:
    assert {tuple(order) for order in balanced_orders(["a", "b"], 2, 0)} == {("a", "b"), ("b", "a")}
    assert balanced_orders(["a"], 3, 0) == [["a"], ["a"], ["a"]]


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
