"""An exclusive policy that a sharing one can order by: it says who has GPUs of its own, and nothing else.

Under a sharing policy a job may run without having GPUs of its own, or slower than alone. Its order is told so.
"""

from __future__ import annotations

from abc import abstractmethod

from xbench.cluster.policy import Active, Policy


class Order(Policy):
    """See the module."""

    @abstractmethod
    def withdrawn(self, job: Active, now_s: float) -> None:
        """A job that waits here will never need GPUs: it has finished on somebody else's."""

    def retimed(self, job: Active, now_s: float) -> None:
        """Its remaining work, or its speed from now on, is not what one would think: it shares GPUs, or did."""
