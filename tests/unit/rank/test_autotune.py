"""How auto settles on a plan: the short list, how long it may take, and what is chosen. The runs are faked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from xbench.modes import tried_modes
from xbench.planning.auto import Candidate
from xbench.planning.contention import Contention
from xbench.planning.plans import Planner
from xbench.planning.step import Gradient, StepModel
from xbench.rank import autotune
from xbench.rank.autotune import CandidateTiming, Trial, try_candidates
from xbench.records import CostModel, Layer, Plan, Tensor
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec, RunSpec, WorkloadSpec

COST = CostModel(
    backend="gloo", world_size=2, alpha_s=1e-3, beta_s_per_byte=1e-7, alpha_ci95=(1e-3, 1e-3), beta_ci95=(1e-7, 1e-7),
    max_relative_residual=0.0, points=[],
)  # fmt: skip
GRADIENTS = tuple(Gradient(f"g{k}", 20_000 * (k % 3 + 1), 0.01 * (k + 1)) for k in range(6))
STEP = StepModel(GRADIENTS, forward_s=0.02, backward_s=0.06, optimizer_s=0.005)
SHARED = Contention(np.zeros(1), np.full((2, 1), 1.5), np.full((2, 1), 1.5), hook_s=0.001)
PLANNER = Planner(STEP, COST, SHARED)


def candidates(*seconds: float) -> list[Candidate]:
    return [Candidate(f"c{k}", [[k]], step_s) for k, step_s in enumerate(seconds)]


RANK: Any = SimpleNamespace(run=SimpleNamespace(modes=()))


def test_rounds_fill_the_time_and_are_few() -> None:
    # a round is three steps of each candidate, and 25 s are to spend on five of them
    assert autotune._rounds(candidates(0.5, 0.5)) == 5
    assert autotune._rounds(candidates(1.0, 1.0)) == 4
    assert autotune._rounds(candidates(4.0, 4.3)) == 1
    assert autotune._rounds(candidates(4.0, 4.4)) == 0
    assert autotune._rounds(candidates(0.0)) == 5
    # of short steps, ten seconds on ten of them; one of 10 ms is taken eleven times in a round
    assert autotune._rounds(candidates(0.1, 0.1)) == 10
    assert autotune._rounds(candidates(0.2, 0.2)) == 8
    assert autotune._rounds(candidates(*[0.01] * 13)) == 6
    assert autotune._rounds(candidates(*[0.01] * 9)) == 10


def test_what_time_does_not_allow_is_dropped_slowest_first_and_ddp_last() -> None:
    def kept(*named: tuple[str, float]) -> list[str]:
        shortlist = [Candidate(n, [[0]], step_s, "ddp" if n == "itself" else None) for n, step_s in named]
        return [candidate.name for candidate in autotune._affordable(shortlist)]

    # two rounds of three steps each in 25 s: steps that add up to 4.16 s
    assert kept(("auto", 1.0), ("optimal", 1.0), ("itself", 1.1)) == ["auto", "optimal", "itself"]
    assert kept(("auto", 1.3), ("optimal", 1.4), ("itself", 1.5), ("ddp", 1.4)) == ["auto", "itself"]
    assert kept(("auto", 1.3), ("optimal", 1.4), ("mgwfbp", 1.35), ("wfbp", 1.6)) == ["auto", "optimal", "mgwfbp"]
    assert kept(("auto", 9.0), ("optimal", 9.0), ("itself", 9.0)) == ["auto", "itself"]
    assert kept(("auto", 99.0)) == ["auto"]


def test_candidates_are_compared_within_rounds() -> None:
    # the machine takes twice as long in the second round, and three times in the third
    first = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    tenth_less = [0.9, 0.9, 1.8, 1.8, 2.7, 2.7]
    disturbed_once = [1.1, 1.1, 2.2, 2.2, 9.0, 9.0]
    assert autotune._in_pairs([first, tenth_less, disturbed_once], 2) == pytest.approx([2.0, 1.8, 2.2])
    # one slow step of many does not make a round slow
    slow_once = [1.0, 1.0, 9.0, 1.0, 1.0, 1.0]
    assert autotune._in_pairs([[1.0] * 6, slow_once], 3) == pytest.approx([1.0, 1.0])


def test_short_steps_are_timed_more_often() -> None:
    assert [autotune._steps(step_s) for step_s in (0.0, 0.001, 0.01, 0.03, 0.06, 2.0)] == [12, 12, 10, 4, 2, 2]


def steps_of(planner: Planner, plans: Sequence[Candidate]) -> list[float]:
    return [planner.simulate("auto", candidate.buckets).step_s for candidate in plans]


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_the_factor_is_the_one_that_made_the_times(factor: float) -> None:
    shortlist = [Candidate("one", [[0, 1, 2], [3, 4, 5]], 1.0), Candidate("each", [[k] for k in range(6)], 1.0)]
    measured = steps_of(replace(PLANNER, contention=SHARED.amplified(factor)), shortlist)
    assert autotune._factor(PLANNER, list(zip(measured, shortlist, strict=True))) == pytest.approx(factor, rel=1e-3)


def test_a_factor_beyond_reason_is_the_nearest_allowed() -> None:
    one = Candidate("one", [[0, 1, 2], [3, 4, 5]], 1.0)
    assert autotune._factor(PLANNER, [(100.0, one)]) == pytest.approx(4.0, rel=1e-3)
    assert autotune._factor(PLANNER, [(1e-3, one)]) == pytest.approx(0.25, rel=1e-3)


class Runs:
    """In the place of the real steps: `times` of a short list, in the order of calls; keeps what it was asked."""

    def __init__(self, times: Callable[[Sequence[Candidate]], list[float]]) -> None:
        self.times = times
        self.shortlists: list[list[Candidate]] = []
        self.rounds: list[int] = []
        self.steps: list[int] = []

    def __call__(self, shortlist: Sequence[Candidate], rounds: int, steps: int) -> list[CandidateTiming]:
        self.shortlists.append(list(shortlist))
        self.rounds.append(rounds)
        self.steps.append(steps)
        return [CandidateTiming(step_s, rounds * steps) for step_s in self.times(shortlist)]


def tried(
    monkeypatch: pytest.MonkeyPatch,
    runs: Runs,
    planner: Planner = PLANNER,
    modes: Sequence[str] | None = None,
    refusal: str | None = "it is not offered here",
    mode: str = "auto",
) -> tuple[Plan, dict[str, Plan]]:
    """The plan after a trial. DDP refuses the model for the reason `refusal`; None: it is a candidate too."""
    monkeypatch.setattr(Trial, "run", runs)
    monkeypatch.setattr(autotune, "ddp_refusal", lambda session, attach: refusal)
    plans = planner.plans(modes)
    plans.setdefault(mode, planner.plan(mode))
    return try_candidates(RANK, planner, plans, mode, {"unused.weight": 4}), plans


def test_the_short_list_is_the_favourite_and_rivals_that_are_close(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(lambda shortlist: [candidate.step_s for candidate in shortlist])
    plan, plans = tried(monkeypatch, runs)
    [shortlist] = runs.shortlists
    assert shortlist[0].name == "auto"
    assert plan.buckets == plans["auto"].buckets
    assert len({str(candidate.buckets) for candidate in shortlist}) == len(shortlist)
    limit_s = autotune.CLOSE * shortlist[0].step_s
    assert all(candidate.step_s <= limit_s for candidate in shortlist)
    on_list = [candidate.buckets for candidate in shortlist]
    for mode in tried_modes():
        buckets = PLANNER.indices(plans[mode])
        close = PLANNER.simulate("auto", buckets).step_s <= limit_s
        assert (buckets in on_list) == close, mode
    assert (runs.rounds, runs.steps) == ([autotune._rounds(shortlist)], [2])
    assert plan.note.startswith(f"the buckets of 'auto', after {2 * runs.rounds[0]} steps each of: auto ")


def second_takes(share: float) -> Runs:
    """Every candidate as predicted, but the second takes so much of the favourite's time."""
    return Runs(lambda found: [found[0].step_s, share * found[0].step_s, *(c.step_s * 1.05 for c in found[2:])])


def test_a_rival_must_be_faster_than_noise_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "_rounds", lambda shortlist: 5)
    plan, plans = tried(monkeypatch, runs := second_takes(0.99))
    assert plan.buckets == plans["auto"].buckets
    # four percent over the root of ten steps
    plan, plans = tried(monkeypatch, runs := second_takes(0.985))
    [shortlist] = runs.shortlists
    assert PLANNER.indices(plan) == shortlist[1].buckets != shortlist[0].buckets
    assert sorted(itertools.chain(*plan.buckets)) == [gradient.name for gradient in GRADIENTS]
    assert plan.mode == "auto"
    assert plan.note.startswith(f"the buckets of {shortlist[1].name!r}, after")
    assert plan.predicted_step_s == pytest.approx(shortlist[1].step_s)


FREE = replace(PLANNER, contention=None)
"""A planner that fits nothing to a trial, so that there is one trial."""


def by_name(**shares: float) -> Runs:
    """Candidates take these shares of a second, by the last word of their names; others take 2 s."""
    return Runs(lambda found: [shares.get(candidate.name.split()[-1], 2.0) for candidate in found])


def test_ddp_itself_is_always_a_candidate_and_taken_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = replace(FREE, buffer_bytes=(100_000,))
    plan, plans = tried(monkeypatch, runs := by_name(auto=1.0, itself=0.999), planner, refusal=None)
    [shortlist] = runs.shortlists
    assert [(c.name, c.carrier) for c in shortlist if c.carrier] == [("DDP itself", "ddp")]
    assert (plan.mode, plan.carrier, plan.parts) == ("auto", "ddp", None)
    assert plan.buckets == plans["ddp"].buckets
    # the prediction is that of DDP, which broadcasts buffers, and not of our engine with its buckets
    assert plan.predicted_step_s == plans["ddp"].predicted_step_s
    assert plan.predicted_step_s != planner.simulate("auto", planner.indices(plan)).step_s
    assert plan.timeline == plans["ddp"].timeline
    assert plan.note.startswith("DDP's own reducer, after ")
    assert "DDP itself 999 ms" in plan.note


@pytest.mark.parametrize(
    ("favourite", "rival", "itself", "chosen"),
    [
        (1.0, 1.0, 1.001, "favourite"),
        (1.0, 0.5, 0.9, "rival"),  # faster than noise explains
        (1.0, 0.995, 0.997, "itself"),  # the rival's gain may be noise, and DDP is better than the favourite
        (1.0, 0.995, 1.0, "favourite"),
    ],
)
def test_ddp_itself_is_not_taken_where_a_plan_beats_it(
    monkeypatch: pytest.MonkeyPatch, favourite: float, rival: float, itself: float, chosen: str
) -> None:
    runs = Runs(lambda found: [favourite, rival, *(itself if c.carrier else 2.0 for c in found[2:])])
    plan, _ = tried(monkeypatch, runs, FREE, refusal=None)
    [shortlist] = runs.shortlists
    assert [candidate.carrier for candidate in shortlist[:2]] == [None, None]
    expected = {"favourite": shortlist[0], "rival": shortlist[1], "itself": shortlist[-1]}[chosen]
    assert (plan.carrier, FREE.indices(plan)) == (expected.carrier, expected.buckets)


def test_ddp_itself_is_tried_however_slow_it_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(FREE, buffer_bytes=(10_000_000,))  # which DDP alone broadcasts
    _, plans = tried(monkeypatch, runs := by_name(auto=1.0), slow, refusal=None)
    assert plans["ddp"].predicted_step_s > 5 * plans["auto"].predicted_step_s
    assert "DDP itself" in [candidate.name for candidate in runs.shortlists[0]]


def test_a_model_that_ddp_refuses_is_tried_without_it_and_the_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = tried(monkeypatch, runs := by_name(auto=1.0), FREE, refusal="its outputs are hidden")
    assert [candidate.carrier for candidate in runs.shortlists[0] if candidate.carrier] == []
    assert plan.note.endswith("; DDP itself was not tried: its outputs are hidden")


@pytest.mark.parametrize(
    ("modes", "may"),
    [
        ("compute,ddp,auto,crossover", True),
        ("auto,sequential:auto,concurrent:auto", True),
        ("auto,crossover:auto", False),
    ],
)
def test_auto_may_be_ddp_where_no_turn_waits_for_it(modes: str, may: bool) -> None:
    run = RunSpec(
        kind="comparison", workloads=(WorkloadSpec(name="resnet18"),), modes=parse_modes(modes),
        fabric=FabricSpec(name="local", ranks=2),
    )  # fmt: skip
    assert autotune.may_be_ddp(run) is may


def test_steps_that_take_too_long_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Planner(STEP.scaled(1000.0), COST, SHARED)
    runs = Runs(lambda shortlist: pytest.fail("nothing was to be run"))
    plan, plans = tried(monkeypatch, runs, slow)
    assert plan.buckets == plans["auto"].buckets
    assert plan.note.startswith("not tried beforehand: ")


def test_predictions_that_are_off_are_made_again_and_the_new_plan_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    # three times the contention makes one bucket best, which is not on a list of auto's own plan and wfbp's
    true = replace(PLANNER, contention=SHARED.amplified(3.0))
    runs = Runs(lambda shortlist: steps_of(true, shortlist))
    plan, _ = tried(monkeypatch, runs, modes=["auto", "wfbp"])
    first, second = runs.shortlists
    assert [candidate.name for candidate in second][1:] == ["planned again"]
    measured = steps_of(true, first)
    assert second[0].buckets == first[measured.index(min(measured))].buckets
    again_s = steps_of(true, second)[1]
    # with the factor found the search's own prediction is what is measured
    assert second[1].step_s == pytest.approx(again_s, rel=1e-3)
    assert plan.note.startswith("the buckets of 'planned again', after")
    assert "so it was planned again" in plan.note
    assert plan.buckets == [[gradient.name for gradient in GRADIENTS]]
    # and what is shown is the model's own prediction, as for every other mode
    assert plan.predicted_step_s == PLANNER.simulate("auto", PLANNER.indices(plan)).step_s
    chosen_s = steps_of(true, [Candidate("chosen", PLANNER.indices(plan), 0.0)])[0]
    assert chosen_s <= min([*measured, again_s]) / (1 - autotune.NOISE / math.sqrt(2 * runs.rounds[-1]))


LAYERS = tuple(
    Layer(
        name=f"l{k}", kind="Linear", parameters=g.nbytes // 4, grad_bytes=g.nbytes, forward_s=0.01, backward_s=0.01,
        ready_s=g.ready_s, share=0.1,
        tensors=[Tensor(name=g.name, elements=g.nbytes // 4, bytes=g.nbytes, dtype=g.dtype, ready_s=g.ready_s)],
    )
    for k, g in enumerate(GRADIENTS)
)  # fmt: skip
SLOW = COST.model_copy(update={"beta_s_per_byte": 4e-7})  # 0.1 s for all: more than backward hides
AHEAD = Planner(replace(STEP, forward_s=0.06), SLOW, SHARED, layers=LAYERS)


def without_attaching(trial: Trial, shortlist: list[Candidate]) -> tuple[list[Candidate], str]:
    return shortlist, ""


def refusing(name: str) -> Callable[..., tuple[list[Candidate], str]]:
    def attachable(trial: Trial, shortlist: list[Candidate]) -> tuple[list[Candidate], str]:
        return [c for c in shortlist if c.carrier != name], f"; {name} was not tried: a module is called twice"

    return attachable


def test_schedules_that_travel_on_are_tried_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "attachable", without_attaching)
    runs = Runs(lambda shortlist: [candidate.step_s for candidate in shortlist])
    plan, plans = tried(monkeypatch, runs, AHEAD, mode="auto:forward")
    [shortlist] = runs.shortlists
    assert plans["auto:forward"].carrier in ("dear", "priority")
    assert {"dear", "priority"} <= {candidate.carrier for candidate in shortlist}
    assert "searched" in {candidate.name for candidate in shortlist}
    twin = plans["auto:forward"]
    assert (plan.mode, plan.carrier, plan.parts) == ("auto:forward", twin.carrier, twin.parts)
    assert plan.predicted_step_s == twin.predicted_step_s
    assert plan.note.startswith(f"carried by '{plan.carrier}', after 10 steps each of: {plan.carrier} ")
    runs = Runs(lambda shortlist: [candidate.step_s for candidate in shortlist])
    tried(monkeypatch, runs, AHEAD)
    assert {candidate.carrier for candidate in runs.shortlists[0]} == {None}


def test_the_note_says_of_how_many_steps_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(*_: Any) -> list[CandidateTiming]:
        return [CandidateTiming(0.1, 24), CandidateTiming(0.2, 8, in_final=False)]

    monkeypatch.setattr(Trial, "run", halved)
    planner = replace(PLANNER, contention=None)
    plan = try_candidates(RANK, planner, planner.plans(["auto", "wfbp"]), "auto", {})
    assert plan.note == "the buckets of 'auto', after 8 to 24 steps each of: auto 100 ms, wfbp 200 ms"


def test_a_schedule_that_refuses_the_model_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = AHEAD.plan("auto:forward").carrier
    assert carrier is not None
    monkeypatch.setattr(Trial, "attachable", refusing(carrier))
    runs = Runs(lambda shortlist: [candidate.step_s for candidate in shortlist])
    plan, _ = tried(monkeypatch, runs, AHEAD, mode="auto:forward")
    assert carrier not in {candidate.carrier for candidate in runs.shortlists[0]}
    assert plan.carrier != carrier
    assert f"; {carrier} was not tried: a module is called twice; DDP itself was not tried" in plan.note


def test_where_our_engine_is_faster_in_truth_it_carries_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "attachable", without_attaching)
    runs = Runs(lambda shortlist: [c.step_s * (1.05 if c.carrier else 0.5) for c in shortlist])
    plan, _ = tried(monkeypatch, runs, replace(AHEAD, contention=None), mode="auto:forward")
    assert (plan.carrier, plan.parts) == (None, None)


class TimedRank:
    """Steps of the given times, one after the other, on a device that is behind its host until the clock is flushed.

    Keeps what happened, in order.
    """

    def __init__(self, times: Sequence[float]) -> None:
        self.device = torch.device("cpu")
        optimizer = SimpleNamespace(zero_grad=lambda set_to_none: None)
        self.workload = SimpleNamespace(model=torch.nn.Identity(), optimizer=optimizer, without_waits=nullcontext)
        self.happened: list[str] = []
        self.clock = self
        self._times = iter(times)
        self._now_s = 0.0
        self._flushed_s = 0.0

    def train(self, handle: Any, steps: int, what: str, mark: Callable[[], None]) -> None:
        for _ in range(steps):
            self.happened.append("step")
            self._now_s += next(self._times)
            mark()

    def device_idle(self) -> None:
        self.happened.append("idle")

    def mark(self) -> float:
        return self._now_s

    def flush(self) -> None:
        self.happened.append("flush")
        self._flushed_s = self._now_s

    def elapsed_s(self, start: float, end: float) -> float:
        assert end <= self._flushed_s
        return end - start

    def reset(self) -> None:
        self.happened.append("reset")


def test_a_turn_is_timed_from_its_start_to_the_last_rank_s_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank takes turns with this one at being ahead, which costs neither any time."""
    other = torch.tensor([[[5.0, 2.0, 4.0, 2.0]] * 2] * 2, dtype=torch.float64)

    def all_reduce(tensor: torch.Tensor, op: Any = None, group: Any = None) -> None:
        if tensor.dim() == 3:
            assert op is dist.ReduceOp.MAX
            tensor.copy_(torch.maximum(tensor, other.cumsum(-1)))

    monkeypatch.setattr(autotune.dist, "all_reduce", all_reduce)
    attached: list[str] = []

    def attach(trial: Trial, candidate: Candidate) -> Any:
        attached.append(candidate.name)
        return nullcontext()

    monkeypatch.setattr(Trial, "attach", attach)
    rank: Any = TimedRank([3.0, 4.0, 2.0, 4.0] * 4)
    found = Trial(rank, PLANNER, {}).run(candidates(1.0, 1.0), 2, 3)
    # ends 3 7 9 13 here and 5 7 11 13 there: steps of 2, 4 and 2 after a warm-up of 5
    assert found == [CandidateTiming(2.0, 6), CandidateTiming(2.0, 6)]
    assert attached == ["c0", "c1", "c1", "c0"]
    # the host waits for the device before the first step of a turn and after its last one, and not in between
    assert rank.happened == ["idle", "step", "step", "step", "step", "flush", "reset"] * 4


def test_ddp_itself_rebuilds_its_buckets_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune.dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(Trial, "attach", lambda trial, candidate: nullcontext())
    trial = Trial(TimedRank([5.0, 4.0, 1.0, 2.0]), PLANNER, {})
    assert trial.turn(Candidate("DDP itself", [[0]], 1.0, "ddp"), 2, "") == [9.0, 1.0, 2.0]


class Turns:
    """In the place of the turns: a candidate's step by its name and the round. Keeps who took how many rounds."""

    def __init__(self, step_s: Callable[[str, int], float]) -> None:
        self.step_s = step_s
        self.taken: list[tuple[list[str], int]] = []

    def __call__(self, shortlist: Sequence[Candidate], rounds: int, steps: int) -> list[list[float]]:
        begun = sum(before for _, before in self.taken)
        self.taken.append(([candidate.name for candidate in shortlist], rounds))
        return [
            [self.step_s(candidate.name, begun + number) for number in range(rounds) for _ in range(steps)]
            for candidate in shortlist
        ]


def run(monkeypatch: pytest.MonkeyPatch, turns: Turns, count: int, rounds: int) -> list[CandidateTiming]:
    monkeypatch.setattr(Trial, "in_turns", turns)
    return Trial(TimedRank([]), PLANNER, {}).run(candidates(*[1.0] * count), rounds, 2)


def test_half_of_the_turns_are_for_the_favourite_and_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"c0": 1.0, "c1": 1.2, "c2": 0.9, "c3": 1.1, "c4": 0.8, "c5": 0.95, "c6": 1.3}
    found = run(monkeypatch, turns := Turns(lambda name, number: seconds[name] * (1 + number)), 7, 9)
    # 63 turns: four rounds of seven, and in place of five more of them eight of four
    assert turns.taken == [(list(seconds), 4), (["c0", "c4", "c2", "c5"], 8)]
    assert [one.steps for one in found] == [24, 8, 24, 8, 24, 24, 8]
    assert [one.in_final for one in found] == [True, False, True, False, True, True, False]
    # at the pace of the machine's median round, whatever became of those that left before it
    assert [one.step_s for one in found] == pytest.approx([6.5 * step_s for step_s in seconds.values()])


def test_what_looked_fast_in_the_first_half_alone_is_not_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    def step_s(name: str, number: int) -> float:
        return {"c1": 0.7 if number < 2 else 1.2, "c2": 0.9}.get(name, 1.0)

    found = run(monkeypatch, Turns(step_s), 5, 4)
    assert autotune._fastest(found) == 2
    # one that left looks better than it, and knows less
    assert autotune._fastest([*found, CandidateTiming(0.8, 4, in_final=False)]) == 2


@pytest.mark.parametrize(("count", "rounds"), [(4, 10), (9, 3)])
def test_few_candidates_or_rounds_are_not_halved(monkeypatch: pytest.MonkeyPatch, count: int, rounds: int) -> None:
    found = run(monkeypatch, turns := Turns(lambda name, number: 1.0), count, rounds)
    assert [took for _, took in turns.taken] == [rounds]
    assert {(one.steps, one.in_final) for one in found} == {(2 * rounds, True)}
