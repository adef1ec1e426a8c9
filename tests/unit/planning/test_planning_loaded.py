"""Ready times under traffic: those of a few buckets, and those of one collective per gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from planning_cases import layer, line, step_times

from xbench.planning.conversion import scaled_layer
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel


def test_ready_times_under_traffic_are_those_of_the_nearest_number_of_buckets() -> None:
    count = 16
    tensors = [(1000, float(k), 2.0 * k) for k in range(1, count + 1)]
    made = layer("net", tensors)
    each = [t.model_copy(update={"ready_loaded_each_s": 3.0 * t.ready_s}) for t in made.tensors]
    layers = [made.model_copy(update={"tensors": each})]
    times = step_times(bare_s=18.0, forward_s=1.0, backward_s=16.0, optimizer_s=1.0)
    step = StepModel.of(layers, times)
    assert step.loaded_each is not None
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
