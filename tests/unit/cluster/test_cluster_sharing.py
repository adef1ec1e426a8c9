"""Policies that let jobs share GPUs: by hand, and what holds for all of them."""

import itertools
from typing import Any

import pytest
from cluster_cases import ends, name, rigid, run
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.jobs import Job, RigidSpeed, on_hosts
from xbench.cluster.policies import facts_of, parse_policy
from xbench.cluster.policies.sharing import ORDERS, CrossoverPairs, Jigsaw, Sharing
from xbench.cluster.policy import Active, Change, Cluster
from xbench.cluster.simulator import simulate
from xbench.cluster.speeds import RingSpeed, TableSpeed, forward_share, step_times
from xbench.errors import SpecError

GIB = 1024**3


def job(
    named: str, arrival_s: float, gpus: int, compute_s: float, exposed_s: float, duration_s: float, **facts: float
) -> Job:
    step_s = compute_s + exposed_s
    given = {"step_s": step_s, "exposed": exposed_s / step_s, **facts}
    return Job(named, arrival_s, gpus, duration_s, RigidSpeed(gpus), facts=given)


EQUAL = (1, 1)
"""A step that computes for as long as it communicates; the best partner of an equal one."""


@pytest.mark.parametrize(
    ("policy", "gpus", "restart_s", "jobs", "expected", "restarted"),
    [
        # C = M = 1: a round of both takes 2 s, as one step alone does
        ("crossover-pairs:order=fifo", 4, 0, [("a", 0, 4, *EQUAL, 200), ("b", 0, 4, *EQUAL, 200)],
         {"a": 200, "b": 200}, ""),
        # C = 1, M = 2 beside C = 2, M = 0: the round of both is 3 s, and the first loses nothing
        ("crossover-pairs:order=fifo", 2, 0, [("a", 0, 2, 1, 2, 300), ("b", 0, 2, 2, 0, 100)],
         {"b": 150, "a": 300}, ""),
        # b inherits the GPUs that it is on: the order gives them to it when the owner is done, without a restart
        ("crossover-pairs:order=fifo", 4, 10, [("a", 0, 4, 2, 1, 150), ("b", 0, 4, 2, 1, 300)],
         {"a": 200, "b": 350}, ""),
        # c shares with a, with which it gains 0.5, and not with b (0.2). It moves to b's GPUs at 150, and restarts
        ("crossover-pairs:order=fifo", 8, 10,
         [("a", 0, 4, 2, 1, 300), ("b", 0, 4, 3, 0, 150), ("c", 0, 4, 2, 1, 300)],
         {"b": 150, "a": 150 + 187.5, "c": 150 + 10 + 187.5}, "c"),
        # shortest first: b shares with a, and owns after it; d shares with b, and from 21 on with c, at 2/3 each
        ("crossover-pairs:order=sjf", 2, 5,
         [("a", 0, 2, *EQUAL, 10), ("b", 1, 2, *EQUAL, 20), ("c", 1, 2, 2, 0, 30), ("d", 1, 2, *EQUAL, 90)],
         {"a": 10, "b": 21, "c": 66, "d": 66 + 90 - 11 - 30}, ""),
        # a and b share until 100. Then c and b own an allocation each, b where it is
        ("crossover-pairs:order=sjf,gain=0.5", 4, 10,
         [("a", 0, 2, *EQUAL, 100), ("x", 0, 2, 5, 0, 100), ("b", 1, 2, *EQUAL, 400), ("c", 1, 2, 5, 0, 50)],
         {"a": 100, "x": 100, "c": 150, "b": 401}, ""),
        # as before without x: c owns the only GPUs after a; c and b gain nothing together, so b is stopped
        ("crossover-pairs:order=sjf,gain=0.5", 2, 10,
         [("a", 0, 2, *EQUAL, 100), ("b", 1, 2, *EQUAL, 400), ("c", 1, 2, 5, 0, 50)],
         {"a": 100, "c": 150, "b": 150 + 10 + 301}, "b"),
        # shortest remaining first, preemptive: b comes at 10 and owns, a stays where it is as its guest
        ("crossover-pairs:order=srtf", 2, 5, [("a", 0, 2, *EQUAL, 100), ("b", 10, 2, *EQUAL, 20)],
         {"b": 30, "a": 100}, ""),
        # hardly any communication: below the ratio, no pair
        ("crossover-pairs:order=fifo,gain=0.01", 2, 0, [("a", 0, 2, 1, 0.05, 100), ("b", 0, 2, 1, 0.05, 100)],
         {"a": 100, "b": 200}, ""),
        # one GPU has nothing to communicate
        ("crossover-pairs:order=fifo", 1, 0, [("a", 0, 1, *EQUAL, 100), ("b", 0, 1, *EQUAL, 100)],
         {"a": 100, "b": 200}, ""),
        ("jigsaw:order=fifo", 1, 0, [("a", 0, 1, *EQUAL, 100), ("b", 0, 1, *EQUAL, 100)], {"a": 100, "b": 200}, ""),
        # b waits for all GPUs, behind a, which shares with c and ends at 399 and not 300: d, of 350 s, delays no job
        ("crossover-pairs:order=fifo-backfill", 3, 0,
         [("a", 0, 2, 2, 1, 300), ("b", 1, 3, 1, 0, 10), ("c", 2, 2, 2, 1, 300), ("d", 3, 1, 1, 0, 350)],
         {"a": 2 + 298 / 0.75, "b": 12 + 298 / 0.75, "c": 14 + 298 / 0.75, "d": 353}, "c"),
        # of equals the first shares
        ("crossover-pairs:order=fifo", 2, 0, [(named, 0, 2, *EQUAL, 100) for named in "abcde"],
         {"a": 100, "b": 100, "c": 200, "d": 200, "e": 300}, ""),
        # nothing to send: a round takes 2F + (k+1)/k·B, 5/3 s for k = 2 and 3/2 s for k = 4, for two steps of 1 s
        ("jigsaw:k=2,order=fifo", 4, 0, [("a", 0, 4, 1, 0, 300), ("b", 0, 4, 1, 0, 300)], {"a": 500, "b": 500}, ""),
        ("jigsaw:k=4,order=fifo", 4, 0, [("a", 0, 4, 1, 0, 300), ("b", 0, 4, 1, 0, 300)], {"a": 450, "b": 450}, ""),
        # no more levels than workers
        ("jigsaw:k=8,order=fifo", 2, 0, [("a", 0, 2, 1, 0, 300), ("b", 0, 2, 1, 0, 300)], {"a": 500, "b": 500}, ""),
    ],
)  # fmt: skip
def test_by_hand(
    policy: str, gpus: int, restart_s: float, jobs: list[Any], expected: dict[str, float], restarted: str
) -> None:
    simulated = run([job(*one) for one in jobs], parse_policy(policy), gpus, restart_s=restart_s)
    assert ends(simulated) == pytest.approx(expected)
    assert [(one.job.name, one.restarts) for one in simulated.finished if one.restarts] == [(n, 1) for n in restarted]


@pytest.mark.parametrize(
    ("policy", "step", "facts", "end_s"),
    [
        ("crossover-pairs:memory=17GiB", EQUAL, {"memory_bytes": 8 * GIB}, 100),
        ("crossover-pairs:memory=15GiB", EQUAL, {"memory_bytes": 8 * GIB}, 200),
        ("jigsaw:memory=15GiB", EQUAL, {"memory_bytes": 8 * GIB}, 200),
        ("jigsaw:k=2", (1, 0), {"forward_share": 0.0}, 150),  # all of it backward: 3/2 s
        ("jigsaw:k=2", (1, 0), {"forward_share": 0.9}, 200),  # nearly none: the two would hardly gain
    ],
)
def test_facts_decide_who_shares(policy: str, step: tuple[int, int], facts: dict[str, float], end_s: float) -> None:
    jobs = [job(named, 0, 2, *step, 100, **facts) for named in "ab"]
    assert ends(run(jobs, parse_policy(f"{policy},order=fifo"), 2))["b"] == pytest.approx(end_s)


@pytest.mark.parametrize("text", ["crossover-pairs", "jigsaw"])
def test_a_trace_that_does_not_know_steps_is_refused(text: str) -> None:
    assert facts_of(text).get("steps")
    assert not facts_of("srtf").get("steps")
    with pytest.raises(SpecError, match=r"seconds that a step computes .* of job 'a' and 1 other") as caught:
        run(rigid((0, 2, 5), (0, 2, 5)), parse_policy(text), 2)
    assert "exposed and step_s" in (caught.value.hint or "")
    with pytest.raises(SpecError, match=r"bytes of memory that a job needs of a GPU.* of job 'a'(\n|$)"):
        run([job("a", 0, 2, 1, 1, 5)], parse_policy(f"{text}:memory=16GiB"), 2)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"exposed": 1.0}, "exposed = 1 is not a share"),
        ({"step_s": 0.0}, "step_s = 0 is not above zero"),
        ({"forward_share": 1.5}, "forward_share = 1.5"),
        ({"memory_bytes": -1.0}, "memory_bytes = -1"),
        ({"exposed": float("nan")}, "exposed = nan is not a number"),
    ],
)
def test_facts_that_are_none_are_refused(facts: dict[str, float], said: str) -> None:
    with pytest.raises(SpecError, match=f"job 'a': .*{said}"):
        run([job("a", 0, 2, 1, 1, 5, **facts)], Jigsaw(), 2)


def test_what_a_step_consists_of() -> None:
    ring = RingSpeed((0.01, 0.001, 1e-9, 0.02), 100, 8e8)
    known = step_times(Job("a", 0, 4, 100, ring))
    assert known is not None
    # 0.01·100/4 + 0.02 s computed; 0.001·3 + 1e-9·3/4·8e8 s sent
    assert known == pytest.approx((0.27, 0.603))
    assert step_times(Job("a", 0, 1, 100, ring)) == pytest.approx((1.02, 0.0))
    samples = Job("a", 0, 2, 9, TableSpeed.of({2: 50}), facts={"batch_size": 100.0, "exposed": 0.25})
    assert step_times(samples) == pytest.approx((1.5, 0.5))
    assert step_times(Job("a", 0, 2, 9, RigidSpeed(2), facts={"exposed": 0.25})) is None
    assert step_times(Job("a", 0, 2, 9, RigidSpeed(2), facts={"step_s": 0.25})) is None
    assert step_times(Job("a", 0, 1, 9, RigidSpeed(1), facts={"step_s": 0.25})) == (0.25, 0.0)
    assert forward_share(samples) == pytest.approx(1 / 3)


def test_a_ring_s_step_is_that_on_the_fewest_hosts() -> None:
    """T(4) = 8/4 + 3·1/4 + 1 = 3.75 within a host; over two, a byte takes twice as long: 4.5, and 1.5 of it exposed."""
    ring = RingSpeed((1.0, 0.0, 1.0, 1.0), 8, 1, across=(0.0, 2.0))
    within, over = (on_hosts([Job("a", 0, 4, 1, ring)], size)[0] for size in (4, 2))
    assert step_times(within) == pytest.approx((3.0, 0.75))
    assert step_times(over) == pytest.approx((3.0, 1.5))
    assert step_times(on_hosts([job("b", 0, 2, 3, 1, 8)], 4, 0.8)[0]) == pytest.approx((3, 1))


class Watched:
    """A policy whose state is looked at after every decision."""

    def __init__(self, policy: Sharing) -> None:
        self.policy = policy
        self.shared = 0

    def __getattr__(self, key: str) -> object:
        return getattr(self.policy, key)

    def decide(self, now_s: float) -> list[Change]:
        changes = list(self.policy.decide(now_s))
        places = list(self.policy._allocations.values())
        assert sum(place.gpus for place in places) <= self.policy.cluster.gpus
        members = [member.number for place in places for member in place.members]
        assert len(members) == len(set(members))
        granted: dict[int, tuple[Active, int]] = {}
        for active, grant in changes:
            granted[active.number] = (active, grant.gpus)
        assert all(bool(gpus) == (number in members) for number, (_, gpus) in granted.items())
        for place in places:
            assert 1 <= len(place.members) <= 2
            assert {member.job.gpus for member in place.members} == {place.gpus}
            if len(place.members) > 1:
                self.shared += 1
                rates = self.policy.rates(place.gpus, place.member_kinds)
                assert all(0 < rate <= 1 for rate in rates)
                assert sum(rates) >= 1 + self.policy.gain - 1e-9
                if self.policy.memory is not None:
                    assert sum(float(one.job.facts["memory_bytes"]) for one in place.members) <= self.policy.memory
        return changes


@st.composite
def traces(draw: st.DrawFn) -> list[Job]:
    count = draw(st.integers(2, 14))
    times = st.sampled_from([(1.0, 1.0), (2.0, 0.0), (1.0, 0.5), (4.0, 1.0), (1.0, 3.0)])
    arrivals = sorted(draw(st.lists(st.integers(0, 60), min_size=count, max_size=count)))
    made = []
    for number, at_s in enumerate(arrivals):
        compute_s, exposed_s = draw(times)
        made.append(
            job(
                name(number), at_s, draw(st.sampled_from([1, 2, 2, 4])), compute_s, exposed_s, draw(st.integers(1, 80)),
                memory_bytes=draw(st.integers(1, 10)),
            )
        )  # fmt: skip
    return made


@given(
    traces(),
    st.sampled_from(sorted(ORDERS)),
    st.booleans(),
    st.sampled_from([None, 12]),
    st.sampled_from([0.0, 7.0]),
)
def test_whatever_comes(
    jobs: list[Job], order: str, partial: bool, memory: int | None, restart_s: float
) -> None:  # fmt: skip
    policy: Sharing = Jigsaw(2, order, 0.02, memory) if partial else CrossoverPairs(order, memory=memory)
    watched = Watched(policy)
    simulated = simulate(jobs, watched, Cluster(4, restart_s))  # type: ignore[arg-type]
    assert len(simulated.finished) == len(jobs)
    assert not policy._allocation_of
    assert not policy._views
    assert not any(policy._open.values())
    assert not any(policy._waiting.values())
    useful_s = sum(one.useful_gpu_s for one in simulated.finished)
    assert useful_s == pytest.approx(sum(one.service_s for one in jobs))
    for one in simulated.finished:
        assert one.finished_s >= one.job.arrival_s + one.job.duration_s - 1e-6


@given(st.lists(st.sampled_from([(1.0, 1.0), (2.0, 0.0), (1.0, 2.0), (2.0, 0.25)]), min_size=4, max_size=7))
def test_no_other_matching_gains_more(kinds: list[tuple[float, float]]) -> None:
    """All come at once; the first three own the GPUs, the others wait."""
    policy = CrossoverPairs("fifo")
    jobs = [job(name(number), 0, 2, *kind, 100) for number, kind in enumerate(kinds)]
    policy.begin(Cluster(6), jobs)
    active = [Active(one, number) for number, one in enumerate(jobs)]
    for one in active:
        policy.arrived(one, 0.0)
    found = sum(grant.rate for _, grant in policy.decide(0.0))
    owners, guests = active[:3], active[3:]
    best = 0.0
    for riding in itertools.permutations([*guests, None, None, None], 3):
        total = 0.0
        for owner, guest in zip(owners, riding, strict=True):
            pair = (owner,) if guest is None else (owner, guest)
            rates = policy.rates(2, tuple(sorted(policy._kinds[one.number] for one in pair)))
            total += 1.0 if rates is None else sum(rates)
        best = max(best, total)
    assert found == pytest.approx(best)
