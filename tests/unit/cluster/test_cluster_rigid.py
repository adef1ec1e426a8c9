"""Rigid policies: by hand, and against walks that look at every job."""

from collections.abc import Iterator

import numpy as np
import pytest
from cluster_cases import TRACES, ends, every_second, rigid, run, stepped
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.policies.attained import Gittins, Las, gittins_index
from xbench.cluster.policies.fifo import FifoBackfill
from xbench.cluster.policies.ordered import Ordered, Srsf, Srtf
from xbench.cluster.policy import Active, Change, Grant, Policy
from xbench.errors import SpecError

CROWD = [(float(at), 1, 1.0) for at in range(2, 20)]
LESSONS = [(10.0 * number, 1, 4.0) for number in range(8)]


@pytest.mark.parametrize(
    ("policy", "gpus", "jobs", "expected"),
    [
        # a falls after 4 s, when b has waited since 2; b falls at 8, and a, which came to level 1 first, goes on
        (Las((4.0,)), 1, [(0, 1, 10), (2, 1, 10)], {"a": 14, "b": 20}),
        # service is time on all GPUs: 2 GPUs for 2 s are 4 GPU seconds
        (Las((4.0,)), 2, [(0, 2, 10), (1, 2, 3)], {"a": 12, "b": 13}),
        # with the services 4 and 5, who has attained 3 is the likelier to end soon, and las gets it wrong
        (Gittins((3.0,)), 1, [(0, 1, 4), (3, 1, 5)], {"a": 4, "b": 9}),
        (Las((3.0,)), 1, [(0, 1, 4), (3, 1, 5)], {"b": 9, "a": 7}),
        # eight jobs of 4 s teach that who has attained 3 is nearly done; until then the lower level goes first
        (Gittins((3.0,), learn=True), 1, [*LESSONS, (100.0, 1, 4.0), (102.0, 1, 4.0)], {"i": 104, "j": 108}),
        (Las((3.0,)), 1, [*LESSONS, (100.0, 1, 4.0), (102.0, 1, 4.0)], {"i": 107, "j": 108}),
    ],
)  # fmt: skip
def test_levels_by_hand(
    policy: Policy, gpus: int, jobs: list[tuple[float, int, float]], expected: dict[str, float]
) -> None:
    found = ends(run(rigid(*jobs), policy, gpus))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("promote", "threshold", "gpus", "jobs", "expected"),
    [
        # a held 2 GPUs for 3 s until b came, so it rises at 6 and runs before c, which came at 6.5, when b falls at 7
        (1.0, 4.0, 2, [(0, 2, 20), (3, 1, 20), (6.5, 2, 2)], {"c": 11}),
        # a falls at 2, and a new job of 1 s every second keeps it waiting. At 8 it rises, behind who comes at 8
        (100.0, 2.0, 1, [(0, 1, 3), *CROWD], {"a": 21}),
        (3.0, 2.0, 1, [(0, 1, 3), *CROWD], {"a": 10}),
    ],
)
def test_a_job_that_waited_long_enough_rises(
    promote: float, threshold: float, gpus: int, jobs: list[tuple[float, int, float]], expected: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("xbench.cluster.policies.attained.PROMOTE", promote)
    found = ends(run(rigid(*jobs), Las((threshold,)), gpus))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(("rule", "kind"), [("srtf", Srtf), ("srsf", Srsf)])
@given(trace=TRACES, restart_s=st.integers(1, 4), gpus=st.integers(4, 7))
def test_with_restarts_as_second_by_second(
    rule: str, kind: type[Policy], trace: list[tuple[int, int, int]], restart_s: int, gpus: int
) -> None:
    """Between events the reference decides too; where nothing happened, nothing of the order has changed."""
    found = ends(run(rigid(*trace), every_second(kind), gpus, restart_s=float(restart_s)))
    assert found == stepped(trace, gpus, rule, restart_s)


class PlainBackfill(Policy):
    """EASY as it is told: the queue is walked from its head at every event."""

    def __init__(self) -> None:
        self.queue: list[Active] = []
        self.running: dict[Active, float] = {}

    def arrived(self, job: Active, now_s: float) -> None:
        self.queue.append(job)

    def finished(self, job: Active, now_s: float) -> None:
        del self.running[job]

    def decide(self, now_s: float) -> Iterator[Change]:
        free = self.cluster.gpus - sum(job.job.gpus for job in self.running)
        reserved: tuple[float, int] | None = None
        for job in list(self.queue):
            gpus, end_s = job.job.gpus, now_s + job.job.duration_s
            if gpus <= free and (reserved is None or end_s <= reserved[0] or gpus <= reserved[1]):
                if reserved is not None and end_s > reserved[0]:
                    reserved = (reserved[0], reserved[1] - gpus)
                free -= gpus
                self.queue.remove(job)
                self.running[job] = end_s
                yield job, Grant(gpus)
            elif reserved is None:
                times_s = sorted(set(self.running.values()))
                then = [free + sum(job.job.gpus for job, at in self.running.items() if at <= time) for time in times_s]
                at = next(place for place, there in enumerate(then) if there >= gpus)
                reserved = (times_s[at], then[at] - gpus)


@given(TRACES)
def test_backfilling_is_easy_s(trace: list[tuple[int, int, int]]) -> None:
    jobs = rigid(*trace)
    assert ends(run(jobs, FifoBackfill(), 4)) == ends(run(jobs, PlainBackfill(), 4))


def walked(kind: type[Ordered]) -> type[Ordered]:
    """The policy, and whether after each decision those run that a walk through all jobs would pick."""

    class Walked(kind):  # type: ignore[misc, valid-type]
        here: dict[int, Active]

        def begin(self, cluster, jobs) -> None:  # type: ignore[no-untyped-def]
            super().begin(cluster, jobs)
            self.here = {}

        def arrived(self, job: Active, now_s: float) -> None:
            self.here[job.number] = job
            super().arrived(job, now_s)

        def finished(self, job: Active, now_s: float) -> None:
            del self.here[job.number]
            super().finished(job, now_s)

        def decide(self, now_s: float) -> Iterator[Change]:
            changes = list(super().decide(now_s))
            running = {job.number for job in self.here.values() if job.gpus}
            running |= {job.number for job, grant in changes if grant.gpus}
            running -= {job.number for job, grant in changes if not grant.gpus}
            free, expected = self.cluster.gpus, set()
            for job in sorted(self.here.values(), key=lambda job: (self.rank(self._level[job.number]), self.tie(job))):
                if job.job.gpus <= free:
                    free -= job.job.gpus
                    expected.add(job.number)
            assert running == expected
            return iter(changes)

    return Walked


@pytest.mark.parametrize("promote", [0.5, 3.0, 8.0])
@given(trace=TRACES, learn=st.booleans())
def test_levels_are_walked_in_order(promote: float, trace: list[tuple[int, int, int]], learn: bool) -> None:
    jobs = rigid(*trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xbench.cluster.policies.attained.PROMOTE", promote)
        for policy in (
            walked(Las)(thresholds=(4.0, 12.0)), walked(Gittins)(thresholds=(4.0, 8.0, 16.0), learn=learn),
        ):  # fmt: skip
            simulated = run(jobs, policy, 5, restart_s=0.0 if promote < 8 else 1.0)
            assert len(simulated.finished) == len(jobs)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 31))
def test_the_index_is_the_best_of_all_stretches(services: list[int], attained: int) -> None:
    longer = [service for service in services if service > attained]
    tried = [
        sum(service <= b for service in longer) / sum(min(service, b) - attained for service in longer) for b in longer
    ]
    found = gittins_index(np.sort(np.array(services, dtype=float)), float(attained))
    assert found == pytest.approx(max(tried, default=0.0))


@pytest.mark.parametrize("thresholds", [(0.0,), (5.0, 5.0), (5.0, 4.0), (-1.0,), (float("inf"),)])
def test_thresholds_rise_from_above_zero(thresholds: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="do not rise from above zero"):
        Las(thresholds=thresholds)
