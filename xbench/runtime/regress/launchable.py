"""A tree to give orders to, and an order under way, as a measurement sees them."""

from __future__ import annotations

from typing import Protocol

from xbench.records import SideName
from xbench.runtime.regress.protocol import Answer, Order


class Begun(Protocol):
    """An order under way: `sides.Underway`."""

    @property
    def alive(self) -> bool:
        """See there."""

    def answer(self, longest_s: float) -> Answer:
        """See there."""

    def __enter__(self) -> Begun: ...

    def __exit__(self, *_: object) -> None: ...


class Launchable(Protocol):
    """A tree to give orders to: `sides.Tree`."""

    @property
    def name(self) -> SideName:
        """base or head."""

    @property
    def title(self) -> str:
        """For people."""

    def carry_out(self, order: Order, longest_s: float) -> Answer:
        """See `sides.Tree`."""

    def begin(self, order: Order) -> Begun:
        """See `sides.Tree`."""
