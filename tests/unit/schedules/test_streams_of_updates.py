"""Which parameters are updated together where a wait is the stream's, and whose waits are."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from xbench.emulation.group import EmulatedGroup
from xbench.schedules.bucket import CommBucket, read_flags
from xbench.schedules.deferred_update import UpdateGroup, on_a_stream
from xbench.schedules.early_update import first_half
from xbench.schedules.groups import waits_on_stream


def buckets(*sizes: int, full: bool = True) -> list[CommBucket]:
    """Buckets of one parameter each, with so many elements."""
    found = [CommBucket([Parameter(torch.zeros(size))], 1.0) for size in sizes]
    if full:
        for bucket in found:
            bucket.parameters[0].grad = torch.zeros_like(bucket.parameters[0])
            bucket.fill(0)
    return found


@pytest.mark.parametrize(
    ("sizes", "count"),
    [((1, 1, 1, 1), 2), ((1, 1, 1), 1), ((9, 1), 1), ((1, 9), 1), ((5,), 0), ((), 0), ((1, 2, 3), 2)],
)
def test_the_first_half_has_at_most_half_of_the_bytes_or_one_bucket(sizes: tuple[int, ...], count: int) -> None:
    found = buckets(*sizes)
    assert first_half(found) == found[:count]


def test_a_bucket_whose_flags_must_be_read_is_not_in_the_first_half() -> None:
    found = [*buckets(1), *buckets(1, full=False), *buckets(1, 1, 1, 1)]
    assert first_half(found) == [found[0], found[2]]


def test_flags_of_several_buckets_and_dtypes_are_read_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    first = CommBucket([Parameter(torch.zeros(2)) for _ in range(2)], 0.5)
    second = CommBucket([Parameter(torch.zeros(2, dtype=torch.bfloat16)) for _ in range(3)], 0.5)
    first.flags.copy_(torch.tensor([0.0, 1e-3]))
    second.flags.copy_(torch.tensor([0.5, 0.0, 1.0]))
    plain, reads = torch.Tensor.tolist, []
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tensor) or plain(tensor))
    assert read_flags([first, second]) == [[False, True], [True, False, True]]
    assert len(reads) == 1
    assert read_flags([]) == []


def test_known_flags_are_made_of_host_values_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = CommBucket([Parameter(torch.ones(2)) for _ in range(3)], 0.5)
    plain, made = torch.tensor, []
    monkeypatch.setattr(torch, "tensor", lambda values, **options: made.append(values) or plain(values, **options))
    for filled in ([0, 2], [0, 2], [1], [0, 2]):
        for index in filled:
            bucket.parameters[index].grad = torch.ones(2)
            bucket.fill(index)
        bucket.complete()
        assert bucket.flags.tolist() == [0.5 * (index in filled) for index in range(3)]
        bucket.empty()
    assert made == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]


def calls(order: list[int]) -> list[list[int]]:
    """Calls of a step whose layers need one group each: `order` has the places of their collectives."""
    pieces = [UpdateGroup(None, [], [], due=True, last=last) for last in order]
    found = []
    for needed in pieces:
        if needed.due:
            for together in on_a_stream([needed], pieces):
                found.append([one.last for one in together])
                for one in together:
                    one.due = False
    return found


def test_calls_double_where_groups_arrive_in_the_order_of_use() -> None:
    assert calls(list(range(13))) == [[0], [1], [2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 12]]
    assert calls([3, 4, 5, 2, 1, 0]) == [[2, 1, 0], [3], [4, 5]]  # what arrives before the first needed group
    assert calls([0, 2, 1]) == [[0], [2, 1]]  # and before a later one, in whose call it is


class Group:
    """A process group that states what a wait is."""

    def __init__(self, **facts: object) -> None:
        self.__dict__.update(facts)


def test_a_group_states_whether_waits_are_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert waits_on_stream(Group(waits_on_stream=True), cpu)  # type: ignore[arg-type]
    assert not waits_on_stream(Group(waits_on_stream=False), cuda)  # type: ignore[arg-type]
    assert not waits_on_stream(None, cuda)
    monkeypatch.setattr("xbench.schedules.groups.dist.is_initialized", lambda: True)
    for backend, device, expected in (("cuda:nccl", cuda, True), ("cpu:gloo,cuda:nccl", cuda, True),
                                      ("cpu:gloo,cuda:gloo", cuda, False), ("cpu:gloo,cuda:nccl", cpu, False),
                                      ("cpu:gloo", cuda, False)):  # fmt: skip
        monkeypatch.setattr("xbench.schedules.groups.dist.get_backend_config", lambda _, name=backend: name)
        assert waits_on_stream(None, device) is expected


@pytest.mark.parametrize(("on_stream", "ranks", "expected"), [(True, 1, True), (True, 2, False), (False, 1, False)])
def test_an_emulated_link_of_a_gpu_is_a_stream_for_one_rank(on_stream: bool, ranks: int, expected: bool) -> None:
    group = EmulatedGroup(0, ranks, None, None, 4, on_stream=on_stream)
    assert waits_on_stream(group, torch.device("cuda")) is expected
