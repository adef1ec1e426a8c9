"""The lower bound stays below the exact optimum of a few jobs, and no policy comes below that."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from cluster_cases import Amdahl, rigid, run
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from xbench.cluster.bounds import best_paces, best_speed, bound_s, lower_bound_s, sizes_of
from xbench.cluster.jobs import Job, on_hosts
from xbench.cluster.metrics import metrics
from xbench.cluster.policies.doubling import Doubling
from xbench.cluster.policies.elastic import EqualShare, Optimus
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policies.ordered import Srtf
from xbench.cluster.policy import Cluster
from xbench.cluster.speeds import HostSpeed, HostTable

SIZES = (1, 2, 4)
Events = tuple[tuple[str, int], ...]


def optimum_s(jobs: Sequence[Job], cluster: Cluster) -> float:
    """The least mean JCT [s] of all schedules, restarts free, with any preemption and any change among allowed sizes.

    Between two events (arrivals, completions) a schedule is a mixture of *configurations*: sizes of the active jobs
    that fit the cluster together. Only how long each configuration lasts affects the work done, not when. So for a
    given order of events the optimum is a linear program over these times: each job's work is done by its completion,
    arrivals are fixed, and the sum of completion times is minimal. The minimum over all orders of completion is exact.
    There are at most (2n−1)!! orders, so n is small.
    """
    order = sorted(range(len(jobs)), key=lambda index: jobs[index].arrival_s)
    jobs = [jobs[index] for index in order]
    best_s = [job.work * best_paces(job, cluster)[0] for job in jobs]
    least_sum_s = min(_ordered_sum_s(jobs, cluster, events) for events in _event_orders(jobs, best_s))
    return (least_sum_s - sum(job.arrival_s for job in jobs)) / len(jobs)


def _event_orders(jobs: Sequence[Job], best_s: Sequence[float]) -> Iterator[Events]:
    """All orders of arrivals (in this order) and completions, without orders in which a job ends too soon."""

    def extend(events: Events, arrived: int, active: frozenset[int]) -> Iterator[Events]:
        if len(events) == 2 * len(jobs):
            yield events
        next_s = math.inf
        if arrived < len(jobs):
            next_s = jobs[arrived].arrival_s
            yield from extend((*events, ("arrives", arrived)), arrived + 1, active | {arrived})
        for job in sorted(active):
            if jobs[job].arrival_s + best_s[job] <= next_s * (1 + 1e-9):
                yield from extend((*events, ("ends", job)), arrived, active - {job})

    yield from extend((), 0, frozenset())


def _ordered_sum_s(jobs: Sequence[Job], cluster: Cluster, events: Events) -> float:
    """The least sum of completion times with the events in this order; inf without such a schedule."""
    active: set[int] = set()
    columns: list[tuple[int, dict[int, int]]] = []
    """(interval, GPUs of each active job)"""
    for interval, (_, job) in enumerate(events):
        columns += [(interval, config) for config in _configurations(jobs, cluster, sorted(active))]
        active ^= {job}
    ends = {job: index for index, (what, job) in enumerate(events) if what == "ends"}
    cost = np.array([sum(interval <= index for index in ends.values()) for interval, _ in columns], dtype=float)
    arrivals = np.array(
        [[interval <= index for interval, _ in columns] for index, (what, _) in enumerate(events) if what == "arrives"],
        dtype=float,
    )
    speeds = [
        [best_speed(job, config[number]) if config.get(number) else 0.0 for _, config in columns]
        for number, job in enumerate(jobs)
    ]
    work, arrival_s = [-job.work for job in jobs], [job.arrival_s for job in jobs]
    solution = linprog(cost, A_ub=-np.array(speeds), b_ub=work, A_eq=arrivals, b_eq=arrival_s, method="highs")
    return float(solution.fun) if solution.fun is not None else math.inf


def _configurations(jobs: Sequence[Job], cluster: Cluster, active: Sequence[int]) -> Iterator[dict[int, int]]:
    """All combinations of sizes of the active jobs, including 0, that fit together."""
    for sizes in product(*((0, *sizes_of(jobs[job], cluster)) for job in active)):
        if sum(sizes) <= cluster.gpus:
            yield dict(zip(active, sizes, strict=True))


@st.composite
def small(draw: st.DrawFn) -> list[Job]:
    told = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 20), st.integers(0, 10)), min_size=1, max_size=3))
    return [
        Job(f"j{number}", float(at), 1, float(work), Amdahl(share / 10, SIZES))
        for number, (at, work, share) in enumerate(sorted(told))
    ]


def test_alone_and_side_by_side_by_hand() -> None:
    cluster = Cluster(4)
    alone = [Job("a", 3.0, 1, 8.0, Amdahl(1.0, SIZES))]
    assert optimum_s(alone, cluster) == lower_bound_s(alone, cluster) == 2.0
    # perfect speed-up: one after the other on all GPUs, the short one first: 1 and 1 + 2
    two = [Job("a", 0.0, 1, 8.0, Amdahl(1.0, SIZES)), Job("b", 0.0, 1, 4.0, Amdahl(1.0, SIZES))]
    assert optimum_s(two, cluster) == pytest.approx(2.0)
    assert lower_bound_s(two, cluster) == pytest.approx(2.0)
    # no speed-up: side by side
    side = [Job("a", 0.0, 1, 8.0, Amdahl(0.0, SIZES)), Job("b", 0.0, 1, 4.0, Amdahl(0.0, SIZES))]
    assert optimum_s(side, cluster) == pytest.approx(6.0)
    assert lower_bound_s(side, cluster) == pytest.approx(6.0)


def test_half_of_a_best_time_follows_its_mean_time_of_work() -> None:
    """Three jobs of 2 s, one GPU each, on two: mean times of work 0.5, 1.5 and 2.5 s, and 1 s more each."""
    three = [Job(name, 0.0, 1, 2.0, Amdahl(0.0)) for name in "abc"]
    assert lower_bound_s(three, Cluster(2)) == pytest.approx((0.5 + 1.5 + 2.5 + 3 * 1) / 3)


@given(small())
@settings.get_profile("fewest")
def test_bound_optimum_and_policies_are_in_order(jobs: list[Job]) -> None:
    cluster = Cluster(4)
    best_s = optimum_s(jobs, cluster)
    assert lower_bound_s(jobs, cluster) <= best_s * (1 + 1e-7)
    for policy in (Doubling(), Optimus(), EqualShare()):
        assert best_s <= metrics(run(jobs, policy, 4)).jct_mean_s * (1 + 1e-7)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=20).map(sorted))
def test_on_one_gpu_the_bound_is_shortest_remaining_time_first(told: list[tuple[int, int]]) -> None:
    jobs = rigid(*((at, 1, long) for at, long in told))
    assert lower_bound_s(jobs, Cluster(1)) == pytest.approx(metrics(run(jobs, Srtf(), 1)).jct_mean_s, rel=1e-9)


def test_what_a_job_asks_for_is_among_its_sizes() -> None:
    """It may have 1 and 2, and a rigid policy gives it the 4 that it asks for: 5 s instead of 10."""
    jobs = [Job("a", 0.0, 4, 20.0, Amdahl(1.0, SIZES), most=2)]
    assert metrics(run(jobs, Srtf(), 4)).jct_mean_s == 5.0
    assert optimum_s(jobs, Cluster(4)) == lower_bound_s(jobs, Cluster(4)) == 5.0
    assert lower_bound_s(jobs, Cluster(2)) == 10.0


def test_on_hosts_the_bound_is_that_of_the_fastest_placement() -> None:
    table = HostTable(((2, 1.0),), gpus_per_host=2, by_shape={(1, 1): HostSpeed(2.0, 0.0)})
    jobs = on_hosts([Job("a", 0.0, 2, 20.0, table)], 2)
    assert lower_bound_s(jobs, Cluster(4)) == optimum_s(jobs, Cluster(4)) == 10.0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 20)), min_size=1, max_size=12))
def test_no_rigid_policy_is_below_the_bound(told: list[tuple[int, int, int]]) -> None:
    jobs = rigid(*sorted(told))
    least_s = bound_s(jobs, Cluster(4))
    assert least_s is not None
    for policy in (Fifo(), Srtf()):
        assert metrics(run(jobs, policy, 4)).jct_mean_s >= least_s * (1 - 1e-7)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no jobs"):
        lower_bound_s([], Cluster(1))
