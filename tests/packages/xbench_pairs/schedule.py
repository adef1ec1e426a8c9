"""pairs: the buckets of the plan, on the shared engine."""

from __future__ import annotations

from xbench.schedules.base import Overlapped


class Pairs(Overlapped):
    """Two gradients a bucket."""

    needs_plan = True
