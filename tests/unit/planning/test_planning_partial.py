"""Partial backpropagation in numbers: bands by time, levels, bytes, and the step to expect."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_cases import layer, line

from xbench.errors import SpecError
from xbench.planning.partial import Split, bands, broadcasts, cycle, options, predict, split_buckets
from xbench.planning.plans import Planner
from xbench.planning.step import Gradient, StepModel
from xbench.schedules import cycle_of, parse_mode, parse_modes


def test_bands_are_cut_by_time_and_not_by_count() -> None:
    seconds = {"d.weight": 1.0, "d.bias": 1.0, "c.weight": 2.0, "b.weight": 1.0, "a.weight": 3.0}
    assert bands(seconds, 2) == {"d.weight": 1, "d.bias": 1, "c.weight": 1, "b.weight": 2, "a.weight": 2}
    assert bands({f"layer{i}.w": 1.0 for i in range(8)}, 4) == {f"layer{i}.w": i // 2 + 1 for i in range(8)}


def test_a_layer_is_not_cut_and_the_first_is_of_level_one() -> None:
    found = bands({"big.weight": 5.0, "big.bias": 5.0, "small.w": 1.0}, 4)
    assert found == {"big.weight": 1, "big.bias": 1, "small.w": 4}
    assert bands({"a.w": 0.0, "b.w": 0.0}, 2) == {"a.w": 1, "b.w": 2}
    assert bands({"a.w": 0.0, "b.w": 0.0, "c.w": 1.0}, 4) == {"a.w": 1, "b.w": 1, "c.w": 2}


def test_spatial_levels_always_have_a_full_depth_worker() -> None:
    split = Split.of({}, 4)
    assert [split.level(worker, 7) for worker in range(4)] == [1, 2, 3, 4]
    assert split.members(3) == [2, 3]
    assert split.receivers(3) == [2, 0, 1]
    assert Split.of({"k": "2"}, 4).members(2) == [1, 3]
    assert Split.of({"k": "2"}, 4).receivers(1) == []


def test_temporal_levels_cycle_for_all() -> None:
    split = Split.of({"variant": "temporal", "k": "3"}, 2)
    assert [split.level(worker, step) for step in range(4) for worker in range(2)] == [1, 1, 2, 2, 3, 3, 1, 1]
    assert split.members(3) == [0, 1]
    assert split.receivers(3) == []


def test_more_levels_than_workers_are_refused() -> None:
    with pytest.raises(SpecError, match="k=3 needs a worker for each level, and there are 2"):
        Split.of({"k": "3"}, 2)


def test_bytes_of_a_band_in_bytes_of_all_workers() -> None:
    """Level 2 of 4 workers: an all-reduce of 3, 2 · 2/3, and one broadcast, over an all-reduce of 4, 2 · 3/4."""
    assert Split.of({"k": "1"}, 1).equivalent(1) == 1.0
    assert [Split.of({}, 2).equivalent(band) for band in (1, 2)] == [1.0, 1.0]
    assert Split.of({}, 4).equivalent(2) == pytest.approx((4 / 3 + 1) / 1.5)


def test_what_a_worker_sends() -> None:
    two = Split.of({}, 2)
    assert two.sent_bytes([100.0, 40.0]) == [100.0, 140.0]
    assert Split.of({"variant": "temporal", "k": "2"}, 2).sent_bytes([100.0, 40.0]) == [120.0, 120.0]
    four = Split.of({}, 4)
    assert four.sent_bytes([0.0, 0.0, 0.0, 8.0]) == [0.0 + 8.0, 0.0, 0.0, 16.0]
    assert sum(four.sent_bytes([0.0, 12.0, 0.0, 0.0])) == pytest.approx(3 * 2 * 2 / 3 * 12 + 12)


@pytest.mark.parametrize("size", range(1, 10))
def test_a_broadcast_reaches_everybody_once(size: int) -> None:
    assert sum(broadcasts(place, size) for place in range(size)) == size - 1


def test_buckets_are_cut_where_bands_meet() -> None:
    band_of = {"e": 1, "d": 1, "c": 2, "b": 2, "a": 2}
    assert split_buckets([["e"], ["d", "c"], ["b", "a"]], band_of) == [["e"], ["d"], ["c"], ["b", "a"]]


def test_options() -> None:
    assert options("spb", {}) == {}
    assert options("spb:k=4,variant=temporal", {"k": "4", "variant": "temporal"}) == {"variant": "temporal", "k": "4"}
    assert (cycle({}), cycle({"variant": "temporal"}), cycle({"variant": "temporal", "k": "3"})) == (1, 4, 3)
    for text, words in (
        ("spb:variant=sideways", "variant=sideways does not exist"),
        ("spb:k=1", "out of range 2 to 64"),
        ("spb:depth=2", "unknown option 'depth'"),
    ):
        with pytest.raises(SpecError, match=words):
            parse_mode(text)


def test_modes_in_a_list_keep_their_options() -> None:
    modes = parse_modes("ddp,spb,spb:variant=temporal,k=2")
    assert [mode.text for mode in modes] == ["ddp", "spb", "spb:variant=temporal,k=2"]
    assert [cycle_of(mode) for mode in modes] == [1, 1, 2]


LAYERS = [layer(f"l{i}", [(8, i + 1.0)], 0.5, backward_s=1.0) for i in range(4)]
BUCKETS = [["l0.0"], ["l1.0"], ["l2.0"], ["l3.0"]]


def _planner(beta: float) -> Planner:
    gradients = tuple(Gradient(f"l{i}.0", 8, i + 1.0) for i in range(4))
    return Planner(StepModel(gradients, 2.0, 4.0, 0.4), line(0.0, beta))


def test_a_step_is_predicted_as_the_mean_over_a_cycle() -> None:
    options = {"variant": "temporal", "k": "4"}
    assert predict(_planner(0.0), BUCKETS, LAYERS, options, 2) == pytest.approx(2.0 + 2.5 + 0.25)


def test_earlier_micro_steps_leave_out_the_prefix_too() -> None:
    options, planner = {"variant": "temporal", "k": "4"}, _planner(0.0)
    # Two earlier micro-steps of 2 + 4 at full depth are of 2 + 2.5 in the mean over a cycle.
    planner = replace(planner, step=replace(planner.step, micro_steps=3, accumulate_s=12.0))
    assert predict(planner, BUCKETS, LAYERS, options, 2) == pytest.approx(3 * (2.0 + 2.5) + 0.25)


def test_a_spatial_step_is_predicted_as_the_full_depth_worker_s() -> None:
    assert predict(_planner(0.0), BUCKETS, LAYERS, {}, 2) == pytest.approx(6.4)
