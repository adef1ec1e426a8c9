"""The training step of every measurement: its parts, in the order in which a loop calls them.

    step.clear()
    step.accumulate()              # all micro-steps but the last
    loss = step.forward_loss()     # the last micro-step
    step.backward(loss)
    step.update()

**Accumulation** (`--accumulate N`). A step has N micro-steps, each with a forward and a backward pass over one batch.
Their losses are divided by N, so the gradient is the mean over all samples of the step. Only the last micro-step sends:
the others run inside the schedule's `no_sync`. Every micro-step has the same batch, because a measurement has one.

**Clipping** (`--clip X`). `torch.nn.utils.clip_grad_norm_` scales the gradients of all parameters down to the norm X
before the update. The norm is of averaged gradients, so the step first waits for all of them (`synchronize`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer


class TrainingStep(ABC):
    """One rank's training step over `model`, which a schedule may have wrapped."""

    model: nn.Module
    optimizer: Optimizer
    micro_steps: int = 1
    """Forward and backward passes of a step. All but the last run inside `no_sync`."""
    no_sync: Callable[[], AbstractContextManager[object]] = staticmethod(nullcontext)
    """Context in which the attached schedule sends nothing."""
    synchronize: Callable[[], None] = staticmethod(lambda: None)
    """Waits until the attached schedule has averaged all gradients."""
    max_norm: float | None = None
    """Largest norm of all gradients together; None: they are not clipped."""

    @property
    def updates_together(self) -> bool:
        """True if every update waits for all gradients."""
        return self.max_norm is not None

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

    def update(self) -> Tensor | None:
        """Update the parameters. Return the norm of the gradients before they were clipped; None without clipping."""
        if not self.updates_together:
            self.optimizer.step()
            return None
        self.synchronize()
        norm = clip_grad_norm_(self.model.parameters(), self.max_norm) if self.max_norm is not None else None
        self.optimizer.step()
        return norm
