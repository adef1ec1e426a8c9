"""Training loops of one rank: ordinary steps, and steps in turns with the other jobs.

A loop is the same in the parity check, in the timed blocks and in the timelines. The step's parts are the workload's
(`workloads.training_step`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch

from xbench.crossover.client import TurnClient
from xbench.crossover.job import TurnTaker, crossover_steps
from xbench.emulation.cuda import wait_for_device
from xbench.schedules.base import Handle
from xbench.workloads.workload import Workload

EARLIER = 0.5
"""Factor of the losses of all micro-steps but the last, in the parity check alone. Every micro-step has the same batch.
Without the factor, a schedule that sends the last gradient in place of the sum would pass."""


class Loops(ABC):
    """Loops over the workload of one job."""

    workload: Workload
    device: torch.device
    job: int
    first_session: Any
    """Session of the first job of this process, whose `acting` is the job that computes."""
    turns: TurnClient | None
    waits_for_device: bool
    """True if nothing that waits for the link may be queued while the host goes on: a link of flags needs that."""
    loss: torch.Tensor | None
    """Loss of the last step, before weighting."""
    norm: torch.Tensor | None = None
    """Norm of the last step's gradients before they were clipped."""
    weights: Iterator[float] | None
    """Factors of the losses of the next steps in the parity check (`reference.WEIGHTS`)."""

    @abstractmethod
    def note(self, state: str) -> None:
        """Note this rank's current work, for the parent."""

    def forward_backward(self, handle: Handle) -> None:
        """Zero the gradients, run forward and backward of every micro-step."""
        self.first_session.acting = self.job
        step = self.workload.under(handle.model, handle.no_sync, handle.synchronize)
        weight = next(self.weights) if self.weights is not None else None
        step.clear()
        step.accumulate(weight * EARLIER if weight is not None else 1.0)
        step.load()
        loss = step.forward_loss()
        self.loss = loss.detach()
        step.backward(loss, weight if weight is not None else 1.0)
        self.drain(handle)

    def drain(self, handle: Handle) -> None:
        """Wait for the device after a backward pass, if the link needs that."""
        if self.waits_for_device and handle.waits_in_backward:
            wait_for_device()

    def update(self, handle: Handle) -> None:
        """Update the parameters."""
        self.first_session.acting = self.job
        self.norm = self.workload.under(handle.model, handle.no_sync, handle.synchronize).update()

    def train(self, handle: Handle, steps: int, what: str, mark: Callable[[], None]) -> None:
        """Run `steps` ordinary training steps, with `mark()` after each."""
        for step in range(steps):
            self.note(f"{what} step {step + 1}: computing")
            self.forward_backward(handle)
            self.update(handle)
            mark()

    def train_in_turns(
        self,
        handle: Handle,
        block: int,
        pattern: tuple[int, ...],
        steps: int,
        what: str,
        mark: Callable[[], None],
        applied: Callable[[], None] | None = None,
        watch: Callable[[TurnTaker], TurnTaker] | None = None,
    ) -> None:
        """Run `steps` training steps in turns with the other jobs.

        `mark()` is called after a turn, `applied()` after an update. `watch` wraps the turns to observe them.
        """
        assert self.turns is not None
        turns = self.turns

        def wait_gradients() -> None:
            handle.synchronize()
            if self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            self.workload.fetch()
            self.note(f"{what}: waiting for its turn")

        def forward_backward() -> None:
            self.note(f"{what}: computing")
            self.forward_backward(handle)
            if self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()

        def apply() -> None:
            self.update(handle)
            if applied is not None:
                applied()

        self.turns.begin(block, pattern)
        crossover_steps(
            watch(turns) if watch is not None else turns,
            steps,
            wait_gradients=wait_gradients,
            apply=apply,
            forward_backward=forward_backward,
            mark=mark,
        )
