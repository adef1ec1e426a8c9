"""Rigid policies: by hand, and against walks that look at every job."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from cluster_cases import TRACES, ends, every_second, rigid, run, stepped
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.jobs import Job
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policies.fifo_backfill import FifoBackfill
from xbench.cluster.policies.gittins import Gittins, gittins_index
from xbench.cluster.policies.las import Las
from xbench.cluster.policies.ordered import Ordered
from xbench.cluster.policies.sjf import Sjf
from xbench.cluster.policies.srsf import Srsf
from xbench.cluster.policies.srtf import Srtf
from xbench.cluster.policy import Active, Change, Grant, Policy
from xbench.errors import SpecError


@pytest.mark.parametrize(
    ("policy", "jobs", "expected"),
    [
        # b blocks c under FIFO although c would fit beside a
        (Fifo, [(0, 2, 10), (1, 4, 5), (2, 1, 3)], {"a": 10, "b": 15, "c": 18}),
        # c ends by the time that b is reserved for (10), and d does not
        (FifoBackfill, [(0, 2, 10), (1, 4, 5), (2, 1, 3), (3, 1, 9)], {"a": 10, "b": 15, "c": 5, "d": 24}),
        # b needs 3 of the 4 that a leaves: 1 is extra, and d may have it for as long as it likes
        (FifoBackfill, [(0, 2, 10), (1, 3, 5), (2, 1, 30)], {"a": 10, "b": 15, "c": 32}),
        # the extra one goes once: the second that would need it after the reservation waits
        (FifoBackfill, [(0, 2, 10), (1, 3, 5), (2, 1, 30), (3, 1, 30)], {"a": 10, "b": 15, "c": 32, "d": 45}),
        # c before b because it is shorter; d does not fit beside c, and e, longer, does
        (Sjf, [(0, 4, 10), (1, 4, 5), (2, 2, 3), (3, 4, 4), (4, 1, 6)], {"a": 10, "c": 13, "e": 16, "d": 20, "b": 25}),
        # b has less left than a; c has not
        (Srtf, [(0, 4, 10), (2, 4, 3), (4, 4, 9)], {"b": 5, "a": 13, "c": 22}),
        # 2 GPUs × 6 s are less than 4 × 4
        (Srsf, [(0, 4, 4), (0, 2, 6), (0, 2, 6)], {"b": 6, "c": 6, "a": 10}),
    ],
)
def test_by_hand(policy: Callable[[], Policy], jobs: list[tuple[int, int, int]], expected: dict[str, int]) -> None:
    assert ends(run(rigid(*jobs), policy(), 4)) == expected


def test_a_job_is_not_stopped_for_less_than_a_restart() -> None:
    jobs = rigid((0, 1, 10), (4, 1, 5))
    assert ends(run(jobs, Srtf(), 1)) == {"b": 9.0, "a": 15.0}
    assert ends(run(jobs, Srtf(), 1, restart_s=2.0)) == {"b": 9.0, "a": 17.0}
    equal = rigid((0, 1, 10), (4, 1, 6))
    assert ends(run(equal, Srtf(), 1, restart_s=2.0)) == {"a": 10.0, "b": 16.0}


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
            for job in sorted(self.here.values(), key=lambda job: (self.rank(self.level(job)), self.tie(job))):
                if job.job.gpus <= free:
                    free -= job.job.gpus
                    expected.add(job.number)
            assert running == expected
            return iter(changes)

    return Walked


def test_a_job_rises_after_the_seconds_that_it_held_its_gpus() -> None:
    """a held 2 GPUs for 3 s until b came, so it rises at 6 and runs before c, which came at 6.5, when b falls at 7."""
    jobs = rigid((0, 2, 20), (3, 1, 20), (6.5, 2, 2))
    simulated = run(jobs, Las(thresholds=(4.0,), promote=1.0), 2, spans=True)
    assert [(span.job, span.to_s) for span in simulated.spans if span.from_s == 7.0] == [("a", 9.0)]
    assert ends(simulated)["c"] == 11.0


@pytest.mark.parametrize("promote", [0.0, 0.5, 3.0])
@given(trace=TRACES, learn=st.booleans())
def test_levels_are_walked_in_order(promote: float, trace: list[tuple[int, int, int]], learn: bool) -> None:
    jobs = rigid(*trace)
    for policy in (
        walked(Las)(thresholds=(4.0, 12.0), promote=promote),
        walked(Gittins)(thresholds=(4.0, 8.0, 16.0), promote=promote, learn=learn),
    ):
        simulated = run(jobs, policy, 5, restart_s=0.0 if promote else 1.0)
        assert len(simulated.finished) == len(jobs)


def test_who_has_had_least_runs() -> None:
    """a falls after 4 s, when b has waited since 2; b falls at 8, and a, which came to level 1 first, goes on."""
    found = ends(run(rigid((0, 1, 10), (2, 1, 10)), Las(thresholds=(4.0,), promote=0.0), 1))
    assert found == {"a": 14.0, "b": 20.0}


def test_service_is_time_on_all_gpus() -> None:
    """2 GPUs for 2 s are 4 GPU seconds."""
    found = ends(run(rigid((0, 2, 10), (1, 2, 3)), Las(thresholds=(4.0,), promote=0.0), 2))
    assert found == {"a": 13.0 - 1, "b": 13.0}


def test_who_waits_too_long_is_promoted() -> None:
    """a falls at 2, and a new job of 1 s every second keeps it waiting. At 8 it rises, behind who comes at 8."""
    crowd = [(float(at), 1, 1.0) for at in range(2, 20)]
    jobs = rigid((0, 1, 3), *crowd)
    kept = ends(run(jobs, Las(thresholds=(2.0,), promote=0.0), 1))
    assert kept["a"] == 21.0
    assert ends(run(jobs, Las(thresholds=(2.0,), promote=3.0), 1))["a"] == 10.0


def test_the_index_by_hand() -> None:
    services = np.array([1.0, 1.0, 10.0])
    assert gittins_index(services, 0.0) == pytest.approx(2 / 3)  # b = 1: two of three are done after 1 + 1 + 1
    assert gittins_index(services, 1.0) == pytest.approx(1 / 9)  # only the long one is left
    assert gittins_index(services, 10.0) == 0.0
    assert gittins_index(np.array([3.0, 4.0]), 0.0) == pytest.approx(2 / 7)  # b = 4, not 3: 1 / 6


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 31))
def test_the_index_is_the_best_of_all_stretches(services: list[int], attained: int) -> None:
    longer = [service for service in services if service > attained]
    tried = [
        sum(service <= b for service in longer) / sum(min(service, b) - attained for service in longer) for b in longer
    ]
    found = gittins_index(np.sort(np.array(services, dtype=float)), float(attained))
    assert found == pytest.approx(max(tried, default=0.0))


def test_gittins_bets_on_those_that_may_end_soon() -> None:
    """Who has survived 1 s has 9 to go: a newcomer may be short. Las would say the same; the index says why.

    With the services 4 and 5, who has attained 3 is the likelier to end soon, and least attained service gets it wrong.
    """
    jobs = rigid((0, 1, 4), (3, 1, 5))
    assert ends(run(jobs, Gittins(thresholds=(3.0,), promote=0.0), 1)) == {"a": 4.0, "b": 9.0}
    assert ends(run(jobs, Las(thresholds=(3.0,), promote=0.0), 1)) == {"b": 9.0, "a": 7.0}


def test_what_is_learned_ranks_levels() -> None:
    """Eight jobs of 4 s teach that who has attained 3 is nearly done; until then the lower level goes first."""
    taught = [(10.0 * number, 1, 4.0) for number in range(8)]
    jobs = rigid(*taught, (100.0, 1, 4.0), (102.0, 1, 4.0))
    learned = ends(run(jobs, Gittins(thresholds=(3.0,), promote=0.0, learn=True), 1))
    assert (learned["i"], learned["j"]) == (104.0, 108.0)
    las = ends(run(jobs, Las(thresholds=(3.0,), promote=0.0), 1))
    assert (las["i"], las["j"]) == (107.0, 108.0)


@pytest.mark.parametrize("thresholds", [(0.0,), (5.0, 5.0), (5.0, 4.0), (-1.0,), (float("inf"),)])
def test_thresholds_rise_from_above_zero(thresholds: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="do not rise from above zero"):
        Las(thresholds=thresholds)


def test_a_promotion_is_no_less_than_never() -> None:
    with pytest.raises(SpecError, match="promote=-1"):
        Las(promote=-1.0)


@pytest.mark.parametrize("kind", [Fifo, FifoBackfill, Sjf, Srtf, Srsf, Las, Gittins])
def test_jobs_that_fit_all_at_once_never_wait(kind: type[Policy]) -> None:
    jobs: list[Job] = rigid((0, 1, 5), (0, 2, 7), (3, 1, 9))
    assert ends(run(jobs, kind(), 4)) == {"a": 5.0, "b": 7.0, "c": 12.0}
