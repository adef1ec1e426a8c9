"""Interface of exclusive policies that can be the order of a sharing policy: they choose the owners of GPUs.

Under a sharing policy a job may run without its own GPUs, or slower than alone. The order is notified of that.
"""

from __future__ import annotations

from abc import abstractmethod

from xbench.cluster.policy import Active, Policy


class Order(Policy):
    """An exclusive policy that a sharing policy can use."""

    @abstractmethod
    def withdrawn(self, job: Active, now_s: float) -> None:
        """Forget a waiting job, which has finished on another job's GPUs."""

    def retimed(self, job: Active, now_s: float) -> None:
        """Update a job whose remaining work or speed changed because it shares GPUs, or did."""
