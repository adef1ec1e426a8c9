"""auto: the best buckets found for a link whose collectives slow computation, and the other way round.

Where collectives cost the computing processor time, the exact plan of `optimal` is exact for a world that is not there.
`auto` searches in a simulator that knows what each costs the other (`xbench.planning.auto`), with the buckets of every
other schedule and of DDP among the candidates; before a comparison the best of them are run for a few steps, and the
fastest is taken. What it assumes: the machine behaves as it did while it was measured.
"""

from __future__ import annotations

from xbench.schedules.base import Overlapped


class Auto(Overlapped):
    """Buckets from the search."""

    needs_plan = True
