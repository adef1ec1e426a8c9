"""optimal: the exact best contiguous buckets for the measured cost of a collective.

Among all ways to cut the gradients, in the order in which they become ready, into consecutive buckets, the one whose
last collective ends first, by dynamic programming under any measured T: see `xbench.planning.merge.optimal`. Assumes
that communication is free for compute; where it is not, the prediction error in the report shows it.
"""

from __future__ import annotations

from xbench.schedules.base import Overlapped


class Optimal(Overlapped):
    """Buckets from the exact plan."""

    needs_plan = True
