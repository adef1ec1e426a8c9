"""How fast a real job is: as seen, else as declared, else a guess."""

from __future__ import annotations

import math

from xbench.cluster.jobs import Speed


class LearnedSpeed:
    """Steps a second on w workers: what was seen there; else what was declared, times what that was off elsewhere.

    Where nothing was declared: as on the largest number below that was seen (so that nobody gains by a guess), and one
    step a second while nothing was. `sizes` are the declared ones, or the caller's where nothing was.
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
            return self.declared(gpus) * self._off()
        below = [size for size in self.seen if size < gpus]
        if below:
            return self.seen[max(below)]
        return self.seen[min(self.seen)] if self.seen else 1.0

    def _off(self) -> float:
        """The geometric mean of seen over declared speeds; 1 while none was seen."""
        assert self.declared is not None
        known = self.declared.sizes
        ratios = [
            math.log(speed / self.declared(size)) for size, speed in self.seen.items() if known is None or size in known
        ]
        return math.exp(math.fsum(ratios) / len(ratios)) if ratios else 1.0
