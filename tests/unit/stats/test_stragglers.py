"""Which ranks and links are named: exact cases, and false alarms counted in simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb

import numpy as np
import pytest

from xbench.stats.stragglers import ALARM, BUSY, LEAST, Exchanges, OwnSteps, Pair, chance, slow_links, slow_ranks

REPETITIONS = 16
"""Exchanges of a pair (`profilers.host_links`; this module needs no torch)."""

STEPS = 32
"""Steps of a rank in a profile of the default length: 16 with instruments, and as many without."""


def rank(steps_s: Sequence[float], **fields: object) -> OwnSteps:
    return OwnSteps(steps_s, **fields)  # type: ignore[arg-type]


# --- the test of medians ---------------------------------------------------------------------------------------------


def test_the_median_test_is_exact() -> None:
    assert chance([5, 6, 7, 8], [1, 2, 3, 4]) == 1 / comb(8, 4)
    assert chance([1, 2, 3, 4], [5, 6, 7, 8]) == 1.0
    # Three of the upper four are slow: 16 ways, and the one in which all four are.
    assert chance([4, 6, 7, 8], [1, 2, 3, 5]) == (4 * 4 + 1) / comb(8, 4)
    assert chance([2], [1, 1, 1]) == 1 / 4
    assert chance([1, 1], [1, 1]) == 1.0
    assert chance([2, 2, 2, 2], [1, 1]) == 1 / comb(6, 4)  # the median of all is 2
    assert chance([2, 2], [1, 1, 1, 1]) == 1 / comb(6, 2)
    # One long step decides nothing.
    assert chance([1, 2, 3, 100], [1, 2, 3, 4]) == chance([1, 2, 3, 5], [1, 2, 3, 4])


@pytest.mark.parametrize("sides", [([], [1.0]), ([1.0], [])])
def test_an_empty_side_is_refused(sides: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="both sides"):
        chance(*sides)


# --- ranks -----------------------------------------------------------------------------------------------------------


def test_the_rank_whose_steps_are_longer_is_named_with_its_lag() -> None:
    (slow,) = slow_ranks([rank([0.3] * 8), rank([0.375] * 8, host="node7"), rank([0.3] * 8)])
    assert (slow.rank, slow.host) == (1, "node7")
    assert slow.lag_s == pytest.approx(0.075)
    assert slow.share == pytest.approx(0.2)
    assert slow.chance == 1 / comb(16, 8)


@pytest.mark.parametrize(
    ("steps_s", "count", "named"),
    [
        ((0.4, 0.3), 8, [0]),
        ((1.0, 1.5, 1.0, 2.0, 1.0), 16, [3, 1]),  # the slowest first
        ((1.0, 1.0, 0.5, 1.0), 16, []),  # a fast rank makes no other slow
        ((1.0, 1.0 + 0.9 * LEAST), 16, []),
        ((1.0, 1.0 + 1.1 * LEAST), 16, [1]),
        ((1.0, 2.0), 4, []),  # 1 of 70 by chance
        ((1.0,), 8, []),
        ((), 8, []),
    ],
)
def test_ranks_are_named_that_are_slower_by_enough_in_enough_steps(
    steps_s: Sequence[float], count: int, named: list[int]
) -> None:
    assert [slow.rank for slow in slow_ranks([rank([step_s] * count) for step_s in steps_s])] == named


def test_a_rank_that_is_slow_no_longer_is_not_named() -> None:
    typical = rank([1.0] * 8, again_s=[1.0] * 5)
    assert slow_ranks([typical, rank([1.5] * 8, again_s=[1.0] * 5)]) == []
    assert slow_ranks([typical, rank([1.5] * 8, again_s=[1.04] * 5)]) == []
    assert len(slow_ranks([typical, rank([1.5] * 8, again_s=[1.5] * 5)])) == 1  # 1 of 252 by chance
    assert slow_ranks([rank([1.0] * 8, again_s=[1.0] * 4), rank([1.5] * 8, again_s=[1.5] * 4)]) == []


def test_parts_are_those_that_explain_the_lag() -> None:
    typical = rank([1.0] * 8, parts_s={"input": 0.0, "forward": 0.3, "backward": 0.6, "optimizer": 0.1})

    def parts(**parts_s: float) -> list[str]:
        own = rank([sum(parts_s.values())] * 8, parts_s=parts_s)
        (slow,) = slow_ranks([typical, own])
        return list(slow.parts)

    assert parts(input=0.0, forward=0.3, backward=0.9, optimizer=0.1) == ["backward"]
    assert parts(input=0.4, forward=0.31, backward=0.61, optimizer=0.1) == ["input"]
    assert parts(input=0.0, forward=0.6, backward=1.2, optimizer=0.2) == ["backward", "forward"]
    assert parts(input=0.0, forward=0.5, backward=0.5, optimizer=0.5) == ["optimizer", "forward"]


@pytest.mark.parametrize(
    ("ends_s", "layer"),
    [
        ({"fc": 0.1, "top": 0.3, "low": 0.9, "stem": 1.2}, "low"),  # one layer takes longer
        ({"fc": 0.1, "top": 0.3, "low": 0.6, "stem": 1.2}, "low"),  # from one on, all do
        ({"fc": 0.3, "top": 0.5, "low": 0.7, "stem": 1.2}, "fc"),
        ({"fc": 0.15, "top": 0.45, "low": 0.75, "stem": 1.2}, None),  # all in proportion
        ({"other": 2.0}, None),
        ({}, None),
    ],
)
def test_a_lag_has_a_layer_where_it_begins(ends_s: dict[str, float], layer: str | None) -> None:
    parts_s = {"backward": 0.8}
    typical = rank([1.0] * 8, parts_s=parts_s, ends_s={"backward": {"fc": 0.1, "top": 0.3, "low": 0.5, "stem": 0.8}})
    own = rank([1.4] * 8, parts_s={"backward": 1.2}, ends_s={"backward": ends_s})
    (slow,) = slow_ranks([typical, own])
    assert (slow.parts, slow.layer) == (["backward"], layer)


@pytest.mark.parametrize(
    ("own", "other", "told"), [(0.11, 0.0, 0.11), (0.5, 0.4, 0.5), (0.5, 0.5, None), (0.09, 0.0, None)]
)
def test_a_busy_processor_is_the_cause_where_it_explains_half_of_the_lag(
    own: float, other: float, told: float | None
) -> None:
    (slow,) = slow_ranks([rank([1.0] * 8, waited_share=other), rank([1.25] * 8, waited_share=own)])
    assert slow.share == pytest.approx(0.2)
    assert slow.waited_share == told


Draw = Callable[[np.random.Generator], Sequence[float]]


def normal(random: np.random.Generator) -> Sequence[float]:
    return random.normal(1.0, 0.1, STEPS).tolist()  # type: ignore[no-any-return]


def skewed(random: np.random.Generator) -> Sequence[float]:
    return random.lognormal(0.0, 0.3, STEPS).tolist()  # type: ignore[no-any-return]


def disturbed(random: np.random.Generator) -> Sequence[float]:
    """A third of the steps take up to three times as long."""
    slower = np.where(random.random(STEPS) < 1 / 3, 1 + 2 * random.random(STEPS), 1.0)
    return (random.normal(1.0, 0.02, STEPS) * slower).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize("draw", [normal, skewed, disturbed])
def test_false_alarms_are_rarer_than_promised(draw: Draw, world: int) -> None:
    random = np.random.default_rng(1)
    runs = 1000
    alarms = sum(bool(slow_ranks([rank(draw(random)) for _ in range(world)])) for _ in range(runs))
    assert alarms <= ALARM * runs


@pytest.mark.parametrize("world", [2, 8])
def test_steps_that_take_a_third_longer_are_found(world: int) -> None:
    random = np.random.default_rng(3)
    found = 0
    for _ in range(200):
        ranks = [rank(normal(random)) for _ in range(world)]
        ranks[1] = rank([4 / 3 * step_s for step_s in ranks[1].steps_s])
        found += [slow.rank for slow in slow_ranks(ranks)] == [1]
    assert found >= 198


# --- links -----------------------------------------------------------------------------------------------------------

MIB = 2**20


def exchanges(times_s: Mapping[Pair, Sequence[float]], **changes: object) -> Exchanges:
    hosts = 1 + max(host for pair in times_s for host in pair)
    fields: dict[str, object] = {
        "nbytes": MIB, "times_s": times_s, "hosts": [f"node{host}" for host in range(hosts)], "all_gradients_s": 1.0,
        "step_s": 1.0,
    }  # fmt: skip
    return Exchanges(**fields | changes)  # type: ignore[arg-type]


def links(hosts: int, slow: Callable[[Pair], float], random: np.random.Generator | None = None) -> Exchanges:
    """Exchanges of 10 ms between all pairs of hosts, times what `slow` says of a pair."""
    noise = np.random.default_rng(0) if random is None else random
    pairs = combinations(range(hosts), 2)
    return exchanges({pair: (0.01 * slow(pair) * noise.normal(1, 0.02, REPETITIONS)).tolist() for pair in pairs})


@pytest.mark.parametrize("hosts", [3, 4, 8])
@pytest.mark.parametrize("host", [0, 2])
def test_the_link_of_a_host_is_named_where_all_its_pairs_are_slow(hosts: int, host: int) -> None:
    (slow,) = slow_links(links(hosts, lambda pair: 4.0 if host in pair else 1.0))
    assert slow.hosts == [f"node{host}"]
    assert slow.rate_bps == pytest.approx(8 * MIB / 0.04, rel=0.05)
    assert slow.typical_bps == pytest.approx(8 * MIB / 0.01, rel=0.05)
    assert not slow.typical_is_asked
    assert slow.lag_s == pytest.approx(0.75, rel=0.05)
    assert slow.share == pytest.approx(0.375, rel=0.05)


@pytest.mark.parametrize("hosts", [3, 4, 8])
def test_the_link_between_two_hosts_is_named_where_their_pair_alone_is_slow(hosts: int) -> None:
    (slow,) = slow_links(links(hosts, lambda pair: 2.0 if pair == (0, 2) else 1.0))
    assert slow.hosts == ["node0", "node2"]


def test_of_many_hosts_that_exchange_with_eight_others_each_the_slow_ones_are_named() -> None:
    """As `profilers.host_links` pairs 64 hosts, in eight rounds."""
    noise = np.random.default_rng(5)
    pairs = [
        (min(a, b), max(a, b)) for a in range(64) for b in ((a + 1) % 64, (a + 3) % 64, (a + 9) % 64, (a + 27) % 64)
    ]
    slow = {pair: 3.0 if 7 in pair else 2.0 if pair == pairs[100] else 1.0 for pair in pairs}
    times_s = {pair: (0.01 * slow[pair] * noise.normal(1, 0.02, REPETITIONS)).tolist() for pair in pairs}
    found = slow_links(exchanges(times_s))
    assert [one.hosts for one in found] == [["node7"], [f"node{host}" for host in pairs[100]]]


def test_two_slow_hosts_of_many_are_both_named() -> None:
    found = slow_links(links(8, lambda pair: 8.0 if 5 in pair else 2.0 if 3 in pair else 1.0))
    assert [slow.hosts for slow in found] == [["node5"], ["node3"]]


def test_a_difference_that_costs_a_step_little_is_not_named() -> None:
    found = links(3, lambda pair: 2.0 if 1 in pair else 1.0)
    assert [slow.hosts for slow in slow_links(found)] == [["node1"]]
    assert slow_links(exchanges(found.times_s, step_s=10.0)) == []
    assert slow_links(links(4, lambda pair: 1.2 if 1 in pair else 1.0)) == []


def test_a_pair_whose_processor_is_busy_has_no_slow_link() -> None:
    found = links(3, lambda pair: 2.0 if pair == (0, 2) else 1.0)
    assert slow_links(exchanges(found.times_s, busy={(0, 2): BUSY})) == []
    assert len(slow_links(exchanges(found.times_s, busy={(0, 1): BUSY}))) == 1


@pytest.mark.parametrize("hosts", [3, 8])
def test_links_alike_are_named_as_rarely_as_promised(hosts: int) -> None:
    random = np.random.default_rng(4)
    assert sum(bool(slow_links(links(hosts, lambda pair: 1.0, random))) for _ in range(200)) <= 2


def test_the_link_between_two_hosts_is_held_to_the_rate_that_was_asked_for() -> None:
    rate_bps = 8 * MIB / 0.01
    slow, fine = exchanges({(0, 1): [0.025] * REPETITIONS}), exchanges({(0, 1): [0.015] * REPETITIONS})
    assert slow_links(slow) == []  # nobody asked for a rate
    (named,) = slow_links(exchanges(slow.times_s, asked_bps=rate_bps))
    assert (named.hosts, named.typical_is_asked, named.typical_bps) == (["node0", "node1"], True, rate_bps)
    assert named.chance == 1 / 2**REPETITIONS
    assert slow_links(exchanges(fine.times_s, asked_bps=rate_bps)) == []
    assert slow_links(exchanges(slow.times_s, asked_bps=rate_bps, busy={(0, 1): BUSY})) == []
    assert slow_links(exchanges({(0, 1): [0.025] * 6}, asked_bps=rate_bps)) == []  # 1 of 64 by chance
