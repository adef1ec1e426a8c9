"""Who does what among given ranks."""

from __future__ import annotations

import pytest

from xbench.errors import SpecError
from xbench.launch.placement import RankInfo, seats


def present(*hosts: str, cores: dict[int, tuple[int, ...]] | None = None) -> list[RankInfo]:
    return [RankInfo(rank, host, host, None, (cores or {}).get(rank, (0, 1, 2, 3))) for rank, host in enumerate(hosts)]


def test_one_job_has_all_ranks_in_their_order() -> None:
    found = seats(present("a", "a", "b", "b"), 1, "torchrun")
    assert [(s.job, s.rank, s.world_size, s.host, s.device, s.devices, s.leads) for s in found] == [
        (0, 0, 4, 0, 0, 2, True),
        (0, 1, 4, 0, 1, 2, False),
        (0, 2, 4, 1, 0, 2, True),
        (0, 3, 4, 1, 1, 2, False),
    ]
    assert {s.cores for s in found} == {()}


def test_two_jobs_share_each_device_by_neighbours() -> None:
    found = seats(present("a", "a", "a", "a", "b", "b"), 2, "torchrun")
    assert [(s.job, s.rank, s.host, s.device, s.devices) for s in found] == [
        (0, 0, 0, 0, 2),
        (1, 0, 0, 0, 2),
        (0, 1, 0, 1, 2),
        (1, 1, 0, 1, 2),
        (0, 2, 1, 0, 1),
        (1, 2, 1, 0, 1),
    ]
    assert {s.world_size for s in found} == {3}
    assert [s.cores for s in found[:4]] == [(0, 1), (0, 1), (2, 3), (2, 3)]


def test_ranks_dealt_round_the_hosts_are_divided_as_well() -> None:
    found = seats(present("a", "b", "a", "b"), 2, "mpirun")
    assert [(s.job, s.rank, s.host, s.leads) for s in found] == [
        (0, 0, 0, True),
        (0, 1, 1, True),
        (1, 0, 0, False),
        (1, 1, 1, False),
    ]


def test_the_engine_s_own_cores_are_kept() -> None:
    bound = {0: (0,), 1: (1,), 2: (2,), 3: (3,)}
    assert [s.cores for s in seats(present("a", "a", "a", "a", cores=bound), 2, "mpirun")] == [
        (0, 1), (0, 1), (2, 3), (2, 3),
    ]  # fmt: skip


def test_a_host_with_an_odd_number_of_ranks_is_named() -> None:
    with pytest.raises(SpecError) as caught:
        seats(present("a", "a", "a", "b"), 2, "mpirun")
    assert str(caught.value).endswith("one a job and device, and mpirun started 3 on a")
