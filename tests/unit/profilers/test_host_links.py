"""Which hosts exchange messages in which round, and how long the messages are."""

from __future__ import annotations

from itertools import combinations

import pytest

from xbench.profilers.host_links import EXCHANGE_S, MAX_BYTES, MAX_ROUNDS, MIN_BYTES, exchange_bytes, rounds


@pytest.mark.parametrize("hosts", range(2, 9))
def test_all_pairs_exchange_once_and_a_host_is_in_one_pair_at_a_time(hosts: int) -> None:
    found = rounds(hosts)
    for pairs in found:
        named = [host for pair in pairs for host in pair]
        assert len(named) == len(set(named)) == hosts - hosts % 2
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(range(hosts), 2))


def test_many_hosts_exchange_with_some_of_the_others() -> None:
    found = rounds(64)
    assert len(found) == MAX_ROUNDS
    assert {sum(host in pair for pairs in found for pair in pairs) for host in range(64)} == {MAX_ROUNDS}


def test_an_exchange_is_as_long_as_intended_but_no_longer_than_the_gradients() -> None:
    assert exchange_bytes(EXCHANGE_S / 1_000_000, 10**9) == 1_000_000
    assert exchange_bytes(1e-12, 10**9) == exchange_bytes(0.0, 10**9) == MAX_BYTES
    assert exchange_bytes(1e-12, 1_000_002) == 1_000_000
    assert exchange_bytes(1e-3, 10**9) == exchange_bytes(1e-12, 5) == MIN_BYTES
