"""The simulator: by hand, against a second-by-second reference, and to the end: no policy restarts jobs for ever."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from cluster_cases import TRACES, Amdahl, Scripted, ends, every_second, rigid, run, stepped
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.metrics import ClusterMoment, Finished, Simulated, Span, metrics
from xbench.cluster.policies import POLICIES, parse_policy
from xbench.cluster.policies.attained import Las
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policies.ordered import Sjf, Srsf, Srtf
from xbench.cluster.policy import Cluster, Grant, Policy, due, tolerance_s
from xbench.cluster.simulator import simulate
from xbench.cluster.speeds import TableSpeed
from xbench.errors import SpecError


def test_a_stop_and_a_restart() -> None:
    script = {0.0: {"a": Grant(2)}, 8.0: {"a": Grant(0)}, 10.0: {"a": Grant(2)}}
    simulated = run(rigid((0, 2, 20)), Scripted(script), 2, restart_s=5.0, spans=True)
    (job,) = simulated.finished
    assert (job.began_s, job.finished_s, job.restarts) == (0.0, 27.0, 1)
    assert (job.held_gpu_s, job.useful_gpu_s, job.restarting_gpu_s) == (50.0, 40.0, 10.0)
    assert simulated.spans == [Span("a", 2, 0.0, 8.0, None), Span("a", 2, 10.0, 27.0, None)]
    assert simulated.moments == [
        ClusterMoment(0, 2, 1, 0),
        ClusterMoment(8, 0, 0, 1),
        ClusterMoment(10, 2, 1, 0),
        ClusterMoment(27, 0, 0, 0),
    ]
    assert simulated.held_gpu_s == 50.0


@pytest.mark.parametrize(
    ("script", "end_s", "restarts"),
    [
        ({0.0: {"a": Grant(1)}}, 20.0, 0),
        ({0.0: {"a": Grant(1)}, 4.0: {"a": Grant(2)}}, 17.0, 1),  # 4 done, 5 s lost, 16 at 2 a second
        ({0.0: {"a": Grant(1)}, 4.0: {"a": Grant(2)}, 6.0: {"a": Grant(4)}}, 15.0, 2),  # restarted while it restarts
        ({0.0: {"a": Grant(1)}, 4.0: {"a": Grant(1)}}, 20.0, 0),  # no change
        ({3.0: {"a": Grant(4)}}, 8.0, 0),  # the first start is no restart
    ],
)
def test_a_change_of_size(script: dict[float, dict[str, Grant]], end_s: float, restarts: int) -> None:
    simulated = run([Job("a", 0.0, 1, 20.0, Amdahl())], Scripted(script), 4, restart_s=5.0)
    assert ends(simulated) == {"a": end_s}
    assert simulated.finished[0].restarts == restarts


def test_a_gang_shares_gpus_at_a_rate_and_leaving_it_costs_nothing() -> None:
    script = {0.0: {"a": Grant(2, 0.6, 1), "b": Grant(2, 0.6, 1)}, 10.0: {"b": Grant(2)}}
    simulated = run(rigid((0, 2, 6), (0, 2, 12)), Scripted(script), 2, restart_s=5.0)
    assert ends(simulated) == {"a": pytest.approx(10.0), "b": pytest.approx(16.0)}
    first, second = simulated.finished
    assert (first.held_gpu_s, first.useful_gpu_s) == (pytest.approx(20.0), pytest.approx(12.0))
    assert (second.held_gpu_s, second.useful_gpu_s) == (pytest.approx(32.0), pytest.approx(24.0))
    assert first.restarts == second.restarts == 0
    assert simulated.held_gpu_s == pytest.approx(32.0)  # each GPU once
    judged = metrics(simulated)
    assert judged.occupancy == pytest.approx(1.0)
    assert judged.useful_share == pytest.approx(36 / 52)
    assert judged.restart_gpu_s == 0.0


def test_gangs_of_different_widths_hold_the_widest() -> None:
    script = {
        0.0: {"a": Grant(3, 0.5, 7), "b": Grant(1, 0.5, 7), "c": Grant(1)},
        2.0: {"a": Grant(0)},
        3.0: {"a": Grant(3)},
    }
    jobs = rigid((0, 3, 4), (0, 1, 1), (0, 1, 9))
    simulated = run(jobs, Scripted(script), 4)
    assert [moment.held for moment in simulated.moments if moment.at_s in (0.0, 2.0, 3.0)] == [4, 1, 4]
    assert ends(simulated) == {"b": 2.0, "a": 6.0, "c": 9.0}


def test_a_completion_is_told_before_an_arrival_of_the_same_time() -> None:
    policy = Scripted({0.0: {"a": Grant(1)}, 10.0: {"b": Grant(1)}})
    simulated = run(rigid((0, 1, 10), (10, 1, 5)), policy, 1)
    assert policy.told == [("arrived", "a"), ("finished", "a"), ("arrived", "b"), ("finished", "b")]
    assert simulated.finished[1].queued_s == 0.0
    assert simulated.decisions == 3


def test_metrics_by_hand() -> None:
    judged = run(rigid((0, 2, 10), (4, 2, 10)), Fifo(), 2)
    found = metrics(judged)
    assert (found.jobs, found.jct_mean_s, found.queued_mean_s, found.makespan_s) == (2, 13.0, 3.0, 20.0)
    assert found.jct_p50_s == 13.0
    assert found.slowdown_mean == pytest.approx((1.0 + 1.6) / 2)
    assert [job.contention for job in judged.finished] == [pytest.approx(1.6), pytest.approx(22 / 16)]
    assert found.unfairness_p95 == pytest.approx(np.percentile([10 / 16, 16 / 13.75], 95))
    assert (found.occupancy, found.useful_share, found.restarts, found.held_gpu_s) == (1.0, 1.0, 0, 40.0)
    # a short job's is bounded
    assert metrics(run(rigid((0, 1, 10), (0, 1, 1)), Fifo(), 1)).slowdown_mean == pytest.approx((1.0 + 1.1) / 2)
    with pytest.raises(ValueError, match="nothing to judge"):
        metrics(run([], Fifo(), 1))


def test_the_makespan_begins_with_the_first_arrival() -> None:
    """Two GPUs for 10 s and then for 4 s, from 30 s on: held all the time."""
    judged = metrics(run(rigid((30, 2, 10), (31, 2, 4)), Fifo(), 2))
    assert (judged.makespan_s, judged.occupancy) == (14.0, 1.0)


def test_jobs_that_held_no_gpu_wasted_none() -> None:
    (job,) = rigid((5, 1, 10))
    judged = metrics(Simulated(Cluster(1), [Finished(job, 5.0, 5.0, 0, 0.0, 0.0, 0.0, 1.0)]))
    assert (judged.useful_share, judged.occupancy, judged.across_share, judged.lost_share) == (1.0, 1.0, 0.0, 0.0)


def test_instants_within_a_nanosecond_or_a_millionth_of_a_millionth_are_equal() -> None:
    assert due(1e-9, 0.0)
    assert not due(1.001e-9, 0.0)
    assert due(1e6 + 0.9e-6, 1e6)
    assert not due(1e6 + 1.1e-6, 1e6)


class Lazy(Policy):
    def arrived(self, job: object, now_s: float) -> None: ...

    def finished(self, job: object, now_s: float) -> None: ...

    def decide(self, now_s: float) -> list[object]:  # type: ignore[override]
        return []


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (lambda: Scripted({0.0: {"a": Grant(3)}}), "granted 3 GPUs at 0 s, and there are 2"),
        (lambda: Scripted({0.0: {"a": Grant(1, 0.0)}}), "granted"),
        (Lazy, "leaves 1 jobs waiting forever"),
    ],
)
def test_a_policy_that_cannot_be_is_a_programming_error(policy: Callable[[], Policy], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        run([Job("a", 0.0, 1, 5.0, Amdahl())], policy(), 2)


def test_a_policy_that_only_waits_is_refused() -> None:
    with pytest.raises(SpecError, match="asked does not come to an end"):
        simulate(rigid((0, 1, 1)), every_second(Lazy), Cluster(1))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: simulate(rigid((0, 4, 1)), Fifo(), Cluster(2)), "job 'a' asks for 4 GPUs, and the cluster has 2"),
        (lambda: simulate(rigid((5, 1, 1), (4, 1, 1)), Fifo(), Cluster(2)), "job 'b' arrives at 4 s, before"),
        (lambda: simulate(rigid((0, 1, 1)) * 2, Fifo(), Cluster(2)), "two jobs are named 'a'"),
        (lambda: simulate([], Fifo(), Cluster(0)), "a cluster of 0 GPUs"),
        (lambda: simulate([], Fifo(), Cluster(1, math.nan)), "a restart of nan s"),
        (lambda: Job("a", -1.0, 1, 1.0, RigidSpeed(1)), "arrival_s"),
        (lambda: Job("a", 0.0, 0, 1.0, RigidSpeed(1)), "gpus"),
        (lambda: Job("a", 0.0, 1, 0.0, RigidSpeed(1)), "work"),
        (lambda: Job("a", 0.0, 1, math.inf, RigidSpeed(1)), "work"),
        (lambda: Job("a", 0.0, 1, 1.0, RigidSpeed(1), 4, 2), "4 to 2"),
    ],
)
def test_jobs_and_clusters_that_cannot_be_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


@pytest.mark.parametrize(("rule", "kind"), [("fifo", Fifo), ("sjf", Sjf), ("srtf", Srtf), ("srsf", Srsf)])
@given(trace=TRACES, gpus=st.integers(4, 6))
def test_every_end_is_that_of_a_second_by_second_walk(
    rule: str, kind: type[Policy], trace: list[tuple[int, int, int]], gpus: int
) -> None:
    assert ends(run(rigid(*trace), kind(), gpus)) == stepped(trace, gpus, rule)


@given(st.integers(0, 4), st.data())
def test_nobody_has_more_than_there_is_and_all_work_is_done(restart_s: int, data: st.DataObject) -> None:
    trace = data.draw(TRACES)
    simulated = run(rigid(*trace), Srtf(), 4, restart_s=float(restart_s), spans=True)
    assert max(moment.held for moment in simulated.moments) <= 4
    assert len(simulated.finished) == len(trace)
    for job in simulated.finished:
        assert job.useful_gpu_s == pytest.approx(job.job.service_s)
        assert job.held_gpu_s == pytest.approx(job.useful_gpu_s + job.restarting_gpu_s)
        assert job.restarting_gpu_s <= job.restarts * restart_s * job.job.gpus + 1e-9
    held_gpu_s = sum(span.gpus * (span.to_s - span.from_s) for span in simulated.spans)
    assert held_gpu_s == pytest.approx(simulated.held_gpu_s)


def test_a_first_start_costs_what_the_cluster_says() -> None:
    simulated = simulate(rigid((0, 1, 10), (1, 1, 4)), Fifo(), Cluster(1, 5.0, start_s=3.0))
    assert ends(simulated) == {"a": 13.0, "b": 20.0}
    assert [job.restarting_gpu_s for job in simulated.finished] == [3.0, 3.0]
    with pytest.raises(SpecError, match=r"a start of -1 s is not a valid cost"):
        simulate(rigid((0, 1, 10)), Fifo(), Cluster(1, start_s=-1))


def test_what_a_policy_is_told_need_not_be_so() -> None:
    """It puts the job that it takes for the shorter one first, and is told that restarts cost nothing."""
    jobs = rigid((0, 1, 10), (0, 1, 4))
    told: list[Cluster] = []

    class Listening(Sjf):
        def begin(self, cluster: Cluster, jobs: object) -> None:
            told.append(cluster)
            super().begin(cluster, jobs)  # type: ignore[arg-type]

    truths = {"a": TableSpeed.of({1: 5.0}), "b": TableSpeed.of({1: 0.5})}
    simulated = simulate(jobs, Listening(), Cluster(1, 2.0), believed=Cluster(1), truths=truths)
    assert ends(simulated) == {"b": 8.0, "a": 10.0}
    assert told == [Cluster(1)]


LEVELLED = {"las": 3600.0, "gittins": 900.0}
"""The first threshold of each policy that counts service [GPU s], by default."""


def most_restarts(jobs: list[Job], policy: str) -> float:
    """Decisions that change anything, times the jobs that each could restart.

    A decision follows an arrival, an end, a trial, or a job that falls or rises by a level. A job falls no more often
    than its service holds the first threshold, and once for each level besides; it rises after a fall.
    """
    count, sizes, levels = len(jobs), 4, 7
    decisions = 2.0 * count + (sizes * count if policy == "exploratory" else 0)
    if policy in LEVELLED:
        decisions += 2 * sum(job.service_s / LEVELLED[policy] + levels for job in jobs)
    return count * decisions


def test_a_job_falls_by_what_it_computed_and_rises_by_what_it_held() -> None:
    """a holds its GPU from 0, and again from 14, 5 s of restart first: it falls after 4 s of work, not of holding."""
    jobs = rigid((0, 1, 20), (4, 1, 10), (14, 1, 1))
    simulated = run(jobs, Las(thresholds=(4.0, 8.0)), 1, restart_s=5.0, spans=True)
    spans = [(span.job, span.from_s, span.to_s) for span in simulated.spans]
    # a falls at 4; b runs to 8 and falls; a came to level 1 first, and after 5 s of restart c, new, interrupts it
    assert spans[:4] == [("a", 0.0, 4.0), ("b", 4.0, 8.0), ("a", 8.0, 14.0), ("c", 14.0, 15.0)]
    # a has computed 4 + 1 s so far: it falls to the last level 3 s after its restart is over
    assert spans[4] == ("a", 15.0, 23.0)


KNOWN = {"step_s": 1.0, "exposed": 0.3, "memory_bytes": 1.0}
JOBS = st.lists(st.tuples(st.floats(0, 5000), st.integers(1, 8), st.floats(1, 20_000)), min_size=1, max_size=10).map(
    sorted
)


@pytest.mark.parametrize("policy", sorted(set(POLICIES.names()) - {"alternate"}))
@given(drawn=JOBS, restart_s=st.floats(0, 600))
@settings.get_profile("few")
def test_every_policy_ends_with_a_bounded_number_of_restarts(
    policy: str, drawn: list[tuple[float, int, float]], restart_s: float
) -> None:
    speed = Amdahl(0.9)
    jobs = [
        Job(f"j{number}", at_s, gpus, long_s * speed(gpus), speed, facts=KNOWN)
        for number, (at_s, gpus, long_s) in enumerate(drawn)
    ]
    simulated = simulate(jobs, parse_policy(policy), Cluster(8, restart_s), spans=True)
    assert len(simulated.finished) == len(jobs)
    assert sum(job.restarts for job in simulated.finished) <= most_restarts(jobs, policy)
    assert all(span.to_s - span.from_s >= tolerance_s(span.from_s) / 2 for span in simulated.spans)


TENTHS = st.integers(0, 300).map(lambda tenths: tenths / 10)


@given(
    st.lists(st.tuples(TENTHS, st.integers(1, 4), TENTHS.filter(bool)), min_size=4, max_size=12).map(sorted),
    st.sampled_from([0.0, 0.3, 1.4]),
)
def test_nobody_is_started_and_stopped_at_one_instant(trace: list[tuple[float, int, float]], restart_s: float) -> None:
    """Sums of tenths that ought to be equal differ by an ulp; timers that ought to coincide do."""
    simulated = run(rigid(*trace), Las(thresholds=(4.1, 12.3)), 6, restart_s, spans=True)
    assert all(span.to_s - span.from_s > 1e-6 for span in simulated.spans)
    at_s = [moment.at_s for moment in simulated.moments]
    assert all(later - sooner > tolerance_s(sooner) for sooner, later in pairwise(at_s))


@pytest.mark.parametrize("restart_s", [0.0, 600.0])
def test_a_simulation_that_hardly_gets_on_is_refused(restart_s: float) -> None:
    jobs = rigid(*[(0.0, 128, 7200.0)] * 12)
    with pytest.raises(SpecError, match=r"^las does not come to an end: in 10000 decisions no job ended") as caught:
        simulate(jobs, Las(thresholds=(0.001, 0.002)), Cluster(128, restart_s))
    assert caught.value.hint == "lower --restart-cost, or raise the policy's thresholds"


def test_a_long_job_under_a_policy_of_rounds_is_no_standstill() -> None:
    assert ends(simulate(rigid((0, 1, 100_000)), every_second(Las), Cluster(1))) == {"a": pytest.approx(100_000)}
