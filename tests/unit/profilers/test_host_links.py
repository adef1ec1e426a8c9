"""Which hosts exchange messages in which round, and how long the messages are."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from xbench.profilers.host_links import (
    EXCHANGE_S,
    MAX_BYTES,
    MAX_ROUNDS,
    MIN_BYTES,
    ProcessorUse,
    ProcessorWatch,
    ThreadTimes,
    between,
    exchange_bytes,
    read,
    rounds,
)


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


def counters(folder: Path, **tasks: str) -> Path:
    for name, text in tasks.items():
        (folder / name).mkdir()
        (folder / name / "schedstat").write_text(text)
    return folder


def test_times_of_each_thread_are_read_in_seconds(tmp_path: Path) -> None:
    found = read(counters(tmp_path, t1="1500000000 250000000 7\n", t2="0 0 0\n"))
    assert found == {"t1": ThreadTimes(1.5, 0.25), "t2": ThreadTimes(0.0, 0.0)}


def test_threads_that_ended_and_kernels_that_do_not_count_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    assert read(counters(tmp_path, odd="not a number\n")) == {}
    assert read(tmp_path / "nothing") == {}
    assert ProcessorWatch(tmp_path / "nothing").use() == ProcessorUse(0.0, 0.0)


def test_the_thread_that_waited_longest_counts_and_all_together_want_processors() -> None:
    before = {"a": ThreadTimes(1.0, 1.0), "b": ThreadTimes(0.0, 0.0), "ended": ThreadTimes(9.0, 9.0)}
    after = {"a": ThreadTimes(2.0, 3.0), "b": ThreadTimes(3.0, 0.5), "new": ThreadTimes(9.0, 9.0)}
    assert between(before, after, 4.0) == ProcessorUse(waited_share=0.5, wanted=(1 + 2 + 3 + 0.5) / 4)
    assert between(before, after, 0.0) == ProcessorUse(0.0, 0.0)


def test_this_process_has_run() -> None:
    found = read()
    if not any(one.ran_s for one in found.values()):
        pytest.skip("this kernel does not count")
    watch = ProcessorWatch()
    assert sum(range(1_000_000)) > 0
    assert watch.use().wanted > 0
