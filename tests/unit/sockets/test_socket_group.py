"""Ranks as threads of one process over real TCP connections: what they reduce and gather, and what goes wrong."""

import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.errors import UsageError
from xbench.sockets import group as group_module
from xbench.sockets import meeting
from xbench.sockets.collectives import COMBINE
from xbench.sockets.connection import PIECE_BYTES, UNREAD_BYTES
from xbench.sockets.group import SocketGroup, _create

PATIENCE = timedelta(seconds=30)


class Memory:
    """A store of one process."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._news = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._news:
            self._kept[key] = value.encode()
            self._news.notify_all()

    def get(self, key: str) -> bytes:
        with self._news:
            assert self._news.wait_for(lambda: key in self._kept, timeout=30), key
            return self._kept[key]


@contextmanager
def connected(size: int, patience: timedelta = PATIENCE) -> Iterator[list[SocketGroup]]:
    store = Memory()
    with ThreadPoolExecutor(size) as pool:
        groups = list(pool.map(lambda rank: _create(store, rank, size, patience), range(size)))
    try:
        yield groups
    finally:
        for group in groups:
            group.shutdown()


@contextmanager
def cores(*, idle: bool) -> Iterator[None]:
    """What groups take for true of their process while they are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_module, "_has_idle_core", lambda: idle)
        yield


@pytest.fixture(scope="module", params=[(2, False), (2, True), (3, False), (4, True)], ids=str)
def ranks(request: pytest.FixtureRequest) -> Iterator[list[SocketGroup]]:
    size, idle = request.param
    with cores(idle=idle), connected(size) as groups:
        yield groups


def on_every(ranks: list[SocketGroup], launch: Callable[[SocketGroup, int], dist.Work]) -> None:
    """Launch on every rank, and wait on every rank."""
    for work in [launch(group, rank) for rank, group in enumerate(ranks)]:
        assert work.wait(PATIENCE)
        assert work.is_completed()
        assert work.is_success()


def reduction(operation: Any) -> Any:
    opts = dist.AllreduceOptions()
    opts.reduceOp = operation
    return opts


@settings(max_examples=40, deadline=None)
@given(
    elements=st.lists(st.integers(0, 300) | st.just(PIECE_BYTES // 4 + 3), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_sums_of_whatever_is_sent_are_right_and_alike(
    ranks: list[SocketGroup], elements: list[int], dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole = [[torch.randint(-9, 9, (n,), generator=generator).to(dtype) for n in elements] for _ in ranks]
    expected = [
        sum(column[1:], start=column[0].clone()) for column in zip(*whole, strict=True)
    ]  # exact: small integers
    on_every(ranks, lambda group, rank: group.allreduce_coalesced(whole[rank]))
    for tensors in whole:
        assert all(torch.equal(one, other) for one, other in zip(tensors, expected, strict=True))


def test_a_sum_that_is_prepared_once_is_launched_at_every_step(ranks: list[SocketGroup]) -> None:
    buffers = [torch.zeros(PIECE_BYTES // 4 + 3) for _ in ranks]
    launches = [group.summing(buffer) for group, buffer in zip(ranks, buffers, strict=True)]
    for step in range(3):
        for rank, buffer in enumerate(buffers):
            buffer.fill_(10.0 * step + rank)
        on_every(ranks, lambda _, rank: launches[rank]())
        expected = 10.0 * step * len(ranks) + sum(range(len(ranks)))
        assert all(torch.equal(buffer, torch.full_like(buffer, expected)) for buffer in buffers)


def test_ranks_have_the_same_bits_where_the_order_of_a_sum_matters(ranks: list[SocketGroup]) -> None:
    whole = [torch.randn(100_003, generator=torch.Generator().manual_seed(rank)) for rank in range(len(ranks))]
    in_order = whole[0].clone()
    for other in whole[1:]:
        in_order += other
    on_every(ranks, lambda group, rank: group.allreduce([whole[rank]]))
    assert all(torch.equal(tensor, in_order) for tensor in whole)


@pytest.mark.parametrize("name", sorted(COMBINE))
def test_reductions_are_torch_s(ranks: list[SocketGroup], name: str) -> None:
    whole = [torch.tensor([5, 3, 6, 1]) ^ rank for rank in range(len(ranks))]
    if name == "AVG":
        whole = [tensor.double() for tensor in whole]
    stacked = torch.stack(whole)
    by_hand = {
        "SUM": stacked.sum(0), "AVG": stacked.double().mean(0), "PRODUCT": stacked.prod(0),
        "MIN": stacked.min(0).values, "MAX": stacked.max(0).values,
    }  # fmt: skip
    if name in by_hand:
        expected = by_hand[name]
    else:
        fold = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[name]
        expected = whole[0]
        for other in whole[1:]:
            expected = fold(expected, other)
    on_every(ranks, lambda group, rank: group.allreduce([whole[rank]], reduction(getattr(dist.ReduceOp, name))))
    assert all(torch.allclose(tensor, expected) for tensor in whole)


def test_gathers_scatters_and_broadcasts(ranks: list[SocketGroup]) -> None:
    size = len(ranks)
    mine = [torch.full((3,), float(rank)) for rank in range(size)]
    everyone = torch.arange(float(size)).repeat_interleave(3)
    one = [torch.empty(3 * size) for _ in ranks]
    on_every(ranks, lambda group, rank: group.all_gather_single(one[rank], mine[rank]))
    listed = [[torch.empty(3) for _ in ranks] for _ in ranks]
    on_every(ranks, lambda group, rank: group.allgather([listed[rank]], [mine[rank]]))
    assert all(torch.equal(found, everyone) for found in [*one, *map(torch.cat, listed)])

    shares = [torch.empty(2) for _ in ranks]
    numbers = torch.arange(2.0 * size)
    on_every(ranks, lambda group, rank: group.reduce_scatter_single(shares[rank], numbers + rank))
    assert torch.equal(torch.cat(shares), size * numbers + sum(range(size)))

    turned = [torch.empty(size) for _ in ranks]
    on_every(ranks, lambda group, rank: group.all_to_all_single(turned[rank], numbers[:size] + 10 * rank, [], []))
    assert all(torch.equal(turned[rank], torch.arange(size) * 10.0 + rank) for rank in range(size))

    told = [torch.full((5,), float(rank)) for rank in range(size)]
    opts = SimpleNamespace(rootRank=size - 1)
    on_every(ranks, lambda group, rank: group.broadcast([told[rank]], opts))
    assert all(torch.equal(tensor, torch.full((5,), size - 1.0)) for tensor in told)
    on_every(ranks, lambda group, rank: group.barrier())


def test_uneven_shares_go_where_they_belong(ranks: list[SocketGroup]) -> None:
    size = len(ranks)
    sent = [torch.cat([torch.full((other + 1,), 10.0 * rank + other) for other in range(size)]) for rank in range(size)]
    found = [torch.empty(size * (rank + 1)) for rank in range(size)]
    on_every(
        ranks,
        lambda group, rank: group.all_to_all_single(
            found[rank], sent[rank], [rank + 1] * size, list(range(1, size + 1))
        ),
    )
    for rank in range(size):
        assert torch.equal(found[rank], (10.0 * torch.arange(size) + rank).repeat_interleave(rank + 1))


def test_many_at_once_and_more_than_a_connection_holds(ranks: list[SocketGroup]) -> None:
    """All of one rank first: what its connections do not hold waits in a thread, and the launches do not."""
    large = 2 * meeting.BUFFER_BYTES // 4
    whole = [
        [torch.full((large if k % 3 == 0 else 7,), float(k + rank)) for k in range(9)] for rank in range(len(ranks))
    ]
    works = [[group.allreduce([tensor]) for tensor in whole[rank]] for rank, group in enumerate(ranks)]
    for rank, of_rank in enumerate(works):
        for k, work in enumerate(of_rank):
            assert work.wait(PATIENCE)
            assert bool((whole[rank][k] == k * len(ranks) + sum(range(len(ranks)))).all())


def test_what_one_all_reduce_needs_may_be_launched_only_after_it(ranks: list[SocketGroup]) -> None:
    """Rank 0 launches its second collective when the first is over, the others both at once: nobody waits for ever."""
    first, second = ([torch.ones(1000) for _ in ranks] for _ in range(2))
    works = []
    for rank, group in enumerate(ranks[1:], start=1):
        works += [group.allreduce([first[rank]]), group.allreduce([second[rank]])]
    assert ranks[0].allreduce([first[0]]).wait(PATIENCE)
    works.append(ranks[0].allreduce([second[0]]))
    assert all(work.wait(PATIENCE) for work in works)


def test_a_future_tells_before_and_after(ranks: list[SocketGroup]) -> None:
    works = [group.allreduce([torch.ones(2)]) for group in ranks[1:]]
    late = ranks[0].allreduce([torch.ones(2)])
    future = late.get_future()
    assert torch.equal(future.wait()[0], torch.full((2,), float(len(ranks))))
    assert late.get_future() is future
    for work in works:
        work.wait(PATIENCE)
        assert torch.equal(work.get_future().wait()[0], torch.full((2,), float(len(ranks))))


def test_what_hears_of_an_end_may_launch_the_next(ranks: list[SocketGroup]) -> None:
    """On whatever thread it hears: a step's second half is launched so (`dear`)."""
    over = [threading.Event() for _ in ranks]
    numbers = [[torch.ones(3) for _ in ranks] for _ in range(20)]

    def launch(rank: int, number: int) -> None:
        work = ranks[rank].allreduce([numbers[number][rank]])
        following = over[rank].set if number + 1 == len(numbers) else lambda: launch(rank, number + 1)
        work.get_future().add_done_callback(lambda _: following())

    for rank in range(len(ranks)):
        launch(rank, 0)
    assert all(event.wait(30) for event in over)
    assert all(torch.equal(tensor, torch.full((3,), float(len(ranks)))) for row in numbers for tensor in row)


@pytest.mark.parametrize("size", [2, 3])
def test_other_collectives_on_other_ranks_are_named_and_not_added_up(size: int) -> None:
    with connected(size) as groups:
        tensors = [torch.ones(6), *(torch.ones(600) for _ in groups[1:])]
        works = [group.allreduce([tensor]) for group, tensor in zip(groups, tensors, strict=True)]
        for work, tensor in zip(works, tensors, strict=True):
            with pytest.raises(ConnectionError, match="do all ranks launch the same collectives in one order"):
                work.wait(PATIENCE)
            assert torch.equal(tensor, torch.ones(len(tensor)))
            assert work.is_completed()
            assert not work.is_success()
        with pytest.raises(ConnectionError):
            groups[0].allreduce([torch.ones(6)]).wait(PATIENCE)


@pytest.mark.parametrize("size", [2, 3])
def test_what_cannot_be_reduced_is_told_to_those_who_wait(size: int) -> None:
    with connected(size) as groups:
        works = [group.allreduce([torch.ones(7)], reduction(dist.ReduceOp.BAND)) for group in groups]
        for work in works:
            with pytest.raises(RuntimeError, match="bitwise_and"):
                work.wait(PATIENCE)


def test_a_rank_that_is_gone_is_named() -> None:
    with connected(3) as groups:
        under_way = groups[0].allreduce([torch.ones(4)])
        future = under_way.get_future()
        groups[1].shutdown()
        groups[2].shutdown()
        with pytest.raises(ConnectionError, match=r"rank [12]"):
            under_way.wait(PATIENCE)
        with pytest.raises(Exception, match=r"rank [12]"):
            future.wait()
        with pytest.raises(ConnectionError, match=r"rank [12]"):
            groups[0].broadcast([torch.ones(9_000_000)]).wait(PATIENCE)


def test_what_does_not_come_is_waited_for_so_long_and_no_longer() -> None:
    with connected(2, timedelta(seconds=0.05)) as groups:
        work = groups[0].allreduce([torch.ones(4)])
        with pytest.raises(TimeoutError, match=r"not over after 0\.05 s"):
            work.wait()
        groups[1].allreduce([torch.ones(4)]).wait(PATIENCE)
        assert work.wait(PATIENCE)


@pytest.mark.parametrize("odd", [torch.ones(4, 4).t(), torch.eye(3).to_sparse(), torch.ones(3, device="meta")])
def test_memory_that_cannot_be_sent_is_refused_before_anything_is(ranks: list[SocketGroup], odd: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="dense and contiguous tensors of CPUs"):
        ranks[0].broadcast([odd])
    with pytest.raises(ValueError, match="dense and contiguous tensors of CPUs"):
        ranks[0].allreduce([torch.ones(4), odd])
    on_every(ranks, lambda group, rank: group.barrier())


def test_a_reduction_that_is_not_known_is_named(ranks: list[SocketGroup]) -> None:
    opts = SimpleNamespace(reduceOp=SimpleNamespace(name="PREMUL_SUM"))
    with pytest.raises(ValueError, match="does not know PREMUL_SUM; it can be SUM, AVG"):
        ranks[0].allreduce([torch.ones(1)], opts)


@pytest.mark.parametrize("said", [b"\0" * 24, b"\0", b""])
def test_strangers_are_hung_up_on(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who finds the port and does not know the secret, or says nothing, takes no rank's place."""
    monkeypatch.setattr(meeting, "HELLO_S", 0.05)
    store = Memory()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_create, store, 0, 2, PATIENCE)
        host, port = store.get("rank0").decode().split()
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(said)
            stranger.settimeout(30)
            with suppress(ConnectionError):
                assert stranger.recv(1) == b""
        second = pool.submit(_create, store, 1, 2, PATIENCE)
        groups = [first.result(30), second.result(30)]
    on_every(groups, lambda group, rank: group.barrier())
    for group in groups:
        group.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_what_has_arrived_is_let_go_of(size: int) -> None:
    """Buckets are hundreds of megabytes, and the next collective may be far away."""
    with connected(size) as groups:
        tensors = [torch.ones(6_000_000) for _ in groups]
        seen = [weakref.ref(tensor) for tensor in tensors]
        on_every(groups, lambda group, rank: group.allreduce([tensors[rank]]))
        tensors.clear()
        deadline_s = time.monotonic() + 30
        while any(one() is not None for one in seen) and time.monotonic() < deadline_s:  # threads that end a message
            time.sleep(0.01)
        assert [one() for one in seen] == [None] * size


def lands(work: dist.Work) -> bool:
    """Whether a collective ends although nobody waits for it or asks."""
    deadline_s = time.monotonic() + 30
    while not work._is_over and time.monotonic() < deadline_s:  # type: ignore[attr-defined]
        time.sleep(0.01)
    return bool(work._is_over)  # type: ignore[attr-defined]


def test_what_has_come_lies_in_the_kernel_until_somebody_waits() -> None:
    with cores(idle=False), connected(2) as groups:
        tensors = [torch.ones(1000), torch.ones(1000)]
        works = [group.allreduce([tensor]) for group, tensor in zip(groups, tensors, strict=True)]
        assert works[1].wait(PATIENCE)
        time.sleep(0.2)  # a thread would have read it
        assert torch.equal(tensors[0], torch.ones(1000))
        assert works[0].wait(PATIENCE)
        assert torch.equal(tensors[0], torch.full((1000,), 2.0))


def test_to_ask_whether_it_is_there_reads_it_and_waits_for_nothing() -> None:
    with cores(idle=False), connected(2) as groups:
        work = groups[0].allreduce([torch.ones(1000)])
        assert not work.is_completed()
        groups[1].allreduce([torch.ones(1000)])
        deadline_s = time.monotonic() + 30
        while not work.is_completed():
            assert time.monotonic() < deadline_s


@pytest.mark.parametrize("why", ["told", "many", "idle core"])
def test_a_thread_reads_where_nobody_may_come_to_wait(why: str) -> None:
    elements = UNREAD_BYTES // 4 + 1 if why == "many" else 1000
    with cores(idle=why == "idle core"), connected(2) as groups:
        works = [group.allreduce([torch.ones(elements)]) for group in groups]
        if why == "told":
            works[0].get_future()
        assert lands(works[0])
        assert works[1].wait(PATIENCE)


class Watched:
    """A socket that remembers how it was asked for bytes."""

    def __init__(self, real: socket.socket) -> None:
        self.real = real
        self.flags: list[int] = []

    def recv_into(self, memory: memoryview, nbytes: int, flags: int) -> int:
        self.flags.append(flags)
        return self.real.recv_into(memory, nbytes, flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.parametrize(
    ("poll_s", "late_s", "size", "is_main"),
    [(0.0, 0.1, 2, True), (0.02, 0.2, 2, True), (30.0, 0.1, 2, True), (30.0, 0.1, 2, False), (30.0, 0.1, 3, True)],
)
def test_the_main_thread_polls_for_so_long_and_then_sleeps(
    poll_s: float, late_s: float, size: int, is_main: bool
) -> None:
    with cores(idle=False), connected(size) as groups, ThreadPoolExecutor(size) as pool:
        for group in groups:
            group.poll(poll_s)
        source = groups[0]._lanes[-1][1]
        source._socket = watched = Watched(source._socket)  # type: ignore[assignment]
        tensors = [torch.ones(1000) for _ in groups]
        first = groups[0].allreduce([tensors[0]])

        def come(group: SocketGroup, tensor: torch.Tensor) -> None:
            time.sleep(late_s)
            group.allreduce([tensor]).wait(PATIENCE)

        others = [pool.submit(come, group, tensor) for group, tensor in zip(groups[1:], tensors[1:], strict=True)]
        if is_main:
            first.wait(PATIENCE)
        else:
            pool.submit(first.wait, PATIENCE).result(60)
        for other in others:
            other.result(60)
        assert torch.equal(tensors[0], torch.full((1000,), float(size)))
    asks = [flags == socket.MSG_DONTWAIT for flags in watched.flags]
    assert any(asks) == (poll_s > 0 and size == 2 and is_main)
    assert all(asks) == (poll_s > late_s and size == 2 and is_main)
    assert asks == sorted(asks, reverse=True)


def test_two_who_wait_for_different_collectives_both_get_theirs() -> None:
    with cores(idle=False), connected(2) as groups, ThreadPoolExecutor(2) as pool:
        mine = [groups[0].allreduce([torch.ones(9)]) for _ in range(2)]
        waits = [pool.submit(work.wait, PATIENCE) for work in reversed(mine)]
        for _ in mine:
            groups[1].allreduce([torch.ones(9)])
        assert all(wait.result(30) for wait in waits)


def test_a_rank_that_does_not_come_is_waited_for_so_long() -> None:
    with pytest.raises(TimeoutError):
        _create(Memory(), 0, 2, timedelta(seconds=0.05))


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(meeting.INTERFACE, "eth77")
    with pytest.raises(UsageError, match="GLOO_SOCKET_IFNAME names 'eth77', which has no address here"):
        _create(Memory(), 0, 2, PATIENCE)


def test_the_network_is_that_of_the_master_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(meeting.INTERFACE, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert meeting._own_address() in ("127.0.0.1", "::1")
    monkeypatch.setenv(meeting.INTERFACE, "lo")
    assert meeting._own_address() == "127.0.0.1"
