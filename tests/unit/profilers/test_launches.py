"""Host time of launches: exact, on a clock of our own and collectives that take none of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xbench.profilers import launches
from xbench.profilers.launches import LAUNCHES, STEPS, HostCost, host_step_s, launch_s, summarise_launches


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
    assert host.happened == ["idle", "step"] * (STEPS + 1) + ["idle"]
    assert len(notes) == STEPS + 1


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

    monkeypatch.setattr(launches, "start_all_reduce", start)
    monkeypatch.setattr(launches.dist, "all_reduce", lambda tensor, group: None)
    monkeypatch.setattr(launches.time, "perf_counter", host.now)
    assert launch_s(None, torch.device("cpu")) == 2.0


@pytest.mark.parametrize(("device_step_s", "bound"), [(8.0, True), (9.0, False)])
def test_the_slowest_rank_s_host_decides_whether_the_step_is_launch_bound(device_step_s: float, bound: bool) -> None:
    found = summarise_launches([HostCost(1.0, 4.0, 6.0), HostCost(2.0, 3.0, 7.5)], device_step_s)
    assert (found.launch_s, found.hook_s, found.host_step_s, found.device_step_s) == (2.0, 4.0, 7.5, device_step_s)
    assert found.launch_bound is bound
    assert found.points == []
