"""auto: the best buckets found for a link whose collectives and computation slow each other down.

Where collectives cost the computing processor time, the model of the exact plan `optimal` does not hold. `auto`
searches in a simulator with measured contention (`xbench.planning.auto`). The buckets of every other schedule and of
DDP are among its candidates. Before a comparison, the best candidates run for a few steps, and the fastest is taken.
Assumption: the machine behaves as it did in the measurement.
"""

from __future__ import annotations

from xbench.schedules.base import Overlapped


class Auto(Overlapped):
    """Buckets from the search."""

    needs_plan = True
