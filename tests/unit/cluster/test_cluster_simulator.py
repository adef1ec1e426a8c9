"""The simulator: by hand, and against a second-by-second reference."""

import math

import numpy as np
import pytest
from cluster_cases import TRACES, Amdahl, Scripted, ends, every_second, rigid, run, stepped
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.metrics import ClusterMoment, Finished, Simulated, Span, metrics
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policies.ordered import Sjf, Srsf, Srtf
from xbench.cluster.policy import Cluster, Grant, Policy, due
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
        (Scripted({0.0: {"a": Grant(3)}}), "granted 3 GPUs at 0 s, and there are 2"),
        (Scripted({0.0: {"a": Grant(1, 0.0)}}), "granted"),
        (Lazy(), "leaves 1 jobs waiting forever"),
    ],
)
def test_a_policy_that_cannot_be_is_a_programming_error(policy: Policy, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        run([Job("a", 0.0, 1, 5.0, Amdahl())], policy, 2)


def test_a_policy_that_only_waits_is_refused() -> None:
    with pytest.raises(SpecError, match="asked does not come to an end"):
        simulate(rigid((0, 1, 1)), every_second(Lazy), Cluster(1))


@pytest.mark.parametrize(
    ("jobs", "cluster", "said"),
    [
        (rigid((0, 4, 1)), Cluster(2), "job 'a' asks for 4 GPUs, and the cluster has 2"),
        (rigid((5, 1, 1), (4, 1, 1)), Cluster(2), "job 'b' arrives at 4 s, before"),
        ([*rigid((0, 1, 1)), *rigid((0, 1, 1))], Cluster(2), "two jobs are named 'a'"),
        ([], Cluster(0), "a cluster of 0 GPUs"),
        ([], Cluster(1, math.nan), "a restart of nan s"),
    ],
)
def test_a_trace_that_no_cluster_runs_is_refused(jobs: list[Job], cluster: Cluster, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        simulate(jobs, Fifo(), cluster)


@pytest.mark.parametrize(
    ("arrival_s", "gpus", "work", "least", "most", "said"),
    [
        (-1.0, 1, 1.0, 1, None, "arrival_s"),
        (0.0, 0, 1.0, 1, None, "gpus"),
        (0.0, 1, 0.0, 1, None, "work"),
        (0.0, 1, math.inf, 1, None, "work"),
        (0.0, 1, 1.0, 4, 2, "4 to 2"),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    arrival_s: float, gpus: int, work: float, least: int, most: int | None, said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        Job("a", arrival_s, gpus, work, RigidSpeed(1), least, most)


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
