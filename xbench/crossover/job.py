"""The steps of a job that shares its device: compute in turns, communicate between them.

A turn carries the work of two neighbouring steps, because that is what lies between two waits for gradients:

    turn 1          turn 2                    ...   turn n
    fwd 1, bwd 1    apply 1, fwd 2, bwd 2           apply n-1, fwd n, bwd n     apply n
            └─ gradients 1 ─┘   └─ gradients 2 ─┘         └─ gradients n ─┘

Gradients start to travel inside the turn, during backward, and travel on after it, while the device is another job's.
The job waits for them *before* it asks for the device, so that it never holds the device idle: with compute C and
exposed communication M, two equal jobs then need max(2C, C + M) for a round in place of 2(C + M).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from xbench.errors import RunError


class TurnTaker(Protocol):
    """What the steps need of turns: `TurnClient`, or a fake in tests."""

    def turn(self) -> AbstractContextManager[None]:
        """Hold the device for the body of a `with`."""

    def end_block(self) -> None:
        """Take no more turns in this block."""


def crossover_steps(
    turns: TurnTaker,
    steps: int,
    *,
    wait_gradients: Callable[[], None],
    apply: Callable[[], None],
    forward_backward: Callable[[], None],
    mark: Callable[[], None],
) -> None:
    """Train `steps` steps of one block, one a turn. The block has begun (`TurnClient.begin`) and is ended here.

    - `wait_gradients` returns when the collectives of the last step are done; it needs the network, not the device.
    - `apply` unpacks the averaged gradients and runs the optimizer and zero_grad.
    - `forward_backward` launches the collectives during backward and leaves them in flight. It returns when the
      *device* is done: with CUDA it ends by waiting for an event, because a turn that is passed on while kernels are
      queued is no turn.
    - `mark` records a step boundary; it is called after each turn.

    The last step's gradients are waited for and applied after the block, outside any turn and after the last mark:
    the model is then where plain training would be. An error of a callable passes through, after the block was ended;
    the model is then between two steps.
    """
    in_flight = False
    try:
        for _ in range(steps):
            if in_flight:
                wait_gradients()
            with turns.turn():
                if in_flight:
                    apply()
                forward_backward()
            in_flight = True
            mark()
    except BaseException:
        with contextlib.suppress(RunError):
            turns.end_block()
        raise
    turns.end_block()
    if in_flight:
        wait_gradients()
        apply()
