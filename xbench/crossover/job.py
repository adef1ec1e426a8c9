"""Steps of a job that shares its device: it computes in turns and communicates between them.

A turn carries the work of two neighbouring steps, which lies between two waits for gradients:

    turn 1          turn 2                    ...   turn n
    fwd 1, bwd 1    apply 1, fwd 2, bwd 2           apply n-1, fwd n, bwd n     apply n
            └─ gradients 1 ─┘   └─ gradients 2 ─┘         └─ gradients n ─┘

The communication of gradients begins inside the turn, during the backward pass, and continues after it, while another
job has the device. The job waits for them *before* it asks for the device, so that it never holds the device idle. With
compute C and exposed communication M, two equal jobs then need max(2C, C + M) for a round instead of 2(C + M).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from xbench.errors import RunError


class TurnTaker(Protocol):
    """Interface of turns for the steps: `TurnClient`, or a fake in tests."""

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
    """Train `steps` steps of one block, one per turn. The block has begun (`TurnClient.begin`) and is ended here.

    - `wait_gradients` returns when the collectives of the last step have completed. It needs the network, not the
    device. - `apply` unpacks the averaged gradients and runs the optimizer and zero_grad. - `forward_backward` launches
    the collectives during the backward pass and leaves them in flight. It returns when the *device* has finished. With
    CUDA it ends by waiting for an event: a turn must not end while its kernels are queued. - `mark` records a step
    boundary; it is called after each turn.

    The last step's gradients are awaited and applied after the block, outside any turn and after the last mark. The
    model then has the state of plain training. An error of a callable passes through, after the block was ended; the
    model is then between two steps.
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
