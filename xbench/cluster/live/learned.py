"""Speed of a real job: measured, else as declared, else a guess."""

from __future__ import annotations

import math

from xbench.cluster.jobs import Speed


class LearnedSpeed:
    """Steps a second on w workers: the measurement there, or else the declared speed times its error elsewhere.

    Without a declared speed it is that on the largest measured number below (so that a guess never promises a gain),
    and one step a second before any measurement. `sizes` are the declared ones, or else the caller's.
    """

    def __init__(self, declared: Speed | None, sizes: tuple[int, ...] | None = None) -> None:
        self.declared = declared
        self.seen: dict[int, float] = {}
        self._sizes = sizes

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """See `Speed`."""
        return self._sizes if self.declared is None else self.declared.sizes

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        if gpus in self.seen:
            return self.seen[gpus]
        if self.declared is not None:
            return self.declared(gpus) * self._correction()
        below = [size for size in self.seen if size < gpus]
        if below:
            return self.seen[max(below)]
        return self.seen[min(self.seen)] if self.seen else 1.0

    def _correction(self) -> float:
        """Geometric mean of measured over declared speeds; 1 without measurements."""
        assert self.declared is not None
        known = self.declared.sizes
        ratios = [
            math.log(speed / self.declared(size)) for size, speed in self.seen.items() if known is None or size in known
        ]
        return math.exp(math.fsum(ratios) / len(ratios)) if ratios else 1.0
