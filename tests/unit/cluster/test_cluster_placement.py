"""On which hosts jobs are: by hand, and what holds of any placement."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_cases import TRACES, Amdahl, Scripted, ends, rigid
from hypothesis import assume, given
from hypothesis import strategies as st

from xbench.cluster.jobs import Job, on_hosts
from xbench.cluster.metrics import Simulated, Span
from xbench.cluster.placement import PLACEMENTS, Hosts, Layout, parse_placements
from xbench.cluster.policies import POLICIES, facts_of, parse_policy
from xbench.cluster.policies.fifo import Fifo
from xbench.cluster.policies.ordered import Srtf
from xbench.cluster.policy import Active, Cluster, Grant, Placement, Policy
from xbench.cluster.simulator import simulate
from xbench.cluster.speeds import RingSpeed
from xbench.errors import SpecError


def on(
    jobs: list[Job], policy: Policy, rule: Placement, hosts: int, each: int, across: float | None = 0.5,
    restart_s: float = 0.0,
) -> Simulated:  # fmt: skip
    """Simulated on so many hosts of `each` GPUs."""
    cluster = Cluster(hosts * each, restart_s, each, rule)
    return simulate(on_hosts(jobs, each, across), policy, cluster, moments=True, spans=True)


def where(simulated: Simulated) -> dict[str, tuple[tuple[int, int], ...]]:
    return {span.job: tuple(sorted(span.hosts)) for span in simulated.spans}


@pytest.mark.parametrize(
    ("free", "gpus", "packed", "spread"),
    [
        ([4, 4], 4, {0: 4}, {0: 2, 1: 2}),
        ([4, 4], 5, {0: 4, 1: 1}, {0: 3, 1: 2}),
        ([4, 2, 3], 2, {1: 2}, {0: 1, 2: 1}),  # the host that it fills; the hosts with the most free
        ([4, 2, 3], 5, {0: 4, 1: 1}, {0: 2, 1: 1, 2: 2}),  # the rest fits host 1 best
        ([1, 1, 1], 2, {0: 1, 1: 1}, {0: 1, 1: 1}),
        ([0, 4, 1], 3, {1: 3}, {1: 2, 2: 1}),  # as evenly as host 2 allows
        ([0, 4, 1], 5, {1: 4, 2: 1}, {1: 4, 2: 1}),
        ([3, 3, 4], 7, {0: 3, 2: 4}, {0: 2, 1: 2, 2: 3}),
    ],
)
def test_what_is_free_decides(free: list[int], gpus: int, packed: dict[int, int], spread: dict[int, int]) -> None:
    for rule, expected in (("packed", packed), ("spread", spread)):
        assert dict(_with_free(free, 4, rule).take(gpus)) == expected  # type: ignore[arg-type]


def _with_free(free: list[int], each: int, rule: Placement) -> Hosts:
    hosts = Hosts(len(free), each, "packed")
    for host, left in enumerate(free):
        hosts._set(host, left)
    hosts.rule = rule
    return hosts


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_a_placement_is_on_the_fewest_hosts_or_as_even_as_can_be(free: list[int], data: st.DataObject) -> None:
    assume(sum(free))
    gpus = data.draw(st.integers(1, sum(free)))
    packed = dict(_with_free(free, 4, "packed").take(gpus))
    largest = sorted(free, reverse=True)
    assert len(packed) == min(count for count in range(len(free) + 1) if sum(largest[:count]) >= gpus)
    spread = dict(_with_free(free, 4, "spread").take(gpus))
    assert len(spread) == min(gpus, sum(left > 0 for left in free))
    for host, left in enumerate(free):
        if spread.get(host, 0) < left:  # it could have had more
            assert max(spread.values(), default=0) <= spread.get(host, 0) + 1
    for placed in (packed, spread):
        assert sum(placed.values()) == gpus
        assert all(0 < count <= free[host] for host, count in placed.items())


@given(st.lists(st.integers(-8, 8), max_size=40), st.sampled_from(PLACEMENTS))
def test_taking_and_giving_back_keep_count(steps: list[int], rule: Placement) -> None:
    hosts, held = Hosts(3, 4, rule), []
    for step in steps:
        if step > 0 and step <= sum(hosts.free):
            held.append(hosts.take(step))
        elif step <= 0 and held:
            hosts.give_back(held.pop(step % len(held)))
        assert [4 - sum(dict(one).get(host, 0) for one in held) for host in range(3)] == hosts.free
    with pytest.raises(RuntimeError, match="are free"):
        hosts.take(13)


def test_gpus_that_lie_scattered_cost_who_comes_last() -> None:
    """Two hosts of 4: a and b have 3 of one each, and c has what is left, at half its speed, to its end."""
    jobs = rigid((0, 3, 10), (0, 3, 10), (0, 2, 10))
    simulated = on(jobs, Fifo(), "packed", 2, 4)
    assert where(simulated) == {"a": ((0, 3),), "b": ((1, 3),), "c": ((0, 1), (1, 1))}
    assert ends(simulated) == {"a": 10.0, "b": 10.0, "c": 20.0}
    assert (simulated.across_gpu_s, simulated.lost_gpu_s) == (40.0, 20.0)
    spread = on(jobs, Fifo(), "spread", 2, 4)
    assert where(spread) == {"a": ((0, 2), (1, 1)), "b": ((0, 1), (1, 2)), "c": ((0, 1), (1, 1))}
    assert set(ends(spread).values()) == {20.0}


def test_what_is_granted_at_one_instant_is_placed_largest_first() -> None:
    simulated = on(rigid((0, 2, 10), (0, 2, 10), (0, 4, 10)), Fifo(), "packed", 2, 4)
    assert where(simulated) == {"a": ((1, 2),), "b": ((1, 2),), "c": ((0, 4),)}


RING = RingSpeed((1.0, 0.0, 0.0, 0.0), 2.0, 2.0, across=(0.0, 1.0))
"""A step on 2 GPUs takes 1 s within a host, and 1 s more for each ring on its slowest link."""


@pytest.mark.parametrize("hosts", [2, 3])
def test_rings_share_the_link_of_a_host_while_they_meet(hosts: int) -> None:
    """On three hosts b meets a on one of a's two hosts alone: as slow as where they meet on both."""
    jobs = [Job("a", 0.0, 2, 12.0, RING), Job("b", 6.0, 2, 4.0, RING)]
    assert ends(on(jobs, Fifo(), "packed", hosts, 2, None)) == {"a": 12.0, "b": 10.0}
    spread = on(jobs, Fifo(), "spread", hosts, 2, None)
    # a alone: 3 steps of 2 s; with b, 3 s each: b ends at 6 + 12, a has 5 steps of 2 s left then
    assert ends(spread) == {"a": pytest.approx(28.0), "b": pytest.approx(18.0)}
    assert [job.restarts for job in spread.finished] == [0, 0]
    # on the fewest hosts: 12 and 4 s of 2 GPUs, of the 28 and 12 s that they had
    assert spread.lost_gpu_s == pytest.approx(2 * (28 + 12) - 2 * (12 + 4))


def test_a_restart_is_not_lost_to_placement() -> None:
    script = {0.0: {"a": Grant(2)}, 4.0: {"a": Grant(0)}, 6.0: {"a": Grant(2)}}
    simulated = on(rigid((0, 2, 10)), Scripted(script), "spread", 2, 2, restart_s=5.0)
    # 2 of 10 done at 4; 5 s of restart, and 16 s for the rest
    assert ends(simulated) == {"a": 27.0}
    assert simulated.lost_gpu_s == pytest.approx(2 * (2 + 8))
    assert simulated.finished[0].restarting_gpu_s == 10.0


def test_a_gang_is_placed_once() -> None:
    script = {
        0.0: {"a": Grant(2)},
        1.0: {"a": Grant(2, 0.5, 7), "b": Grant(2, 0.5, 7), "c": Grant(2)},
        5.0: {"b": Grant(0), "a": Grant(2), "d": Grant(2)},
        6.0: {"b": Grant(2, 0.5, 8), "d": Grant(2, 0.5, 8)},
    }
    jobs = rigid((0, 2, 9), (0, 2, 9), (0, 2, 4), (0, 2, 9))
    simulated = on(jobs, Scripted(script), "packed", 2, 2)
    assert [(span.job, span.from_s, span.to_s, span.hosts) for span in simulated.spans] == [
        ("a", 0.0, 1.0, ((0, 2),)),
        ("c", 1.0, 5.0, ((1, 2),)),
        ("b", 1.0, 5.0, ((0, 2),)),
        ("a", 1.0, 5.0, ((0, 2),)),
        ("d", 5.0, 6.0, ((1, 2),)),
        ("a", 5.0, 11.0, ((0, 2),)),
        ("b", 6.0, 20.0, ((1, 2),)),
        ("d", 6.0, 22.0, ((1, 2),)),
    ]


def actives(*gpus: int) -> list[Active]:
    """Jobs with speeds on hosts of 2, each holding nothing."""
    jobs = on_hosts(rigid(*((0, wide, 9) for wide in gpus)), 2, 0.5)
    return [Active(job, number) for number, job in enumerate(jobs)]


def grant(layout: Layout, *granted: tuple[Active, int, int | None]) -> dict[str, float]:
    for job, gpus, gang in granted:
        job.hold(0.0, gpus, 1.0, gang, 0.0)
    return {job.job.name: speed for job, speed in layout.update([job for job, _, _ in granted])}


def test_a_gang_grows_and_shrinks_at_its_end() -> None:
    wide, narrow, other = actives(3, 2, 1)
    layout = Layout(Cluster(6, gpus_per_host=2))
    grant(layout, (narrow, 2, 1))
    assert grant(layout, (wide, 3, 1), (other, 1, None)) == {"a": 1.0, "c": 1.0}
    assert (layout.at(narrow), layout.at(wide), layout.at(other)) == (((0, 2),), ((0, 2), (1, 1)), ((1, 1),))
    assert grant(layout, (wide, 0, None)) == {}
    assert layout.at(wide) == ()
    assert layout.at(narrow) == ((0, 2),)
    assert layout.hosts.free == [0, 1, 2]
    grant(layout, (narrow, 0, None), (other, 0, None))
    assert layout.hosts.free == [2, 2, 2]


def test_two_jobs_that_move_together_are_where_the_first_was() -> None:
    one, two = actives(2, 2)
    layout = Layout(Cluster(4, gpus_per_host=2))
    grant(layout, (one, 2, None), (two, 2, None))
    assert (layout.at(one), layout.at(two)) == (((0, 2),), ((1, 2),))
    grant(layout, (one, 2, 5), (two, 2, 5))
    assert layout.at(one) == layout.at(two) == ((0, 2),)
    assert layout.hosts.free == [0, 2]


def check_hosts(spans: list[Span], hosts: int, each: int) -> None:
    """No host has more jobs than GPUs, if jobs share none."""
    for span in spans:
        assert sum(count for _, count in span.hosts) == span.gpus
        at_once = [dict(other.hosts) for other in spans if other.from_s <= span.from_s < other.to_s]
        assert all(sum(placed.get(host, 0) for placed in at_once) <= each for host in range(hosts))


@pytest.mark.parametrize("rule", PLACEMENTS)
@given(trace=TRACES, hosts=st.integers(2, 4), each=st.integers(1, 3))
def test_no_host_has_more_jobs_than_gpus_and_all_work_is_done(
    rule: Placement, trace: list[tuple[int, int, int]], hosts: int, each: int
) -> None:
    jobs = rigid(*((at, min(wide, hosts * each), long) for at, wide, long in trace))
    simulated = on(jobs, Srtf(), rule, hosts, each, restart_s=1.0)
    check_hosts(simulated.spans, hosts, each)
    assert len(simulated.finished) == len(jobs)
    useful_s = sum(job.useful_gpu_s for job in simulated.finished)
    assert useful_s - simulated.lost_gpu_s == pytest.approx(sum(job.service_s for job in jobs))


def jobs_for(policy: str, told: list[tuple[float, int, float]]) -> list[Job]:
    """With what that policy has to know of them."""
    jobs = rigid(*told)
    if facts_of(policy).get("speeds"):
        return [Job(job.name, job.arrival_s, job.gpus, job.work, Amdahl(0.9)) for job in jobs]
    if facts_of(policy).get("steps"):
        return [replace(job, facts={"step_s": 0.2, "exposed": 0.1 * (1 + job.gpus)}) for job in jobs]
    return jobs


@pytest.mark.parametrize("rule", PLACEMENTS)
@pytest.mark.parametrize("name", sorted(set(POLICIES.names()) - {"alternate"}))
def test_links_that_cost_nothing_change_nothing(name: str, rule: Placement) -> None:
    told = [(0, 2, 9.0), (0, 3, 5.5), (1, 1, 7.25), (2, 4, 3.0), (2.5, 2, 11.0), (8, 1, 2.0)]
    jobs = jobs_for(name, told)
    plain = simulate(jobs, parse_policy(name), Cluster(6, 2.0))
    placed = simulate(on_hosts(jobs, 2, 1.0), parse_policy(name), Cluster(6, 2.0, 2, rule))
    assert ends(placed) == pytest.approx(ends(plain))


@pytest.mark.parametrize("rule", PLACEMENTS)
@pytest.mark.parametrize("name", sorted(set(POLICIES.names()) - {"alternate"}))
def test_every_policy_goes_on_where_jobs_take_longer_than_it_thought(name: str, rule: Placement) -> None:
    told = [(number, 1 + number % 4, 3.0 + number * 5 % 7) for number in range(14)]
    jobs = jobs_for(name, told)
    simulated = on(jobs, parse_policy(name), rule, 3, 2, 0.25, restart_s=1.0)
    assert len(simulated.finished) == len(jobs)
    if rule == "spread" and not facts_of(name).get("speeds"):
        assert simulated.lost_gpu_s > 0
    if not simulated.shared:
        check_hosts(simulated.spans, 3, 2)


@pytest.mark.parametrize(
    ("cluster", "said", "hint"),
    [
        (Cluster(30, gpus_per_host=8), "30 GPUs are not a whole number of hosts of 8", "take 24 or 32 GPUs"),
        (Cluster(4, gpus_per_host=8), "4 GPUs are not a whole number of hosts of 8", "take 8 GPUs"),
        (Cluster(4, gpus_per_host=0), "hosts of 0 GPUs", "at least 1"),
        (Cluster(4, gpus_per_host=2), "job 'a' has a speed without data on hosts", "on_hosts"),
    ],
)
def test_hosts_that_cannot_be_are_refused(cluster: Cluster, said: str, hint: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        simulate(rigid((0, 1, 1)), Fifo(), cluster)
    assert hint in (caught.value.hint or "")


def test_placements_are_read() -> None:
    assert parse_placements("packed") == ("packed",)
    assert parse_placements("spread, packed") == ("spread", "packed")
    for text, said in (("pakced", "unknown placement 'pakced'"), ("packed,", "has an empty place"),
                       ("packed,packed", "'packed' stands twice")):  # fmt: skip
        with pytest.raises(SpecError, match=said):
            parse_placements(text)
