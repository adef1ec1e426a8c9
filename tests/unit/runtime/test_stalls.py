"""What several buckets cost a short step: which are run, what is kept of the times, and what small collectives take."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from xbench.planning.contention import Contention
from xbench.planning.cost import Curve
from xbench.planning.gradients import Gradient
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.records import Contention as Measured
from xbench.records import ContentionPoint, CostModel
from xbench.runtime import stalls
from xbench.runtime.stalls import SHORT_S, Sending, as_in_steps, measure_sending, parts
from xbench.spec import Effort

COST = CostModel(
    backend="gloo", world_size=2, alpha_s=1e-4, beta_s_per_byte=1e-9, alpha_ci95=(1e-4, 1e-4), beta_ci95=(1e-9, 1e-9),
    max_relative_residual=0.0, points=[],
)  # fmt: skip
GRADIENTS = tuple(Gradient(f"g{k}", 1000, 1e-4 * (k + 1)) for k in range(12))
STEP = StepModel(GRADIENTS, forward_s=0.001, backward_s=0.002, optimizer_s=0.0)

PLANNER = Planner(STEP, COST)


def contention(loaded_s: float, launch_s: float = 1e-5) -> Measured:
    """Alone, both sizes take what the cost model says; beside computation the smaller takes `loaded_s`."""
    larger_s = 1e-4 + 65536e-9
    return Measured(
        launch_s=launch_s,
        points=[
            ContentionPoint(nbytes=size, in_flight=in_flight, alone_s=alone_s, loaded_s=took_s, compute_slowdown=1.5)
            for size, alone_s, took_s in ((4096, 1e-4 + 4096e-9, loaded_s), (65536, larger_s, larger_s))
            for in_flight in (1, 2)
        ],
    )


QUIET = contention(1e-4 + 4096e-9)


def predicted_s(measured: Measured, buckets: Any) -> float:
    """A step of these buckets under this contention [s]."""
    return replace(PLANNER, contention=Contention.of(measured, Curve.of(COST))).simulate("auto", buckets).step_s


class Rank:
    """As far as measuring stalls asks a rank."""

    group = None

    def __init__(self) -> None:
        self.run: Any = SimpleNamespace(effort=Effort())
        self.workload: Any = self
        self.optimizer: Any = self
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def zero_grad(self, set_to_none: bool) -> None:
        assert set_to_none


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine on which steps take what is predicted, and a quarter of a millisecond for each bucket but one.

    In the second round all takes a millisecond longer. Returned: the number of buckets of each block.
    """
    ran: list[int] = []

    def slowest_of_both(times: torch.Tensor, op: Any, group: Any) -> None:
        assert op == dist.ReduceOp.MAX  # the other rank is as fast

    def block(rank: Any, planner: Planner, buckets: list[list[int]], unused: Any, steps: int) -> list[float]:
        ran.append(len(buckets))
        known_s = predicted_s(QUIET, buckets) if buckets else planner.step.compute_s
        disturbed_s = 1e-3 if 5 < len(ran) <= 10 else 0.0
        return [9.0] + [known_s + disturbed_s + max(0, len(buckets) - 1) * 25e-5] * steps

    monkeypatch.setattr(stalls, "_block", block)
    monkeypatch.setattr(dist, "all_reduce", slowest_of_both)
    return ran


def test_every_kind_runs_in_every_round_and_what_was_not_predicted_is_kept(blocks: list[int]) -> None:
    found = as_in_steps(PLANNER, QUIET, measure_sending(Rank(), PLANNER, []))  # type: ignore[arg-type]
    assert sorted(blocks) == sorted([0, 1, 3, 8, 12] * stalls.ROUNDS)
    assert [stall.buckets for stall in found.stalls] == [1, 3, 8, 12]
    assert [stall.seconds for stall in found.stalls] == pytest.approx([0.0, 5e-4, 17.5e-4, 27.5e-4], abs=1e-12)
    assert found.points == QUIET.points


WITH_COSTS = QUIET.model_copy(update={"hook_s": 1e-6, "copy_s_per_byte": 1e-9, "meeting_s": 2e-5})
"""A step of GRADIENTS pays 2e-5 s for meeting, 1.2e-5 for hooks and as much for copies: 4.4e-5."""


@pytest.mark.parametrize(("less_s", "kept_s"), [(3e-5, -3e-5), (4.4e-5, -4.4e-5), (1e-3, -4.4e-5)])
def test_what_steps_take_less_is_kept_but_no_more_than_meeting_hooks_and_copies(less_s: float, kept_s: float) -> None:
    one = steps(WITH_COSTS)[0]
    found = as_in_steps(PLANNER, WITH_COSTS, [replace(one, beyond_s=one.beyond_s - less_s)])
    assert [stall.seconds for stall in found.stalls] == pytest.approx([kept_s], abs=1e-12)


def test_nothing_is_run_for_long_steps(blocks: list[int]) -> None:
    long = replace(PLANNER, step=replace(STEP, forward_s=SHORT_S))
    found = measure_sending(Rank(), long, [])  # type: ignore[arg-type]
    assert found == []
    assert blocks == []
    assert as_in_steps(PLANNER, QUIET, found) is QUIET


def steps(measured: Measured) -> list[Sending]:
    """Steps of one bucket and of one a tensor that take what is predicted under this contention."""
    kinds = [parts(PLANNER, 1), parts(PLANNER, 12)]
    return [Sending(buckets, predicted_s(measured, buckets) - STEP.compute_s) for buckets in kinds]


def test_small_collectives_take_what_steps_of_many_took() -> None:
    """What was measured by a thread that sleeps is 0.9 ms; what steps show is 0.3."""
    found = as_in_steps(PLANNER, contention(9e-4), steps(contention(3e-4)))
    assert [(p.nbytes, p.loaded_s) for p in found.points if p.nbytes == 4096] == [
        (4096, pytest.approx(3e-4, rel=2e-3))
    ] * 2
    assert [point for point in found.points if point.nbytes > 4096] == contention(9e-4).points[2:]
    assert [stall.seconds for stall in found.stalls] == pytest.approx([0.0, 0.0], abs=2e-6)


def test_small_collectives_take_no_less_than_a_launch() -> None:
    kinds = [parts(PLANNER, 1), parts(PLANNER, 12)]
    found = as_in_steps(PLANNER, contention(9e-4, launch_s=2e-4), [Sending(buckets, 0.0) for buckets in kinds])
    assert {p.loaded_s for p in found.points if p.nbytes == 4096} == {2e-4}
    assert [stall.seconds for stall in found.stalls] == [0.0, 0.0]


def test_a_loaded_time_below_a_launch_stays() -> None:
    quick = contention(1e-4, launch_s=5e-4)
    assert as_in_steps(PLANNER, quick, [Sending(parts(PLANNER, 12), 0.0)]).points == quick.points


def test_what_was_measured_stays_where_steps_took_as_long() -> None:
    slow = contention(9e-4)
    assert as_in_steps(PLANNER, slow, steps(slow)).points == slow.points


def test_parts_hold_every_gradient_once_in_order_and_about_the_same_bytes() -> None:
    for count in (1, 3, 8, 12):
        found = parts(PLANNER, count)
        assert [index for bucket in found for index in bucket] == list(range(12))
        assert len(found) == count
        assert max(map(len, found)) - min(map(len, found)) <= 1
    assert len(parts(PLANNER, 100)) == 12


def test_no_part_holds_two_dtypes() -> None:
    mixed = [Gradient(f"g{k}", 1000, 1e-4 * (k + 1), "float32" if k % 2 else "bfloat16") for k in range(4)]
    assert parts(replace(PLANNER, step=replace(STEP, gradients=tuple(mixed))), 1) == [[0], [1], [2], [3]]
