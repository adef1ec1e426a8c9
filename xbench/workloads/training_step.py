"""The training step of every measurement: its parts, in the order in which a loop calls them.

    step.clear()
    step.accumulate()              # all micro-steps but the last, inside the schedule's `no_sync`
    step.load()                    # the next batch of the user's loader, for the last micro-step
    loss = step.forward_loss()     # under autocast with --amp
    step.backward(loss)            # of the loss divided by the number of micro-steps
    step.update()                  # with --clip, after all averaged gradients have arrived (`synchronize`)

With fp16 a GradScaler multiplies the loss. Before the update it divides the averaged gradients and skips a step in
which one is infinite or NaN. Averages are equal on all ranks, so all skip alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

FIRST_SCALE = 65536.0
"""torch's default factor of the loss."""


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
    scaler: GradScaler | None = None
    """Scaler of the loss, if it is scaled."""
    scaled_on: str | None = None
    """Type of the device on which losses are scaled; None: they are not."""
    first_scale: float = FIRST_SCALE
    """Factor of the loss in the first step."""

    is_fed: bool = False
    """True if batches come from a loader, so that `load` takes time."""
    loads_ahead: bool = False
    """True if the loader prepares the next batch while the step runs."""
    burst: int = 1
    """Steps whose batches are ready at about the same time: one of each worker of the loader."""

    @property
    def updates_together(self) -> bool:
        """True if every update waits for all gradients."""
        return self.max_norm is not None or self.scaler is not None

    def load(self) -> None:
        """Take the next batch of a loader; do nothing without one."""
        assert not self.is_fed

    def on_one_batch(self) -> AbstractContextManager[None]:
        """Return a context in which `load` takes the first batch again and again."""
        return nullcontext()

    def without_waits(self) -> AbstractContextManager[None]:
        """Return a context in which steps do not wait for a loader that works ahead: they keep the first batch."""
        return self.on_one_batch() if self.loads_ahead else nullcontext()

    @abstractmethod
    def forward_loss(self) -> Tensor:
        """Run forward on the batch and return the loss of one micro-step, a scalar with a graph behind it."""

    def reset_scaler(self) -> None:
        """Begin again with the scale `first_scale`, if losses are scaled."""
        if self.scaled_on is not None:
            self.scaler = GradScaler(self.scaled_on, init_scale=self.first_scale)
            self.scaler.scale(torch.zeros((), device=self.scaled_on))  # makes its tensors, before any loss

    def clear(self) -> None:
        """Drop the gradients of the step before."""
        self.optimizer.zero_grad(set_to_none=True)

    def accumulate(self, weight: float = 1.0, load: Callable[[], None] | None = None) -> None:
        """Run all micro-steps but the last, without communication. `weight` multiplies their losses.

        `load` is called in place of the step's own.
        """
        for _ in range(self.micro_steps - 1):
            (load or self.load)()
            with self.no_sync():
                self.backward(self.forward_loss(), weight)

    def backward(self, loss: Tensor, weight: float = 1.0) -> None:
        """Run backward from the loss of one micro-step, times `weight`. Gradients add up."""
        factor = weight / self.micro_steps
        scaled = loss if factor == 1 else loss * factor
        if self.scaler is not None:
            scaled = self.scaler.scale(scaled)
        scaled.backward()  # type: ignore[no-untyped-call]

    def update(self) -> Tensor | None:
        """Update the parameters. Return the norm of the gradients before they were clipped; None without clipping."""
        if not self.updates_together:
            self.optimizer.step()
            return None
        self.synchronize()
        if self.scaler is not None and self.max_norm is not None:
            self.scaler.unscale_(self.optimizer)
        norm = clip_grad_norm_(self.model.parameters(), self.max_norm) if self.max_norm is not None else None
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return norm
