"""Mode auto takes the search's favourite or DDP itself, after turns of steps. The steps are faked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from xbench.planning.auto import Candidate
from xbench.planning.contention import Contention
from xbench.planning.plans import Planner
from xbench.planning.step import Gradient, StepModel
from xbench.rank import autotune
from xbench.rank.autotune import Trial, try_favourite
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
PLANNER = Planner(STEP, COST, SHARED, buffer_bytes=(100_000,))
RANK: Any = SimpleNamespace(run=SimpleNamespace(modes=()))


def pair(*seconds: float) -> list[Candidate]:
    return [Candidate(f"c{k}", [[k]], step_s) for k, step_s in enumerate(seconds)]


@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [
        # a round is three steps of each candidate, and 25 s are to spend on five of them
        ((0.5, 0.5), 5), ((1.0, 1.0), 4), ((4.0, 4.3), 1), ((4.0, 4.4), 0), ((0.0, 0.0), 5),
        # of short steps, ten seconds on ten of them
        ((0.1, 0.1), 10), ((0.2, 0.2), 8), ((0.01, 0.01), 10),
    ],
)  # fmt: skip
def test_rounds_fill_the_time_and_are_few(seconds: tuple[float, float], rounds: int) -> None:
    assert autotune._rounds(pair(*seconds)) == rounds


def test_short_steps_are_timed_more_often() -> None:
    assert [autotune._steps(step_s) for step_s in (0.0, 0.001, 0.01, 0.03, 0.06, 2.0)] == [12, 12, 10, 4, 2, 2]


def tried(
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., list[float]],
    *,
    planner: Planner = PLANNER,
    mode: str = "auto",
    ddp: str | None = None,
    carrier: str | None = None,
) -> tuple[Plan, dict[str, Plan]]:
    """The plan after a trial whose steps `run` gives. `ddp` and `carrier`: why these refuse the model."""
    monkeypatch.setattr(Trial, "run", lambda trial, pair, rounds, steps: run(pair, rounds, steps))
    monkeypatch.setattr(Trial, "refusal", lambda trial, favourite: carrier if favourite.carrier else None)
    monkeypatch.setattr(autotune, "ddp_refusal", lambda session, attach: ddp)
    plans = planner.plans()
    plans.setdefault(mode, planner.plan(mode))
    return try_favourite(RANK, planner, plans, mode, {"unused.weight": 4}), plans


@pytest.mark.parametrize(
    ("favourite", "itself", "chosen"), [(1.0, 1.001, "auto"), (1.0, 1.0, "auto"), (1.0, 0.999, "ddp")]
)
def test_the_faster_of_the_favourite_and_ddp_itself_is_taken(
    monkeypatch: pytest.MonkeyPatch, favourite: float, itself: float, chosen: str
) -> None:
    asked: list[Any] = []

    def run(two: Sequence[Candidate], rounds: int, steps: int) -> list[float]:
        asked.append(([(one.name, one.carrier) for one in two], rounds, steps))
        return [favourite, itself]

    plan, plans = tried(monkeypatch, run)
    assert asked == [([("auto", None), ("DDP itself", "ddp")], 10, 2)]
    assert (plan.mode, plan.parts, plan.buckets) == ("auto", None, plans[chosen].buckets)
    assert plan.carrier == (None if chosen == "auto" else "ddp")
    # the prediction of DDP is that of its own reducer, which broadcasts buffers
    assert (plan.predicted_step_s, plan.timeline) == (plans[chosen].predicted_step_s, plans[chosen].timeline)
    assert plan.note is not None
    whose = "the buckets of 'auto'" if chosen == "auto" else "DDP's own reducer"
    assert plan.note.startswith(f"{whose}, after 20 steps each of: auto 1.00 s, DDP itself ")


def nothing_runs(*_: Any) -> list[float]:
    return pytest.fail("nothing was to be run")


def test_a_model_that_ddp_refuses_has_no_trial_and_the_note_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, plans = tried(monkeypatch, nothing_runs, ddp="its outputs are hidden")
    assert plan.buckets == plans["auto"].buckets
    assert plan.note == "the buckets of 'auto'; DDP itself was not tried: its outputs are hidden"


def test_steps_that_take_too_long_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, plans = tried(monkeypatch, nothing_runs, planner=replace(PLANNER, step=STEP.scaled(1000.0)))
    assert plan.buckets == plans["auto"].buckets
    assert plan.note is not None
    assert "longer than 25 s" in plan.note


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


def test_a_schedule_that_travels_on_may_be_the_favourite(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, plans = tried(monkeypatch, lambda *_: [1.0, 2.0], planner=AHEAD, mode="auto:forward")
    twin = plans["auto:forward"]
    assert twin.carrier in ("dear", "priority")
    assert (plan.mode, plan.carrier, plan.parts) == ("auto:forward", twin.carrier, twin.parts)
    assert plan.predicted_step_s == twin.predicted_step_s
    assert plan.note is not None
    assert plan.note.startswith(f"carried by '{plan.carrier}', after ")


def test_our_own_engine_takes_the_place_of_a_schedule_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = "a module is called twice"
    plan, plans = tried(monkeypatch, lambda *_: [1.0, 2.0], planner=AHEAD, mode="auto:forward", carrier=twice)
    assert (plan.carrier, plan.buckets) == (None, plans["auto"].buckets)
    assert plan.note is not None
    assert plan.note.endswith(f"; {plans['auto:forward'].carrier} was not tried: {twice}")


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
    # ends 3 7 9 13 here and 5 7 11 13 there: steps of 2, 4 and 2 after a warm-up of 5
    assert Trial(rank, PLANNER, {}).run(pair(1.0, 1.0), 2, 3) == [2.0, 2.0]
    assert attached == ["c0", "c1", "c1", "c0"]
    # the host waits for the device before the first step of a turn and after its last one, and not in between
    assert rank.happened == ["idle", "step", "step", "step", "step", "flush", "reset"] * 4


@pytest.mark.parametrize(
    ("second", "step_s"),
    [
        # the machine takes twice as long in the second round, and three times in the third
        ([[0.9] * 3, [1.8] * 3, [2.7] * 3], 1.8),
        ([[1.1] * 3, [2.2] * 3, [9.0] * 3], 2.2),  # disturbed in one round
        ([[1.0, 9.0, 1.0], [2.0] * 3, [3.0] * 3], 2.0),  # and in one step
    ],
)
def test_the_two_are_compared_within_rounds(
    monkeypatch: pytest.MonkeyPatch, second: list[list[float]], step_s: float
) -> None:
    monkeypatch.setattr(autotune.dist, "all_reduce", lambda *_, **__: None)
    first = [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    turns = {"c0": iter(first), "c1": iter(second)}
    monkeypatch.setattr(Trial, "turn", lambda trial, candidate, steps, what: [5.0, *next(turns[candidate.name])])
    rank: Any = TimedRank([])
    assert Trial(rank, PLANNER, {}).run(pair(1.0, 1.0), 3, 3) == pytest.approx([2.0, step_s])


def test_ddp_itself_rebuilds_its_buckets_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune.dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(Trial, "attach", lambda trial, candidate: nullcontext())
    rank: Any = TimedRank([5.0, 4.0, 1.0, 2.0])
    assert Trial(rank, PLANNER, {}).turn(Candidate("DDP itself", [[0]], 1.0, "ddp"), 2, "") == [9.0, 1.0, 2.0]
