from __future__ import annotations

import pytest

from xbench.planning.step import StepModel
from xbench.records import Layer, StepTimes, Tensor


def layer(name: str, nbytes: int, ready_s: float) -> Layer:
    tensor = Tensor(name=f"{name}.weight", elements=nbytes // 4, bytes=nbytes, dtype="float32", ready_s=ready_s)
    return Layer(
        name=name, kind="Linear", parameters=nbytes // 4, grad_bytes=nbytes, forward_s=0.1, backward_s=0.2,
        ready_s=ready_s, share=0.1, tensors=[tensor],
    )  # fmt: skip


def times(bare_s: float, **parts: float) -> StepTimes:
    values = {"forward_s": 1.0, "backward_s": 2.0, "optimizer_s": 1.0} | parts
    return StepTimes(
        **values, step_s=4.0, step_ci95=(4.0, 4.0), uninstrumented_step_s=bare_s, uninstrumented_ci95=(bare_s, bare_s),
        overhead_ratio=0.0, overhead_ci95=(0.0, 0.0), steps=4, warmup_steps=0,
    )  # fmt: skip


def test_parts_are_scaled_to_the_bare_step() -> None:
    step = StepModel.of([layer("a", 8, 2.0), layer("b", 16, 1.0)], times(bare_s=2.0))
    assert (step.forward_s, step.backward_s, step.optimizer_s, step.compute_s) == (0.5, 1.0, 0.5, 2.0)
    assert [(g.name, g.nbytes, g.ready_s) for g in step.gradients] == [("b.weight", 16, 0.5), ("a.weight", 8, 1.0)]
    assert step.grad_bytes == 24
    assert step.parts == {"forward_s": 0.5, "backward_s": 1.0, "optimizer_s": 0.5}


def test_a_faster_device_scales_everything() -> None:
    step = StepModel.of([layer("a", 8, 2.0)], times(bare_s=4.0)).scaled(0.25)
    assert (step.compute_s, step.backward_s, step.gradients[0].ready_s) == (1.0, 0.5, 0.5)


def with_loaded(one: Layer, loaded_s: float | None) -> Layer:
    tensors = [tensor.model_copy(update={"ready_loaded_s": loaded_s}) for tensor in one.tensors]
    return one.model_copy(update={"tensors": tensors})


def test_gradients_under_load_are_in_their_own_order_and_scaled_alike() -> None:
    layers = [
        with_loaded(layer("a", 8, 2.0), 3.0),
        with_loaded(layer("b", 16, 1.0), 4.0),
        with_loaded(layer("c", 24, 0.5), None),  # not measured under load: as it was quietly
    ]
    step = StepModel.of(layers, times(bare_s=2.0))
    assert [g.name for g in step.gradients] == ["c.weight", "b.weight", "a.weight"]
    assert step.loaded is not None
    assert [(g.name, g.nbytes, g.ready_s) for g in step.loaded] == [
        ("c.weight", 24, 0.25),
        ("a.weight", 8, 1.5),
        ("b.weight", 16, 2.0),
    ]
    faster = step.scaled(0.5)
    assert faster.loaded is not None
    assert [g.ready_s for g in faster.loaded] == [0.125, 0.75, 1.0]
    assert [g.ready_s for g in faster.gradients] == [0.125, 0.25, 0.5]


def test_without_any_ready_time_under_load_there_are_none() -> None:
    step = StepModel.of([layer("a", 8, 2.0), layer("b", 16, 1.0)], times(bare_s=4.0))
    assert step.loaded is None
    assert step.scaled(2.0).loaded is None


def test_a_step_without_time_or_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be planned"):
        StepModel.of([layer("a", 8, 0.0)], times(bare_s=1.0, forward_s=0.0, backward_s=0.0, optimizer_s=0.0))
    with pytest.raises(ValueError, match="no gradients"):
        StepModel.of([], times(bare_s=1.0))
