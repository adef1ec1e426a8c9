"""Simulations end: no policy restarts jobs for ever, and one that hardly gets on is refused in a sentence."""

from __future__ import annotations

from itertools import pairwise

import pytest
from cluster_cases import Amdahl, ends, every_second, rigid, run
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.cluster.jobs import Job
from xbench.cluster.metrics import Simulated
from xbench.cluster.policies import POLICIES, parse_policy
from xbench.cluster.policies.attained import Las
from xbench.cluster.policy import Cluster, tolerance_s
from xbench.cluster.simulator import simulate
from xbench.errors import SpecError

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


def restarts(simulated: Simulated) -> int:
    return sum(job.restarts for job in simulated.finished)


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
    assert restarts(simulated) <= most_restarts(jobs, policy)
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
