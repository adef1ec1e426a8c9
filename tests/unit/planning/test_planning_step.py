from __future__ import annotations

import math
from dataclasses import replace

import pytest
from planning_cases import layer, line, step_times

from xbench.planning.conversion import scaled_layer, scaled_times
from xbench.planning.plans import Planner
from xbench.planning.step import Gradient, StepModel, dtypes_of, from_layers


def test_parts_are_scaled_to_the_bare_step() -> None:
    step = StepModel.of([layer("a", [(8, 2.0)]), layer("b", [(16, 1.0)])], step_times(bare_s=2.0))
    assert (step.forward_s, step.backward_s, step.optimizer_s, step.compute_s) == (0.5, 1.0, 0.5, 2.0)
    assert [(g.name, g.nbytes, g.ready_s) for g in step.gradients] == [("b.0", 16, 0.5), ("a.0", 8, 1.0)]
    assert step.grad_bytes == 24
    assert step.parts == {"forward_s": 0.5, "backward_s": 1.0, "optimizer_s": 0.5}


def test_earlier_micro_steps_are_scaled_too_and_come_before_the_forward_pass() -> None:
    times = step_times(bare_s=4.0).model_copy(update={"micro_steps": 3, "accumulate_s": 4.0})
    step = StepModel.of([layer("a", [(8, 2.0)])], times)  # of 8 s with instruments
    assert (step.micro_steps, step.accumulate_s, step.ahead_s, step.compute_s) == (3, 2.0, 2.5, 4.0)
    assert step.parts == {"forward_s": 2.5, "backward_s": 1.0, "optimizer_s": 0.5}
    assert (step.scaled(0.5).micro_steps, step.scaled(0.5).accumulate_s) == (3, 1.0)


def test_the_wait_for_input_is_a_part_before_the_forward_pass() -> None:
    times = step_times(bare_s=4.0).model_copy(update={"input_s": 4.0})
    step = StepModel.of([layer("a", [(8, 2.0)])], times)  # of 8 s with instruments
    assert (step.input_s, step.forward_s, step.ahead_s, step.compute_s, step.least_s) == (2.0, 0.5, 2.5, 4.0, 0.0)
    assert step.parts == {"forward_s": 2.5, "backward_s": 1.0, "optimizer_s": 0.5}
    assert step.scaled(0.5).input_s == 1.0


def test_a_loader_that_works_ahead_is_no_part_and_the_least_step() -> None:
    times = step_times(bare_s=4.0).model_copy(update={"input_s": 4.0, "input_ahead": True})
    step = StepModel.of([layer("a", [(8, 2.0)])], times)
    assert (step.input_s, step.ahead_s, step.computed_s, step.compute_s, step.least_s) == (0.0, 0.5, 2.0, 4.0, 4.0)
    assert step.scaled(0.5).compute_s == 2.0


def test_gradients_under_load_are_in_their_own_order_and_scaled_alike() -> None:
    layers = [
        layer("a", [(8, 2.0, 3.0)]),
        layer("b", [(16, 1.0, 4.0)]),
        layer("c", [(24, 0.5, None)]),  # not measured under load: as it was quietly
    ]
    step = StepModel.of(layers, step_times(bare_s=2.0))
    assert [g.name for g in step.gradients] == ["c.0", "b.0", "a.0"]
    assert [(g.name, g.nbytes, g.ready_s) for g in step.loaded] == [
        ("c.0", 24, 0.25),
        ("a.0", 8, 1.5),
        ("b.0", 16, 2.0),
    ]
    faster = step.scaled(0.5)
    assert [g.ready_s for g in faster.loaded] == [0.125, 0.75, 1.0]
    assert [g.ready_s for g in faster.gradients] == [0.125, 0.25, 0.5]


def test_without_any_ready_time_under_load_there_are_none() -> None:
    step = StepModel.of([layer("a", [(8, 2.0)]), layer("b", [(16, 1.0)])], step_times(bare_s=4.0))
    assert step.loaded is None
    assert step.scaled(2.0).loaded is None


def test_a_step_without_time_or_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be planned"):
        StepModel.of([layer("a", [(8, 0.0)])], step_times(bare_s=1.0, forward_s=0.0, backward_s=0.0, optimizer_s=0.0))
    with pytest.raises(ValueError, match="no gradients"):
        StepModel.of([], step_times(bare_s=1.0))


def test_gradients_come_in_ready_order_and_ties_keep_the_layers_order() -> None:
    found = from_layers([layer("b", [(40, 0.2), (40, 0.1)]), layer("a", [(40, 0.1)])])
    assert found == [Gradient(name, 40, at, elements=10) for name, at in (("b.1", 0.1), ("a.0", 0.1), ("b.0", 0.2))]
    assert dtypes_of([replace(found[0], dtype="bf16"), *found]) == ["bf16", "float32"]


@pytest.mark.parametrize(
    ("nbytes", "ready_s", "elements"), [(-1, 0.0, 0), (1, -0.1, 0), (1, math.nan, 0), (1, math.inf, 0), (1, 0.0, -1)]
)
def test_numbers_that_cannot_be_are_refused(nbytes: int, ready_s: float, elements: int) -> None:
    with pytest.raises(ValueError, match="gradient 'w'"):
        Gradient("w", nbytes, ready_s, elements=elements)


def test_without_input_all_times_scale_alike() -> None:
    found = scaled_times(step_times(bare_s=4.0), 0.25)
    assert (found.forward_s, found.backward_s, found.optimizer_s) == (0.25, 0.5, 0.25)
    assert (found.step_s, found.step_ci95, found.uninstrumented_step_s) == (1.0, (1.0, 1.0), 1.0)


def test_the_wait_for_input_stays_as_long() -> None:
    was = step_times(bare_s=4.0).model_copy(update={"input_s": 4.0})  # 8 s with instruments
    found = scaled_times(was, 0.25)
    assert (found.input_s, found.forward_s) == (4.0, 0.25)
    assert found.uninstrumented_step_s == pytest.approx(2.0 + 0.25 * 2.0)
    layers = [layer("a", [(8, 2.0)])]
    assert StepModel.of(layers, found).input_s == pytest.approx(StepModel.of(layers, was).input_s)


def test_ready_times_under_traffic_are_those_of_the_nearest_number_of_buckets() -> None:
    count = 16
    tensors = [(1000, float(k), 2.0 * k) for k in range(1, count + 1)]
    made = layer("net", tensors)
    each = [t.model_copy(update={"ready_loaded_each_s": 3.0 * t.ready_s}) for t in made.tensors]
    layers = [made.model_copy(update={"tensors": each})]
    times = step_times(bare_s=18.0, forward_s=1.0, backward_s=16.0, optimizer_s=1.0)
    step = StepModel.of(layers, times)
    assert [gradient.ready_s for gradient in step.loaded_each] == [3.0 * k for k in range(1, count + 1)]
    assert step.scaled(2.0).loaded_each == StepModel.of(layers, step_times(36.0, **step.parts)).loaded_each
    planner = Planner(step, line(100.0, 1e-9))  # one bucket is best

    def backward_s(planner: Planner, buckets: int) -> float:
        """Time of backward under so many buckets, the last of which has what is left."""
        cut = [*([k] for k in range(buckets - 1)), list(range(buckets - 1, count))]
        return planner.simulate("wfbp", cut).timeline.compute[1].end_s - step.forward_s

    # twice as long under the plan's own traffic, and three times under that of sixteen collectives
    limit = math.sqrt(len(planner.exact) * count)
    assert limit == 4.0
    for buckets in range(1, count + 1):
        assert backward_s(planner, buckets) == pytest.approx(48.0 if buckets > limit else 32.0)
    before = replace(planner, step=replace(step, loaded_each=None))
    assert backward_s(before, count) == pytest.approx(32.0)


def test_auto_tries_the_buckets_that_are_best_by_ready_times_under_traffic() -> None:
    """T = 1 s + M/1000. Undisturbed, all are ready at once and go together; under traffic the first goes ahead."""
    layers = [layer("net", [(10, 1.0, 1.0), *[(1000, 1.0, 9.0)] * 3])]
    planner = Planner(StepModel.of(layers, step_times(bare_s=11.0)), line(1.0, 1e-3))
    undisturbed = replace(planner, step=replace(planner.step, loaded=None))
    assert planner.plan("optimal").buckets == [["net.0"], ["net.1", "net.2", "net.3"]]
    assert undisturbed.plan("optimal").buckets == [["net.0", "net.1", "net.2", "net.3"]]
    tried = [[one.buckets for one in each.search().candidates()] for each in (planner, undisturbed)]
    assert [[[0], [1, 2, 3]] in buckets for buckets in tried] == [True, False]


def test_a_slower_device_has_all_its_ready_times_later() -> None:
    made = layer("net", [(8, 1.0, 2.0)])
    made = made.model_copy(update={"tensors": [made.tensors[0].model_copy(update={"ready_loaded_each_s": 3.0})]})
    (tensor,) = scaled_layer(made, 2.0).tensors
    assert (tensor.ready_s, tensor.ready_loaded_s, tensor.ready_loaded_each_s) == (2.0, 4.0, 6.0)
