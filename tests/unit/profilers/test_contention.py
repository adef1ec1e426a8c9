"""From what each rank saw to one table, and from marks to progress: exact, on a clock of our own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from xbench.profilers import contention
from xbench.profilers.contention import (
    LAUNCHED_STEPS,
    LAUNCHES,
    HostCost,
    Measured,
    Progress,
    Stream,
    host_step_s,
    launch_s,
    summarise_contention,
    summarise_launches,
)
from xbench.records import ContentionPoint
from xbench.schedules.groups import collectives_begun
from xbench.workloads.preflight import group_of_one
from xbench.workloads.training_step import TrainingStep


def stream(nbytes: int, in_flight: int, each_s: float, count: int = 4) -> Stream:
    return Stream(nbytes, in_flight, count, begin_s=10.0, end_s=10.0 + count * each_s)


def test_times_are_the_slowest_ranks_and_slowdowns_the_mean_over_ranks_and_passes() -> None:
    # sizes 8 and 64; the second pass sends them in reverse
    ranks = [
        Measured(
            [stream(8, 1, 1.0), stream(64, 1, 2.0)],
            [stream(8, 1, 1.5), stream(64, 1, 4.0), stream(64, 1, 6.0), stream(8, 1, 2.5)],
            [1.25, 2.0, 3.0, 1.75],
            launch_s=0.125,
        ),
        Measured(
            [stream(8, 1, 1.25), stream(64, 1, 1.75)],
            [stream(8, 1, 2.0), stream(64, 1, 3.0), stream(64, 1, 7.0), stream(8, 1, 2.0)],
            [1.5, 4.0, 3.0, 1.5],
            launch_s=0.25,
        ),
    ]  # fmt: skip
    found = summarise_contention(ranks)
    assert found.launch_s == 0.25
    assert found.points == [
        ContentionPoint(nbytes=8, in_flight=1, alone_s=1.25, loaded_s=2.25, compute_slowdown=1.5),
        ContentionPoint(nbytes=64, in_flight=1, alone_s=2.0, loaded_s=5.5, compute_slowdown=3.0),
    ]


def test_one_and_two_in_flight_are_points_of_their_own() -> None:
    both = [stream(8, 1, 1.0), stream(8, 2, 0.5)]
    found = summarise_contention([Measured(both, [stream(8, 1, 3.0), stream(8, 2, 2.0)], [1.5, 1.25])])
    assert [(p.in_flight, p.alone_s, p.loaded_s, p.compute_slowdown) for p in found.points] == [
        (1, 1.0, 3.0, 1.5),
        (2, 0.5, 2.0, 1.25),
    ]


def test_a_rank_without_progress_is_left_out_and_a_size_without_any_too() -> None:
    alone, together = [stream(8, 1, 1.0), stream(64, 1, 1.0)], [stream(8, 1, 2.0), stream(64, 1, 2.0)]
    found = summarise_contention(
        [Measured(alone, together, [math.inf, math.inf]), Measured(alone, together, [1.5, math.inf])]
    )
    assert [(p.nbytes, p.loaded_s, p.compute_slowdown) for p in found.points] == [(8, 2.0, 1.5)]


class Clock:
    """Each look at it takes `pace_s`, so that what it times takes a known time."""

    def __init__(self) -> None:
        self.now_s, self.pace_s = 0.0, 1.0

    def perf_counter(self) -> float:
        self.now_s += self.pace_s
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(contention, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


class Step(TrainingStep):
    """A step has a mark at its start, at each layer's forward, and at each of the two weights."""

    def __init__(self, used: Callable[[], bool]) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self._used = used

    def forward_loss(self) -> Tensor:
        inputs = torch.ones(1, 2)
        return (self.model(inputs) if self._used() else self.model[0](inputs)).sum()


def workload(used: Callable[[], bool] = lambda: True) -> Step:
    return Step(used)


def test_progress_is_in_undisturbed_seconds(clock: Clock) -> None:
    with Progress(workload()) as progress:
        for _ in range(3):
            progress.run_step()
        progress.learn()  # five marks a second apart are a step
        clock.pace_s = 2.0
        began_s = clock.now_s + 2.0
        progress.run_step()
        progress.run_step()
        progress.end()
        assert progress.at(began_s - 1.0) == 0.0
        assert [progress.at(began_s + after_s) for after_s in (0.0, 1.0, 3.0, 8.0)] == [0.0, 0.5, 1.5, 4.0]
        assert progress.at(began_s + 13.0) == 6.5
        assert progress.at(began_s + 20.0) == 10.0


def test_where_the_graph_changes_only_whole_steps_compare(clock: Clock) -> None:
    used: Iterator[bool] = itertools.cycle([True, False])
    with Progress(workload(lambda: next(used))) as progress:
        for _ in range(3):
            progress.run_step()
        progress.learn(warmup=1)  # a step of three marks and one of five: four seconds in the middle
        clock.pace_s = 8.0
        began_s = clock.now_s + 8.0
        progress.run_step()
        progress.end()
        assert [progress.at(began_s + after_s) for after_s in (0.0, 4.0, 8.0)] == [0.0, 2.0, 4.0]


def test_what_a_rest_saves_is_the_slowest_rank_s_median_over_pairs() -> None:
    ranks = [
        Measured(soon_s=[2.0, 2.0, 2.5], rested_s=[1.5, 1.0, 1.75]),
        Measured(soon_s=[1.5, 2.25, 2.0], rested_s=[1.25, 1.25, 2.0]),
    ]
    # slowest of each: 2, 2.25, 2.5 soon after another, and 1.5, 1.25, 2 after a rest
    assert summarise_contention(ranks).rest_s == 0.5
    assert summarise_contention([Measured(soon_s=[1.0], rested_s=[1.5])]).rest_s == 0.0
    assert summarise_contention([Measured()]).rest_s == 0.0


def test_a_meeting_costs_what_the_slowest_step_takes_longer_beyond_the_link() -> None:
    ranks = [
        Measured(met_s=[1.5, 1.75, 2.0], bare_s=[1.0, 1.25, 1.0], least_s=0.25),
        Measured(met_s=[1.75, 1.5, 1.5], bare_s=[1.0, 1.0, 1.0], least_s=0.25),
    ]
    # Slowest of each step: 1.75, 1.75, 2 with a meeting; 1, 1.25, 1 without.
    assert summarise_contention(ranks).meeting_s == 1.75 - 1.0 - 0.25
    cheap = [Measured(met_s=[1.0], bare_s=[1.25], least_s=0.25)]
    assert summarise_contention(cheap).meeting_s == 0.0
    assert summarise_contention([Measured(), Measured()]).meeting_s == 0.0


class Tiny(TrainingStep):
    def __init__(self) -> None:
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def forward_loss(self) -> Tensor:
        return self.model(torch.ones(4, 3)).sum()


@pytest.mark.parametrize("communicates", [True, False])
def test_a_model_with_collectives_of_its_own_runs_no_steps_beside_others(
    monkeypatch: pytest.MonkeyPatch, communicates: bool
) -> None:
    monkeypatch.setattr(contention, "workers_of", lambda group: 2)
    monkeypatch.setattr(contention, "MAX_MEETINGS", 0)
    threads: set[str] = set()
    monkeypatch.setattr(contention, "_send", lambda *_: threads.add(contention.threading.current_thread().name))
    with group_of_one():
        found = contention.measure_contention(
            Tiny(), None, lambda size: 1e-3, most_bytes=4096, note=lambda _: None, model_communicates=communicates
        )
    assert len(found.alone) == 2
    assert len(found.together) == (0 if communicates else 4)
    assert threads == {"MainThread"} | (set() if communicates else {"xbench-collectives"})
    if communicates:
        assert summarise_contention([found]).points == []


def test_collectives_of_every_group_are_counted() -> None:
    with group_of_one():
        other = dist.new_group([0])
        before = collectives_begun()
        dist.all_reduce(torch.zeros(1))
        dist.all_gather([torch.zeros(1)], torch.zeros(1), group=other)
        assert collectives_begun() == before + 2
    assert not dist.is_initialized()


class Host:
    """A host whose work takes time, beside a device that is idle when it is waited for. Keeps what happened."""

    def __init__(self, took_s: list[float]) -> None:
        self.now_s = 0.0
        self.happened: list[str] = []
        self._took_s = iter(took_s)

    def step(self) -> None:
        self.happened.append("step")
        self.now_s += next(self._took_s)

    def idle(self) -> None:
        self.happened.append("idle")
        self.now_s += 100.0

    def now(self) -> float:
        return self.now_s


def test_a_step_s_host_time_is_from_an_idle_device_to_its_last_launch() -> None:
    # the first is the warm-up, and the wait for the device is in none
    host = Host([50.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 90.0])
    notes: list[str] = []
    assert host_step_s(host.step, host.idle, notes.append, host.now) == 4.5
    assert host.happened == ["idle", "step"] * (LAUNCHED_STEPS + 1) + ["idle"]
    assert len(notes) == LAUNCHED_STEPS + 1


def test_a_launch_is_timed_without_the_wait_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host([float(k % 5) for k in range(LAUNCHES)])
    flying: list[int] = []

    class Work:
        def wait(self) -> None:
            flying.pop()
            host.idle()

    def start(buffer: torch.Tensor, group: Any) -> Work:
        flying.append(1)
        assert len(flying) == 1  # so few that no queue is full
        host.step()
        return Work()

    monkeypatch.setattr(contention, "start_all_reduce", start)
    monkeypatch.setattr(contention.dist, "all_reduce", lambda tensor, group: None)
    monkeypatch.setattr(contention.time, "perf_counter", host.now)
    assert launch_s(None, torch.device("cpu")) == 2.0


@pytest.mark.parametrize(("device_step_s", "bound"), [(8.0, True), (9.0, False)])
def test_the_slowest_rank_s_host_decides_whether_the_step_is_launch_bound(device_step_s: float, bound: bool) -> None:
    found = summarise_launches([HostCost(1.0, 4.0, 6.0), HostCost(2.0, 3.0, 7.5)], device_step_s)
    assert (found.launch_s, found.hook_s, found.host_step_s, found.device_step_s) == (2.0, 4.0, 7.5, device_step_s)
    assert found.launch_bound is bound
    assert found.points == []
