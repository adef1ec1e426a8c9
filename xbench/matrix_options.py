"""Options of `xbench validate` that say which links are measured, and how many cells are drawn.

A part of `xbench.config`, which names these classes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from xbench.errors import SpecError
from xbench.option_fields import choice, listed, option, whole

if TYPE_CHECKING:
    from xbench.spec import FabricSpec


class Matrix(NamedTuple):
    """Fabrics of a validation. Those in `held_out` are also predicted from the measurements on `fabrics`.

    With `cells`, so many cells are drawn by `seed`; a fabric that is named twice has twice the weight.
    """

    fabrics: Sequence[FabricSpec] = ()
    held_out: Sequence[FabricSpec] = ()
    cells: int | None = None
    seed: int = 0

    @property
    def all(self) -> list[FabricSpec]:
        """All fabrics, each once, in the order of measurement."""
        return list(dict.fromkeys([*self.fabrics, *self.held_out]))


MOST_HOSTS = {"shaped": 8, "emulated": 1024}
"""Largest number of hosts, or of workers, by the kind of links."""


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """Matrix of links: every rate, between the given numbers of hosts. Or cells that are drawn from it."""

    rates: str = option(
        "--rates", default="10gbit,1gbit,100mbit", metavar="R,S,...", help="Rates of the links, as tc(8) writes them."
    )
    links: str = choice(
        "--links",
        "shaped",
        "emulated",
        default="shaped",
        help="Kind of links: shaped ones between network namespaces, or emulated ones, where one process stands for "
        "all workers.",
    )
    hosts: str = option(
        "--hosts",
        default="2",
        metavar="N,M,...",
        help="Numbers of hosts to measure on: 2 to 8, or workers of emulated links. With --cells, a number that is "
        "named twice has twice the weight.",
    )
    held_out: str | None = option(
        "--held-out",
        metavar="H,I,...",
        help="Also measure on H hosts, and predict that from the measurements on the first of --hosts.",
    )
    cells: int | None = whole(
        "--cells",
        2,
        1000,
        help="Draw so many cells of the matrix; a quarter of them is held out. Each is measured once, on one commit.",
    )
    seed: int | None = whole("--seed", 0, 2**31 - 1, help="Random seed of the cells that --cells draws.  [default: 0]")

    def read(self) -> Matrix:
        """Parse the fabrics. Raises SpecError."""
        hosts = self._numbers("--hosts", self.hosts)
        held_out = self._numbers("--held-out", self.held_out) if self.held_out is not None else []
        again = next((count for count in held_out if count in hosts), None)
        if again is not None:
            raise SpecError(f"--held-out: {again} hosts are those that are measured", hint=f"try {2 * max(hosts)}")
        if held_out and self.cells is not None:
            raise SpecError(
                "--held-out is for a whole matrix, and --cells draws a part of one",
                hint="name the numbers of hosts in --hosts",
            )
        if self.seed is not None and self.cells is None:
            raise SpecError("--seed draws cells, and --cells does not say how many", hint="try --cells 24")
        return Matrix(self._fabrics(hosts), self._fabrics(held_out), self.cells, self.seed or 0)

    def _fabrics(self, hosts: Sequence[int]) -> list[FabricSpec]:
        from xbench.fabrics import parse_fabric

        size = "hosts" if self.links == "shaped" else "workers"
        rates = listed("--rates", self.rates)
        return [parse_fabric(f"{self.links}:{size}={count},rate={rate}") for count in hosts for rate in rates]

    def _numbers(self, flag: str, text: str) -> list[int]:
        """Return the numbers of hosts in '2,3,2', repeated ones too. Raises SpecError."""
        most = MOST_HOSTS[self.links]
        for part in text.split(","):
            if not part.strip().isdecimal() or not 2 <= int(part) <= most:
                raise SpecError(
                    f"{flag}: {part.strip()!r} in {text!r} is not a number from 2 to {most}", hint="write 2 or 2,3,4"
                )
        return [int(part) for part in text.split(",")]
