"""Names for Nsight Systems: ranges and marks that a timeline of the whole process shows beside its kernels.

With `--nvtx` every timed block is a range, and in it every step, or turn, and in that the launch of every bucket;
Nsight projects a launch onto the GPU as long as its collective runs there. What a rank notes about itself ("profile
step 3 of 18", "waiting for gradients") becomes a mark.

Without it nothing is called. With it and no Nsight around, a range costs well under a microsecond. The module
(`torch.cuda.nvtx`) is passed in: tests give one that writes down what it hears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from xbench.crossover.job import TurnTaker
from xbench.schedules.bucket import Work
from xbench.units import format_bytes

_NOTHING: AbstractContextManager[None] = nullcontext()


class Ranges:
    """Ranges and marks of one rank; `nvtx` None is off."""

    def __init__(self, nvtx: Any | None = None) -> None:
        self._nvtx = nvtx
        self._bucket = 0

    @classmethod
    def when(cls, asked: bool) -> Ranges:
        """torch's own where they are asked for."""
        if not asked:
            return cls()
        import torch.cuda.nvtx

        return cls(torch.cuda.nvtx)

    @property
    def on(self) -> bool:
        """Whether anything is marked."""
        return self._nvtx is not None

    def mark(self, text: str) -> None:
        """Something happened now."""
        if self._nvtx is not None:
            self._nvtx.mark(text)

    def range(self, name: str) -> AbstractContextManager[None]:
        """What happens inside belongs together; ranges of one thread may stand in each other."""
        return _NOTHING if self._nvtx is None else self._ranged(name)

    def step(self, number: int, what: str = "step") -> AbstractContextManager[None]:
        """A step or turn, counted from 1: its buckets are counted from 1 again."""
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

    def watch(self, nbytes: int, start: Callable[[], Work]) -> Work:
        """Launch a bucket inside a range of its own: for `Handle.watch`."""
        self._bucket += 1
        with self.range(f"bucket {self._bucket}, {format_bytes(nbytes)}"):
            return start()

    def turns(self, turns: TurnTaker) -> TurnTaker:
        """The same turns, each a range from when the device is ours until it is passed on."""
        return turns if self._nvtx is None else _RangedTurns(turns, self)


class _RangedTurns:
    """Turns of one block, counted."""

    def __init__(self, turns: TurnTaker, ranges: Ranges) -> None:
        self._turns, self._ranges, self._taken = turns, ranges, 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the device for the body of a `with`."""
        with self._turns.turn():
            self._taken += 1
            with self._ranges.step(self._taken, "turn"):
                yield

    def end_block(self) -> None:
        """Take no more turns in this block."""
        self._turns.end_block()
