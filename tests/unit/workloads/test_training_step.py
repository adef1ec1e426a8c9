"""The parts of a training step: what each does to the gradients, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from xbench.workloads.training_step import TrainingStep


class Step(TrainingStep):
    """y = w · x with x = 1 and then 2, …; notes what is called."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.called: list[str] = []
        self.optimizer.register_step_pre_hook(lambda *_: self.called.append("update"))
        self.x = 0.0
        with torch.no_grad():
            self.model.weight.fill_(0.0)

    def forward_loss(self) -> Tensor:
        self.called.append("forward")
        self.x += 1.0
        return self.model(torch.tensor([self.x])).sum()

    @property
    def gradient(self) -> float:
        return self.model.weight.grad.item()


def test_a_step_of_one_micro_step_sends_nothing_apart() -> None:
    step = Step()
    step.no_sync = lambda: pytest.fail("the only micro-step communicates")
    step.clear()
    step.accumulate()
    step.backward(step.forward_loss())
    assert step.update() is None
    assert (step.called, step.model.weight.item()) == (["forward", "update"], -1.0)


def test_every_micro_step_but_the_last_takes_its_batch_in_accumulate() -> None:
    step = Step()
    step.micro_steps, step.is_fed = 3, True
    step.accumulate(load=lambda: step.called.append("load"))
    assert step.called == ["load", "forward", "load", "forward"]
    step.load = lambda: step.called.append("own")  # type: ignore[method-assign]
    step.accumulate()
    assert step.called[4:] == ["own", "forward", "own", "forward"]


def test_micro_steps_average_and_all_but_the_last_are_silent() -> None:
    step = Step()

    @contextmanager
    def no_sync() -> Iterator[None]:
        step.called.append("silent")
        yield
        step.called.append("loud")

    step.micro_steps, step.no_sync = 3, no_sync
    step.clear()
    step.accumulate()
    assert step.gradient == pytest.approx((1 + 2) / 3)
    step.backward(step.forward_loss())
    assert step.gradient == pytest.approx((1 + 2 + 3) / 3)
    assert step.called == ["silent", "forward", "loud"] * 2 + ["forward"]


def test_weights_multiply_the_losses() -> None:
    step = Step()
    step.micro_steps = 2
    step.accumulate(0.5)
    step.backward(step.forward_loss(), 4.0)
    assert step.gradient == pytest.approx((0.5 * 1 + 4 * 2) / 2)


@pytest.mark.parametrize(("max_norm", "left"), [(0.25, -0.25), (4.0, -1.0)])
def test_gradients_are_averaged_before_they_are_clipped(max_norm: float, left: float) -> None:
    step = Step()
    step.max_norm = max_norm

    def synchronize() -> None:
        step.called.append("wait")
        step.model.weight.grad.mul_(0.5)  # of 2 on this rank, and 0 on another

    step.synchronize = synchronize
    step.x = 1.0
    step.backward(step.forward_loss())
    assert step.update().item() == 1.0
    assert step.model.weight.item() == pytest.approx(left, abs=1e-5)
    assert step.called == ["forward", "wait", "update"]


def test_a_step_with_an_infinite_gradient_is_skipped_and_the_scale_halved() -> None:
    step = Step()
    step.scaled_on, step.first_scale, step.max_norm = "cpu", 1024.0, 0.5
    step.reset_scaler()
    assert step.scaler is not None
    assert step.updates_together
    step.x = 1.0
    step.backward(step.forward_loss())
    assert step.gradient == 2 * 1024
    step.update()
    assert step.gradient == pytest.approx(0.5)  # divided by the scale, and then clipped
    assert (step.model.weight.item(), step.scaler.get_scale()) == (pytest.approx(-0.5), 1024.0)

    step.clear()
    step.synchronize = lambda: step.model.weight.grad.fill_(torch.inf)  # what another rank had
    step.backward(step.forward_loss())
    step.update()
    assert (step.model.weight.item(), step.scaler.get_scale()) == (pytest.approx(-0.5), 512.0)
    assert step.called == ["forward", "update", "forward"]

    step.reset_scaler()
    assert step.scaler.get_scale() == 1024.0
