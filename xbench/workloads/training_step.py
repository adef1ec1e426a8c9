"""The training step of every measurement: its parts, in the order in which a loop calls them.

    step.clear()
    step.accumulate()              # all micro-steps but the last
    loss = step.forward_loss()     # the last micro-step
    step.backward(loss)
    step.update()

**Accumulation** (`--accumulate N`). A step has N micro-steps, each with a forward and a backward pass over one batch.
Their losses are divided by N, so the gradient is the mean over all samples of the step. Only the last micro-step sends:
the others run inside the schedule's `no_sync`. Every micro-step has the same batch, because a measurement has one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.optim import Optimizer


class TrainingStep(ABC):
    """One rank's training step over `model`, which a schedule may have wrapped."""

    model: nn.Module
    optimizer: Optimizer
    micro_steps: int = 1
    """Forward and backward passes of a step. All but the last run inside `no_sync`."""
    no_sync: Callable[[], AbstractContextManager[object]] = staticmethod(nullcontext)
    """Context in which the attached schedule sends nothing."""

    @abstractmethod
    def forward_loss(self) -> Tensor:
        """Run forward on the batch and return the loss of one micro-step, a scalar with a graph behind it."""

    def clear(self) -> None:
        """Drop the gradients of the step before."""
        self.optimizer.zero_grad(set_to_none=True)

    def accumulate(self, weight: float = 1.0) -> None:
        """Run all micro-steps but the last, without communication. `weight` multiplies their losses."""
        for _ in range(self.micro_steps - 1):
            with self.no_sync():
                self.backward(self.forward_loss(), weight)

    def backward(self, loss: Tensor, weight: float = 1.0) -> None:
        """Run backward from the loss of one micro-step, times `weight`. Gradients add up."""
        factor = weight / self.micro_steps
        scaled = loss if factor == 1 else loss * factor
        scaled.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Update the parameters."""
        self.optimizer.step()
