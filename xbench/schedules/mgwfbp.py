"""mgwfbp: merged-gradient wait-free backpropagation, the paper's greedy (Shi, Chu, Li; arXiv 1912.09268).

Under T(M) = a + bM, a layer is merged into the next one to become ready when the wait for it costs less than the
latency of a separate collective: see `xbench.planning.merge.mgwfbp`. It follows the paper, as a peer for comparisons.
It is not optimal under its own model (see `optimal`).
"""

from __future__ import annotations

from xbench.schedules.base import Overlapped


class MgWfbp(Overlapped):
    """Buckets from the paper's greedy merging."""

    needs_plan = True
