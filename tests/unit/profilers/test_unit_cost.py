"""The host's time for units and tensors, from steps of which the time is given by their units, and of real steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from xbench.profilers import unit_cost
from xbench.profilers.unit_cost import share_cores, unit_waits
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.sharded import Fsdp
from xbench.schedules.torch_calls import SHARDED, calls_timed
from xbench.workloads import parse_workload, resolve
from xbench.workloads.build import build

BLOCKS = ["layers.0", "layers.1", "layers.2"]
BARE_S, UPDATE_S = 10.0, 4.0


class _Wrapped(Handle):
    """A handle whose units are of one parameter each: those of the blocks, or of the first one that is given."""

    def __init__(self, setup: AttachConfig, blocks: int) -> None:
        super().__init__(setup.model)
        self._blocks = blocks

    @property
    def units(self) -> dict[str, list[str]]:
        named = {block: [f"{block}.weight"] for block in BLOCKS[: self._blocks]}
        return {**named, "": ["root", "weight", "bias"], "frozen": ["frozen"]}


class _Units(Schedule):
    def attach(self, setup: AttachConfig) -> Handle:
        return _Wrapped(setup, len(BLOCKS) if setup.units is None else len(setup.units))


class _Blocks(nn.Module):
    """Three blocks of a tensor each, a tensor of the root and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in BLOCKS)
        self.root = nn.Parameter(torch.zeros(4))
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)


@dataclass
class _Workload:
    model: nn.Module
    units: int = 0
    optimizer: None = None

    def under(self, model: Any, no_sync: object, synchronize: Callable[[], None]) -> _Workload:
        return _Workload(self.model, len(synchronize.__self__.units) - 1)  # type: ignore[attr-defined]


Measure = Callable[..., tuple[float, float]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measures units with `more_s`: what so many units add to a step."""

    def measure(more_s: Callable[[int], float], model: nn.Module | None = None) -> tuple[float, float]:
        def times(workload: Any, *_: object) -> unit_cost._StepTimes:
            return unit_cost._StepTimes(BARE_S + more_s(workload.units), UPDATE_S)

        monkeypatch.setattr(unit_cost, "_step_times", times)
        return unit_cost.measure_unit_cost(_Units(), None, _Workload(model or _Blocks()), 2)

    return measure


def test_a_unit_is_the_difference_and_tensors_are_the_rest(measured: Measure) -> None:
    """The unit that trains nothing counts for no unit, as in predictions."""
    assert measured(lambda units: 0.5 * units + 3.0 if units else 0.0) == pytest.approx((0.5, 0.75))


@pytest.mark.parametrize(
    ("apart_s", "joined_s", "expected"),
    [
        (4.0, 6.0, (0.0, 1.0)),  # one large unit takes longer: a unit costs nothing, and the step of blocks is kept
        (4.0, -1.0, (1.0, 0.0)),  # all is of the units
        (-1.0, -1.0, (0.0, 0.0)),  # below the noise
    ],
)
def test_times_are_not_below_zero(
    measured: Measure, apart_s: float, joined_s: float, expected: Sequence[float]
) -> None:
    assert measured(lambda units: {0: 0.0, 4: apart_s, 2: joined_s}[units]) == pytest.approx(expected)


def test_a_smaller_update_does_not_count_as_a_gain(measured: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that owns a quarter updates in a quarter of the time. Predictions subtract the rest by themselves."""
    monkeypatch.setattr(unit_cost, "_own_share", lambda _: 0.25)
    gained_s = UPDATE_S * 0.75
    assert measured(lambda units: 0.5 * units + 3.0 - gained_s if units else 0.0) == pytest.approx((0.5, 0.75))


def test_a_model_without_blocks_has_one_unit_and_its_time_is_of_the_tensors(
    measured: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BLOCKS", [])
    assert measured(lambda units: 3.0 if units else 0.0, nn.Linear(2, 2)) == pytest.approx((0.0, 1.5))


def test_a_failing_step_leaves_the_model_as_it_was(measured: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    detached = []
    monkeypatch.setattr(_Wrapped, "meets_at_detach", True, raising=False)
    monkeypatch.setattr(_Wrapped, "detach", lambda self: detached.append(self))

    def fails(units: int) -> float:
        if units:
            raise RuntimeError("mixed Tensor and DTensor")
        return 0.0

    with pytest.raises(RuntimeError, match="mixed"):
        measured(fails)
    assert len(detached) == 1


@pytest.fixture
def silent() -> Iterator[dist.ProcessGroup]:
    """A group of four ranks that sends nothing, in this process."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


def test_real_units_are_measured_and_every_step_is_noted(silent: dist.ProcessGroup) -> None:
    noted: list[str] = []
    spec = resolve(parse_workload("mobilenet_v3_small", batch_size=2, image_size=32), "cpu")
    workload = build(spec, torch.device("cpu"))
    cost_s = unit_cost.measure_unit_cost(Fsdp(), silent, workload, 2, turns=1, note=noted.append)
    assert all(isfinite(value) and value >= 0 for value in cost_s)
    assert len(noted) == 3 * (unit_cost.WARMUP + 2)


def test_a_rank_of_four_owns_a_quarter(silent: dist.ProcessGroup) -> None:
    model = nn.Linear(4, 8)
    optimizer = torch.optim.SGD(model.parameters())
    handle = Fsdp().attach(AttachConfig(model, optimizer, group=silent, wait="step"))
    assert unit_cost._own_share(handle.model) == 0.25
    handle.detach()
    assert unit_cost._own_share(model) == 1.0


def test_the_time_in_collectives_is_known(silent: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dist.all_reduce
    monkeypatch.setattr(time, "perf_counter", iter([1.0, 1.5, 3.0, 3.25]).__next__)
    with calls_timed(SHARDED) as spent_s:
        dist.all_reduce(torch.zeros(1), group=silent)
        dist.all_reduce(torch.zeros(1), group=silent)
        assert spent_s() == 0.75
    assert dist.all_reduce is plain


class _Clocked:
    """A workload whose forward pass takes 2 s, its update 1 s, and a collective between them 5 s of a clock by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(dist, "all_reduce", partial(self._passes, 5.0))
        self.clear = self.accumulate = self.load = lambda: None
        self.forward_loss = partial(self._passes, 2.0)
        self.update = partial(self._passes, 1.0)

    def backward(self, loss: object) -> None:
        dist.all_reduce(torch.zeros(1))

    def _passes(self, seconds: float, *_: object) -> None:
        self.now_s += seconds


def test_a_step_counts_without_its_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    found = unit_cost._step_times(_Clocked(monkeypatch), 3, lambda: None)
    assert found == unit_cost._StepTimes(step_s=3.0, update_s=1.0)


UNITS = {"blocks.0": ["a", "b"], "blocks.1": ["c"], "": ["head"]}


def profile(forward_s: list[float], ready_s: list[float | None]) -> dict[str, Any]:
    """One warm-up step, whose times do not count, and three that are alike."""
    layers = [
        {"name": name, "forward_s": [9.0] + 3 * [ahead_s], "tensors": [{"name": name, "ready_s": [9.0] + 3 * [time_s]}]}
        for name, ahead_s, time_s in zip(["a", "b", "c", "head"], forward_s, ready_s, strict=True)
    ]
    frozen = {"name": "frozen", "forward_s": [9.0] * 4, "tensors": []}
    return {"warmup": 1, "steps": {"step_s": [9.0] * 4}, "layers": [frozen, *layers]}


# Forward, by unit: 3, 3, 1 and 2, 5, 1. They meet after 3 + 5 + 1, and alone they take 7 and 8.
# Backward, by unit from the end: 1, 2, 4 and 2, 1, 3. They meet after 2 + 2 + 4, and alone they take 7 and 6.
UNEVEN = [profile([1.0, 2.0, 3.0, 1.0], [7.0, 5.0, 3.0, 1.0]), profile([1.0, 1.0, 5.0, 1.0], [6.0, 4.0, 3.0, 2.0])]
SLOW_EVERYWHERE = [profile([1.0] * 4, [4.0, 3.0, 2.0, 1.0]), profile([2.0] * 4, [8.0, 6.0, 4.0, 2.0])]
WITHOUT_A_GRADIENT = [profile([1.0] * 4, [4.0, 3.0, None, 1.0]), profile([1.0] * 4, [4.0, 3.0, None, 2.0])]


@pytest.mark.parametrize(
    ("ranks", "units", "waits_s"),
    [
        (UNEVEN, UNITS, (1.0, 1.0)),
        (UNEVEN, {"": ["a", "b", "c", "head"]}, (0.0, 0.0)),  # one unit adds no wait
        (SLOW_EVERYWHERE, UNITS, (0.0, 0.0)),
        (WITHOUT_A_GRADIENT, UNITS, (0.0, 1.0)),
    ],
)
def test_ranks_wait_where_the_slowest_differs_from_unit_to_unit(
    ranks: list[dict[str, Any]], units: dict[str, list[str]], waits_s: Sequence[float]
) -> None:
    assert unit_waits(ranks, units) == pytest.approx(waits_s)


@pytest.mark.parametrize(
    ("places", "shared"),
    [
        ([("a", {0}), ("a", {1})], False),
        ([("a", {0}), ("b", {0})], False),  # cores of two machines
        ([("a", {0}), ("a", {1}), ("a", {0}), ("a", {1})], True),
        ([("a", {0, 1}), ("a", {0, 1})], False),  # not bound, and enough
        ([("a", {0, 1})] * 3, True),
    ],
)
def test_ranks_share_cores_where_there_are_more_of_them(places: list[tuple[str, set[int]]], shared: bool) -> None:
    assert share_cores((machine, frozenset(cores)) for machine, cores in places) is shared
