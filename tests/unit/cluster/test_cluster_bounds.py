"""The lower bound stays below the exact optimum of a few jobs, and doubling comes near it."""

import numpy as np
import pytest
from cluster_cases import Amdahl, rigid, run
from exact_optimum import optimum_s
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.cluster.bounds import bound_s, lower_bound_s
from xbench.cluster.jobs import Job, on_hosts
from xbench.cluster.metrics import metrics
from xbench.cluster.policies.doubling import Doubling
from xbench.cluster.policies.elastic import EqualShare, Optimus
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policies.ordered import Srtf
from xbench.cluster.policy import Cluster
from xbench.cluster.speeds import HostSpeed, HostTable

SIZES = (1, 2, 4)


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
    assert lower_bound_s(jobs, Cluster(1)) <= metrics(run(jobs, Srtf(), 1)).jct_mean_s * (1 + 1e-9)
    assert lower_bound_s(jobs, Cluster(1)) >= metrics(run(jobs, Srtf(), 1)).jct_mean_s * (1 - 1e-9)


def test_doubling_is_near_the_optimum() -> None:
    """All jobs at once: the best schedule, with any change at any time for free, is 5.7 % below it on average."""
    random = np.random.default_rng(7)
    above = []
    for _ in range(24):
        jobs = [
            Job(
                f"j{number}",
                0.0,
                1,
                float(random.lognormal(3, 1)),
                Amdahl(float(random.uniform(0.6, 0.98)), (1, 2, 4, 8)),
            )
            for number in range(3)
        ]
        above.append(metrics(run(jobs, Doubling(), 8)).jct_mean_s / optimum_s(jobs, Cluster(8)) - 1)
    assert min(above) >= -1e-7
    assert np.mean(above) <= 0.08


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
    with pytest.raises(ValueError, match="0 jobs"):
        optimum_s([], Cluster(1))
