"""Elastic policies: by hand, and against greedies that start anew and look at everything."""

from collections.abc import Callable

import numpy as np
import pytest
from cluster_cases import Amdahl, ends, rigid, run
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.jobs import Job
from xbench.cluster.metrics import Simulated
from xbench.cluster.policies.doubling import Doubling, Exploratory, doubling_sizes, take
from xbench.cluster.policies.elastic import Alternate, EqualShare, Optimus
from xbench.cluster.policies.fifo import Fixed
from xbench.cluster.policy import Cluster, Policy
from xbench.cluster.speeds import TableSpeed
from xbench.errors import SpecError

TRIED = TableSpeed.of({1: 1.0, 2: 2.5, 4: 5.0})
ELASTIC: list[Callable[[], Policy]] = [
    lambda: Fixed(2), EqualShare, Optimus, Doubling, Exploratory, lambda: Exploratory(trial_s=2.0),
]  # fmt: skip
KNOWN: list[tuple[int, ...] | None] = [None, (1, 2, 4, 8), (1, 3), (2, 4), (4,)]


@st.composite
def traces(draw: st.DrawFn) -> list[Job]:
    at = sorted(draw(st.lists(st.integers(0, 20), min_size=1, max_size=9)))
    jobs = []
    for number, arrival in enumerate(at):
        known = draw(st.sampled_from(KNOWN))
        least = draw(st.integers(1, 2))
        most = draw(st.sampled_from([None, 2, 5]))
        speed = Amdahl(draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])), known)
        if any(least <= size <= (most or 8) for size in known or (least,)):
            jobs.append(Job(f"j{number}", float(arrival), 1, float(draw(st.integers(1, 40))), speed, least, most))
    return jobs


def job(name: str, at_s: float, work: float, parallel: float = 1.0, **limits: int) -> Job:
    return Job(name, at_s, 1, work, Amdahl(parallel), **limits)


def held(simulated: Simulated) -> list[tuple[str, int, float, float]]:
    spans = sorted(simulated.spans, key=lambda span: (span.job, span.from_s))
    return [(span.job, span.gpus, span.from_s, span.to_s) for span in spans]


def test_one_job_alternates_and_pays_for_every_change() -> None:
    """70 of work in 7 parts, at 1 on one GPU and at 2 on two; each of 6 changes costs 3 s."""
    alone = Job("a", 0.0, 1, 70.0, TableSpeed.of({1: 1.0, 2: 2.0}))
    simulated = run([alone], Alternate(6), 4, restart_s=3.0, spans=True)
    assert [span.gpus for span in simulated.spans] == [1, 2, 1, 2, 1, 2, 1]
    assert simulated.finished[0].restarts == 6
    assert ends(simulated)["a"] == pytest.approx(4 * 10 + 3 * 5 + 6 * 3)


@pytest.mark.parametrize(("jobs", "said"), [
    ([job("a", 0, 1), job("b", 0, 1)], "restarts are measured of one job"),
    ([job("a", 0, 1, most=1)], "can have 1 of 4 GPUs and no other number"),
])  # fmt: skip
def test_restarts_are_of_one_job_with_two_sizes(jobs: list[Job], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Alternate().begin(Cluster(4), jobs)


def test_what_may_be_had() -> None:
    cluster = Cluster(10)
    assert doubling_sizes(job("a", 0, 1), cluster) == (1, 2, 4, 8)
    assert doubling_sizes(job("a", 0, 1, least=3, most=9), cluster) == (3, 6)
    assert doubling_sizes(Job("a", 0, 1, 1, Amdahl(1.0, (1, 3, 4, 8, 16))), cluster) == (1, 4, 8)
    assert list(job("a", 0, 1, least=2, most=4).sizes_on(10)) == [2, 3, 4]
    assert Job("a", 0, 1, 1, Amdahl(1.0, (1, 3, 16))).sizes_on(10) == (1, 3)


@pytest.mark.parametrize("make", ELASTIC)
@given(jobs=traces(), restart_s=st.sampled_from([0.0, 1.5]))
def test_limits_hold_and_everybody_ends(make: Callable[[], Policy], jobs: list[Job], restart_s: float) -> None:
    simulated = run(jobs, make(), 8, restart_s=restart_s, spans=True)
    assert len(simulated.finished) == len(jobs)
    assert max((moment.held for moment in simulated.moments), default=0) <= 8
    allowed = {job.name: set(job.sizes_on(8)) for job in jobs}
    assert all(span.gpus in allowed[span.job] for span in simulated.spans)
    for done in simulated.finished:  # all of the work was done, and nothing else
        work = sum(
            done.job.speed(span.gpus) * (span.to_s - span.from_s)
            for span in simulated.spans
            if span.job == done.job.name
        )
        lost = done.restarts * restart_s * max(done.job.speed(size) for size in allowed[done.job.name])
        assert done.job.work - 1e-6 <= work <= done.job.work + lost + 1e-6


@pytest.mark.parametrize("make", ELASTIC)
def test_jobs_without_speeds_or_without_a_known_size_are_refused(make: Callable[[], Policy]) -> None:
    policy = make()
    with pytest.raises(SpecError, match=r"needs speeds .* job 'b' and 1 other on the 2") as caught:
        run([job("a", 0, 5), *rigid((0, 9, 9), (1, 2, 5), (1, 2, 5))[1:]], policy, 8)
    assert "srtf" in str(caught.value.hint)
    with pytest.raises(SpecError, match="job 'a' takes 3 to 3 GPUs, and its speed is known on none"):
        run([Job("a", 0, 1, 5, Amdahl(1.0, (1, 2, 4)), 3, 3)], make(), 8)


@pytest.mark.parametrize(
    ("policy", "gpus", "jobs", "expected"),
    [
        # first in, first out; b takes at most 1, d at least 3
        (Fixed(2), 4, [job("a", 0, 8), job("b", 0, 4, most=1), job("c", 1, 8), job("d", 1, 9, least=3)],
         [("a", 2, 0), ("b", 1, 0), ("c", 2, 4), ("d", 3, 8)]),
        # 8 alone; 4 and 4; 3, 3 and 2: what is left goes to who came first
        (EqualShare(), 8, [job("a", 0, 80), job("b", 1, 400), job("c", 2, 400)],
         [("a", 8, 0), ("a", 4, 1), ("b", 4, 1), ("a", 3, 2), ("b", 3, 2), ("c", 2, 2)]),
        # shares of 3 leave 2 (c takes 2 or 4): b has one, then c's next two do not fit, and b has the other
        (EqualShare(), 8, [job("a", 0, 20, most=1), job("b", 0, 100), Job("c", 0, 1, 40, Amdahl(1.0, (1, 2, 4)))],
         [("a", 1, 0), ("b", 5, 0), ("c", 2, 0)]),
        # gains per GPU: a 50 and 12.5 (to 4), b 10 (to 2). a's next, 3.1, adds 4 and 2 are left; b's is 2.5
        (Doubling(), 8, [job("a", 0, 100), job("b", 0, 20)], [("a", 4, 0), ("b", 4, 0), ("a", 8, 5)]),
        # a doubling that does not help is not done
        (Doubling(), 8, [job("a", 0, 10, parallel=0.0)], [("a", 1, 0)]),
        # more jobs than GPUs wait in the order of arrival
        (Doubling(), 2, [job(name, 0, 10) for name in "abc"], [("a", 1, 0), ("b", 1, 0), ("c", 2, 10)]),
        (Optimus(), 2, [job(name, 0, 10) for name in "abc"], [("a", 1, 0), ("b", 1, 0), ("c", 2, 10)]),
        (EqualShare(), 2, [job(name, 0, 10) for name in "abc"], [("a", 1, 0), ("b", 1, 0), ("c", 2, 10)]),
        # speeds are tried one after the other
        (Exploratory(trial_s=10.0), 8, [job("a", 0, 1000)], [("a", 1, 0), ("a", 2, 10), ("a", 4, 20)]),
    ],
)  # fmt: skip
def test_by_hand(policy: Policy, gpus: int, jobs: list[Job], expected: list[tuple[str, int, float]]) -> None:
    """`expected` are spans: job, GPUs, and when they begin."""
    assert set(expected) <= {span[:3] for span in held(run(jobs, policy, gpus, spans=True))}


def test_tried_speeds_gain_per_added_gpu() -> None:
    """b's second GPU saves 1500 s, a's third and fourth 1000 s each: b keeps the two that it tried at 7, when c came.

    Of b's 2500 one second each is done on one GPU at 5 and 6, and 2.5 a second from then on.
    """
    jobs = [Job("a", 0, 1, 10_000, TRIED), Job("b", 5, 1, 2500, TRIED, most=2), job("c", 7, 0.5, most=1)]
    spans = held(run(jobs, Exploratory(trial_s=1.0), 5, spans=True))
    b_ends_s = pytest.approx(7 + 2498 / 2.5)
    assert [span for span in spans if span[:2] == ("b", 2)] == [("b", 2, 7.0, b_ends_s)]
    assert [span for span in spans if span[:2] == ("a", 2)][-1] == ("a", 2, 7.0, b_ends_s)


def test_nobody_is_moved_for_less_than_a_restart() -> None:
    """When b ends at 5, a has 80 left: 20 s on 4 GPUs or 10 s on 8. That is worth a restart of 9 s, not one of 11 s."""
    jobs = [job("a", 0, 100), job("b", 0, 20)]
    assert ends(run(jobs, Doubling(), 8, restart_s=9.0))["a"] == 5 + 9 + 10
    assert ends(run(jobs, Doubling(), 8, restart_s=11.0))["a"] == 25.0
    for make, worth in ((Optimus, True), (EqualShare, True), (Optimus, False), (EqualShare, False)):
        found = run([job("a", 0, 100), job("b", 0, 20, most=4)], make(), 8, restart_s=1.0 if worth else 50.0)
        assert (found.finished[-1].restarts > 0) is worth
    sooner, same = (run(jobs, EqualShare(), 8, restart_s=restart_s) for restart_s in (9.0, 10.0))
    assert (ends(sooner)["a"], sooner.finished[-1].restarts) == (5 + 9 + 10, 1)
    assert (ends(same)["a"], same.finished[-1].restarts) == (25.0, 0)


def greedy(gains: np.ndarray, added: np.ndarray, spare: float) -> list[int]:
    taken = [0] * gains.shape[1]
    while True:
        steps = [
            (-gains[step, column], column)
            for column, step in enumerate(taken)
            if step < len(gains) and gains[step, column] > 0 and added[step, column] <= spare
        ]
        if not steps:
            return taken
        _, column = min(steps)
        spare -= added[taken[column], column]
        taken[column] += 1


@given(st.data(), st.integers(1, 8), st.integers(0, 40))
def test_what_is_taken_is_what_a_walk_takes(data: st.DataObject, jobs: int, spare: int) -> None:
    """Gains do not rise, and sizes double."""
    rows = [
        sorted(data.draw(st.lists(st.integers(-5, 1000), min_size=4, max_size=4)), reverse=True) for _ in range(jobs)
    ]
    gains = np.array(rows, dtype=float).T
    added = np.repeat([[1.0], [2.0], [4.0], [8.0]], jobs, axis=1)
    assert take(gains, added, spare).tolist() == greedy(gains, added, spare)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.3, 1.0)), min_size=1, max_size=6), st.integers(6, 16))
def test_one_gpu_more_is_the_greedy_from_the_start(told: list[tuple[int, float]], gpus: int) -> None:
    """Sum of remaining times: ties may go either way."""
    jobs = [job(f"j{number}", 0, float(work), share) for number, (work, share) in enumerate(told)]
    spans = run(jobs, Optimus(), gpus, spans=True).spans
    found = {span.job: span.gpus for span in spans if span.from_s == 0.0}
    sizes = {one.name: 1 for one in jobs}
    for _ in range(gpus - len(jobs)):
        best = max(
            jobs, key=lambda one: one.work / one.speed(sizes[one.name]) - one.work / one.speed(sizes[one.name] + 1)
        )
        sizes[best.name] += 1

    def total_s(sizes: dict[str, int]) -> float:
        return sum(one.work / one.speed(sizes[one.name]) for one in jobs)

    assert sum(found.values()) == gpus
    assert total_s(found) == pytest.approx(total_s(sizes))


def test_optimus_mends_its_plan_as_if_it_were_new() -> None:
    random = np.random.default_rng(4)
    jobs = [
        job(f"j{number}", float(number), float(random.integers(20, 300)), float(random.choice([0.7, 0.9, 0.99])))
        for number in range(12)
    ]
    seen = 0

    class Compared(Optimus):
        def decide(self, now_s):  # type: ignore[no-untyped-def]
            nonlocal seen
            changes = list(super().decide(now_s))
            rows = self._rows
            if len(rows):
                fresh = Optimus()
                fresh.begin(self.cluster, [])
                for active in rows.jobs:
                    fresh.arrived(active, now_s)
                list(fresh.decide(now_s))
                left = rows.remaining(now_s)
                pace = [[1 / one.job.speed(int(size)) for one, size in zip(rows.jobs, plan["planned"], strict=True)]
                        for plan in (rows, fresh._rows)]  # fmt: skip
                assert left @ np.array(pace[0]) == pytest.approx(left @ np.array(pace[1]))
                seen += 1
            return iter(changes)

    run(jobs, Compared(), 16)
    assert seen >= 20


def test_a_job_that_waits_for_its_first_size_comes_before_further_trials() -> None:
    """Both trials on 2 of 4 GPUs end at 300, and 4 fit neither: the third job begins then, not when another ends."""
    jobs = [job("a", 0, 4000), job("b", 0, 4000), job("c", 200, 100)]
    simulated = run(jobs, Exploratory(trial_s=150.0), 4, spans=True)
    assert min(span.from_s for span in simulated.spans if span.job == "c") == 300.0


def test_only_what_was_tried_is_used() -> None:
    """The cluster has no room for b's trial on 4 while a is on trial on 4; b waits for it on what it knows."""
    simulated = run([job("a", 0, 400), job("b", 0, 400)], Exploratory(trial_s=10.0), 6, spans=True)
    sizes = {name: [gpus for job, gpus, *_ in held(simulated) if job == name] for name in "ab"}
    assert max(sizes["a"] + sizes["b"]) == 4
    first_four = {
        name: min(span.from_s for span in simulated.spans if span.job == name and span.gpus == 4) for name in "ab"
    }
    assert first_four["a"] == 20.0
    assert first_four["b"] >= 30.0
