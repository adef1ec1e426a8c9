"""optimal: the exact best contiguous buckets for the measured cost of a collective.

Gradients are cut, in ready order, into consecutive buckets. Dynamic programming under any measured T finds the cut
whose last collective ends first: see `xbench.planning.merge.optimal`. Assumption: communication does not slow
computation. Where it does, the report's prediction error shows it.
"""

from __future__ import annotations

from xbench.schedules.base import Overlapped


class Optimal(Overlapped):
    """Buckets from the exact plan."""

    needs_plan = True
