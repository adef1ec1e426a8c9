"""Policies that let jobs share GPUs: by hand, and what holds for all of them."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from cluster_cases import ends, name, rigid, run
from hypothesis import given
from hypothesis import strategies as st
from sample_traces import write

from xbench.cluster.hosts import on_hosts
from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.policies.crossover_pairs import CrossoverPairs
from xbench.cluster.policies.jigsaw import Jigsaw
from xbench.cluster.policies.sharing import ORDERS, Sharing
from xbench.cluster.policy import Active, Change, Cluster
from xbench.cluster.registry import needs_steps, parse_policy
from xbench.cluster.simulated import Finished
from xbench.cluster.simulator import simulate
from xbench.cluster.speeds import RingSpeed, TableSpeed
from xbench.cluster.step_times import forward_share, memory_bytes, step_times
from xbench.cluster.traces.plain import load_plain
from xbench.errors import SpecError

GIB = 1024**3


def job(
    named: str, arrival_s: float, gpus: int, compute_s: float, exposed_s: float, duration_s: float, **facts: float
) -> Job:
    step_s = compute_s + exposed_s
    given = {"step_s": step_s, "exposed": exposed_s / step_s, **facts}
    return Job(named, arrival_s, gpus, duration_s, RigidSpeed(gpus), facts=given)


def of(finished: Iterable[Finished], named: str) -> Finished:
    return next(one for one in finished if one.job.name == named)


def test_two_equal_jobs_that_wait_as_long_as_they_compute_lose_nothing() -> None:
    """C = M = 1: a round of both takes 2 s, as one step alone does."""
    jobs = [job("a", 0, 4, 1, 1, 200), job("b", 0, 4, 1, 1, 200)]
    assert ends(run(jobs, CrossoverPairs("fifo"), 4)) == pytest.approx({"a": 200, "b": 200})
    assert ends(run(jobs, parse_policy("fifo"), 4)) == {"a": 200, "b": 400}


def test_rates_are_steps_in_the_pair_over_steps_alone() -> None:
    """C = 2, M = 1: a round takes max(2·2, 3) = 4 s for 3 s alone; b is done at 150 / 0.75."""
    jobs = [job("a", 0, 4, 2, 1, 300), job("b", 0, 4, 2, 1, 150)]
    simulated = run(jobs, CrossoverPairs("fifo"), 4)
    assert ends(simulated) == pytest.approx({"b": 200, "a": 350})
    assert simulated.held_gpu_s == pytest.approx(4 * 350)
    assert of(simulated.finished, "a").useful_gpu_s == pytest.approx(4 * 300)


def test_who_computes_alone_fills_the_gap_of_who_communicates() -> None:
    """C = 1, M = 2 beside C = 2, M = 0: the round of both is 3 s, and the first loses nothing."""
    jobs = [job("a", 0, 2, 1, 2, 300), job("b", 0, 2, 2, 0, 100)]
    assert ends(run(jobs, CrossoverPairs("fifo"), 2)) == pytest.approx({"b": 150, "a": 300})


def test_a_guest_inherits_the_gpus_that_it_is_on() -> None:
    """The order gives them to it when the owner is done: no restart."""
    jobs = [job("a", 0, 4, 2, 1, 150), job("b", 0, 4, 2, 1, 300)]
    simulated = run(jobs, CrossoverPairs("fifo"), 4, restart_s=10)
    assert ends(simulated) == pytest.approx({"a": 200, "b": 350})
    assert of(simulated.finished, "b").restarts == 0


def test_a_guest_moves_to_gpus_of_its_own_and_restarts() -> None:
    """c rides with a, with which it gains 0.5, and not with b, with which it would gain 0.2. b is done at 150."""
    jobs = [job("a", 0, 4, 2, 1, 300), job("b", 0, 4, 3, 0, 150), job("c", 0, 4, 2, 1, 300)]
    simulated = run(jobs, CrossoverPairs("fifo"), 8, restart_s=10)
    assert ends(simulated) == pytest.approx({"b": 150, "a": 150 + 187.5, "c": 150 + 10 + 187.5})
    assert of(simulated.finished, "c").restarts == 1
    assert of(simulated.finished, "c").restarting_gpu_s == pytest.approx(40)


def test_a_guest_stays_where_it_is_when_another_job_takes_over() -> None:
    """Shortest first. b rides with a, and owns after it; d rides with b, and from 21 on with c, at 2/3 each."""
    jobs = [job("a", 0, 2, 1, 1, 10), job("b", 1, 2, 1, 1, 20), job("c", 1, 2, 2, 0, 30), job("d", 1, 2, 1, 1, 90)]
    simulated = run(jobs, CrossoverPairs("sjf"), 2, restart_s=5)
    assert ends(simulated) == pytest.approx({"a": 10, "b": 21, "c": 66, "d": 66 + 90 - 11 - 30})
    assert sum(one.restarts for one in simulated.finished) == 0


def test_whom_nobody_suits_is_stopped_and_goes_on_later() -> None:
    """The order is by arrival: c owns the GPUs after a, and b's ride ends, for c and b gain nothing together."""
    jobs = [
        job("a", 0, 2, 1, 1, 100), job("x", 0, 2, 5, 0, 100), job("b", 1, 2, 1, 1, 400), job("c", 1, 2, 5, 0, 50),
    ]  # fmt: skip
    policy = CrossoverPairs("sjf", gain=0.5)
    simulated = run(jobs, policy, 4, restart_s=10)
    # a and b ride until 100. Both places come free: c and b own one each, b where it is.
    assert ends(simulated) == pytest.approx({"a": 100, "x": 100, "c": 150, "b": 401})
    simulated = run([jobs[0], *jobs[2:]], CrossoverPairs("sjf", gain=0.5), 2, restart_s=10)
    assert ends(simulated) == pytest.approx({"a": 100, "c": 150, "b": 150 + 10 + 301})
    assert of(simulated.finished, "b").restarts == 1


def test_the_one_that_is_stopped_may_ride_with_whom_it_makes_way_for() -> None:
    """Shortest remaining first, preemptive: b comes at 10 and owns, a stays where it is as its guest."""
    jobs = [job("a", 0, 2, 1, 1, 100), job("b", 10, 2, 1, 1, 20)]
    simulated = run(jobs, CrossoverPairs("srtf"), 2, restart_s=5)
    assert ends(simulated) == pytest.approx({"b": 30, "a": 100})
    assert sum(one.restarts for one in simulated.finished) == 0


def test_the_matching_is_the_best_in_all_and_not_the_first_that_will_do() -> None:
    """a and c would gain 0.5, and b and d nothing; a and d gain 2/3, and b and c 0.7."""
    jobs = [
        job("a", 0, 2, 1, 2, 900), job("b", 0, 2, 2, 0.1, 900), job("c", 0, 2, 1, 2, 900), job("d", 0, 2, 2, 0, 900),
    ]  # fmt: skip
    spans = run(jobs, CrossoverPairs("fifo"), 4, spans=True).spans
    gang = {span.job: span.gang for span in spans if span.from_s == 0}
    assert gang["a"] == gang["d"] != gang["b"] == gang["c"]


def test_two_jobs_without_communication_are_not_admitted() -> None:
    jobs = [job("a", 0, 2, 1, 0.05, 100), job("b", 0, 2, 1, 0.05, 100)]
    assert ends(run(jobs, CrossoverPairs("fifo", ratio=0.1, gain=0.01), 2)) == {"a": 100, "b": 200}
    assert ends(run(jobs, CrossoverPairs("fifo", ratio=0.0, gain=0.01), 2))["b"] < 200


def test_one_gpu_has_nothing_to_communicate() -> None:
    jobs = [job("a", 0, 1, 1, 1, 100), job("b", 0, 1, 1, 1, 100)]
    assert ends(run(jobs, CrossoverPairs("fifo"), 1)) == {"a": 100, "b": 200}
    assert ends(run(jobs, Jigsaw(order="fifo"), 1)) == {"a": 100, "b": 200}


def test_what_does_not_fit_into_memory_does_not_share() -> None:
    jobs = [job("a", 0, 2, 1, 1, 100, memory_bytes=9 * GIB), job("b", 0, 2, 1, 1, 100, memory_bytes=7 * GIB)]
    assert ends(run(jobs, parse_policy("crossover-pairs:memory=16GiB,order=fifo"), 2)) == {"a": 100, "b": 100}
    assert ends(run(jobs, parse_policy("crossover-pairs:memory=15GiB,order=fifo"), 2)) == {"a": 100, "b": 200}
    assert ends(run(jobs, parse_policy("jigsaw:memory=15GiB,order=fifo"), 2)) == {"a": 100, "b": 200}


@pytest.mark.parametrize(("k", "end_s"), [(2, 500), (4, 450)])
def test_jigsaw_by_hand(k: int, end_s: float) -> None:
    """Nothing to send: a round takes 2F + (k+1)/k·B, 5/3 s and 3/2 s for two steps of 1 s."""
    jobs = [job("a", 0, 4, 1, 0, 300), job("b", 0, 4, 1, 0, 300)]
    simulated = run(jobs, Jigsaw(k, order="fifo"), 4)
    assert ends(simulated) == pytest.approx({"a": end_s, "b": end_s})
    assert simulated.held_gpu_s == pytest.approx(4 * end_s)
    assert ends(run(jobs, CrossoverPairs("fifo", ratio=0), 4)) == {"a": 300, "b": 600}


def test_jigsaw_s_levels_are_no_more_than_workers() -> None:
    jobs = [job("a", 0, 2, 1, 0, 300), job("b", 0, 2, 1, 0, 300)]
    assert ends(run(jobs, Jigsaw(8, order="fifo"), 2)) == pytest.approx({"a": 500, "b": 500})


def test_jigsaw_knows_the_forward_share() -> None:
    """All of it backward: 3/2 s for k = 2. Nearly none: the two would hardly gain, and do not share."""
    deep = [job("a", 0, 2, 1, 0, 300, forward_share=0.0), job("b", 0, 2, 1, 0, 300, forward_share=0.0)]
    assert ends(run(deep, Jigsaw(2, order="fifo"), 2)) == pytest.approx({"a": 450, "b": 450})
    flat = [job("a", 0, 2, 1, 0, 300, forward_share=0.9), job("b", 0, 2, 1, 0, 300, forward_share=0.9)]
    assert ends(run(flat, Jigsaw(2, order="fifo"), 2)) == {"a": 300, "b": 600}


def test_backfilling_knows_when_owners_that_share_will_end() -> None:
    """b waits for all GPUs, behind a, which shares with c and ends at 399 and not 300: d, of 350 s, delays nobody."""
    jobs = [
        job("a", 0, 2, 2, 1, 300), job("b", 1, 3, 1, 0, 10), job("c", 2, 2, 2, 1, 300), job("d", 3, 1, 1, 0, 350),
    ]  # fmt: skip
    simulated = run(jobs, CrossoverPairs("fifo-backfill"), 3)
    end_s = 2 + 298 / 0.75
    assert ends(simulated) == pytest.approx({"a": end_s, "b": end_s + 10, "c": end_s + 10 + 2, "d": 353})


@pytest.mark.parametrize("text", ["crossover-pairs", "jigsaw"])
def test_a_trace_that_does_not_know_steps_is_refused(text: str) -> None:
    assert needs_steps(text)
    assert not needs_steps("srtf")
    with pytest.raises(SpecError, match=r"seconds that a step computes .* of job 'a' and 1 others") as caught:
        run(rigid((0, 2, 5), (0, 2, 5)), parse_policy(text), 2)
    assert "exposed and step_s" in (caught.value.hint or "")
    with pytest.raises(SpecError, match=r"bytes of memory that a job needs of a GPU.* of job 'a'$"):
        run([job("a", 0, 2, 1, 1, 5)], parse_policy(f"{text}:memory=16GiB"), 2)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"exposed": 1.0}, "exposed = 1 is not a share"),
        ({"step_s": 0.0}, "step of 0 s"),
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
    alone = step_times(Job("a", 0, 1, 100, ring))
    assert alone == pytest.approx((1.02, 0.0))
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


def test_a_csv_of_one_s_own_tells_what_sharing_needs(tmp_path: Path) -> None:
    path = write(
        tmp_path / "jobs.csv",
        "name,arrival_s,gpus,duration_s,step_s,exposed,forward_share,memory_bytes",
        "a,0,2,60,2,0.25,0.5,1000", "b,0,2,60,,,,",
    )  # fmt: skip
    told, silent = load_plain(path).jobs
    assert step_times(told) == (1.5, 0.5)
    assert forward_share(told) == 0.5
    assert memory_bytes(told) == 1000
    assert step_times(silent) is None
    assert memory_bytes(silent) is None


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
            assert 1 <= len(place.members) <= self.policy.most
            assert {member.job.gpus for member in place.members} == {place.gpus}
            if len(place.members) > 1:
                self.shared += 1
                rates = self.policy.rates(place.gpus, place.member_kinds)
                assert rates is not None
                assert all(0 < rate <= 1 for rate in rates)
                assert sum(rates) >= 1 + self.policy.gain * (len(rates) - 1) - 1e-9
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
    st.sampled_from(["crossover", "jigsaw", "jigsaw of three"]),
    st.sampled_from([None, 12]),
    st.sampled_from([0.0, 7.0]),
)
def test_whatever_comes(
    jobs: list[Job], order: str, which: str, memory: int | None, restart_s: float
) -> None:  # fmt: skip
    policy: Sharing = CrossoverPairs(order, memory=memory)
    if which != "crossover":
        policy = Jigsaw(2, 3 if which == "jigsaw of three" else 2, order, 0.02, memory)
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


def test_of_equals_the_first_rides() -> None:
    jobs = [job(name(number), 0, 2, 1, 1, 100) for number in range(5)]
    simulated = run(jobs, CrossoverPairs("fifo"), 2, spans=True)
    assert {span.job for span in simulated.spans if span.from_s == 0} == {"a", "b"}
    assert ends(simulated) == pytest.approx({"a": 100, "b": 100, "c": 200, "d": 200, "e": 300})
