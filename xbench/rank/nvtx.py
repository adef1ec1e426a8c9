"""NVTX ranges and marks for Nsight Systems, shown in the timeline of the whole process.

With `--nvtx` every timed block is a range. Inside it every step, or turn, is a range, and in that the launch of every
bucket. Nsight projects a launch onto the GPU for the duration of its collective. A rank's notes ("profile step 3 of
18", "waiting for gradients") become marks.

Without `--nvtx` nothing is called. With it but without Nsight, a range costs well under a microsecond. The module
(`torch.cuda.nvtx`) is a parameter, so that tests can pass one that records calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from xbench.crossover.job import TurnTaker
from xbench.schedules.bucket import Work
from xbench.units import format_bytes

_NOTHING: AbstractContextManager[None] = nullcontext()


class Ranges:
    """Ranges and marks of one rank. `nvtx` None turns them off."""

    def __init__(self, nvtx: Any | None = None) -> None:
        self._nvtx = nvtx
        self._bucket = 0

    @classmethod
    def when(cls, asked: bool) -> Ranges:
        """Return ranges of torch's NVTX module if `asked`, else ranges that are off."""
        if not asked:
            return cls()
        import torch.cuda.nvtx

        return cls(torch.cuda.nvtx)

    @property
    def on(self) -> bool:
        """True if ranges and marks are on."""
        return self._nvtx is not None

    def mark(self, text: str) -> None:
        """Mark the present instant."""
        if self._nvtx is not None:
            self._nvtx.mark(text)

    def range(self, name: str) -> AbstractContextManager[None]:
        """Return a context that is a range. Ranges of one thread may be nested."""
        return _NOTHING if self._nvtx is None else self._ranged(name)

    def step(self, number: int, what: str = "step") -> AbstractContextManager[None]:
        """Return the range of a step or turn, counted from 1. The count of its buckets starts again at 1."""
        self._bucket = 0
        return _NOTHING if self._nvtx is None else self._ranged(f"{what} {number}")

    @contextmanager
    def _ranged(self, name: str) -> Iterator[None]:
        assert self._nvtx is not None
        self._nvtx.range_push(name)
        try:
            yield
        finally:
            self._nvtx.range_pop()

    def watch(self, nbytes: int, start: Callable[[], Work], kind: str = "bucket") -> Work:
        """Launch a bucket inside a range of its own, for `Handle.watch`."""
        self._bucket += 1
        with self.range(f"{kind} {self._bucket}, {format_bytes(nbytes)}"):
            return start()

    def turns(self, turns: TurnTaker) -> TurnTaker:
        """Return the same turns, each as a range from the grant of the device until it is passed on."""
        if self._nvtx is None:
            return turns
        numbers = itertools.count(1)

        @contextmanager
        def ranged(turns: TurnTaker) -> Iterator[None]:
            with turns.turn(), self.step(next(numbers), "turn"):
                yield

        return HeldTurns(turns, ranged)


class HeldTurns:
    """Turns of one block, each of which is the context that `hold` makes of them."""

    def __init__(self, turns: TurnTaker, hold: Callable[[TurnTaker], AbstractContextManager[None]]) -> None:
        self._turns, self._hold = turns, hold

    def turn(self) -> AbstractContextManager[None]:
        """Hold the device for the body of a `with`."""
        return self._hold(self._turns)

    def end_block(self) -> None:
        """Take no more turns in this block."""
        self._turns.end_block()
