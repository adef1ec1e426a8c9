"""Options of `xbench validate` that say which links are measured, and how many cells are drawn.

A part of `xbench.config`, which names these classes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from xbench.errors import SpecError
from xbench.option_fields import listed, option, whole

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


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """Matrix of shaped links: every rate, between the given numbers of hosts. Or cells that are drawn from it."""

    rates: str = option(
        "--rates", default="10gbit,1gbit,100mbit", metavar="R,S,...", help="Rates of the links, as tc(8) writes them."
    )
    hosts: str = option(
        "--hosts",
        default="2",
        metavar="N,M,...",
        help="Numbers of hosts to measure on, each 2 to 8. With --cells, a number that is named twice has twice the "
        "weight.",
    )
    held_out: int | None = whole(
        "--held-out",
        2,
        8,
        metavar="H",
        help="Also measure on H hosts, and predict that from the measurements on --hosts.",
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
        hosts = [_hosts(part, self.hosts) for part in self.hosts.split(",")]
        if self.held_out in hosts:
            raise SpecError(
                f"--held-out: {self.held_out} hosts are those that are measured", hint=f"try {2 * max(hosts)}"
            )
        if self.held_out is not None and self.cells is not None:
            raise SpecError(
                "--held-out is for a whole matrix, and --cells draws a part of one",
                hint="name the numbers of hosts in --hosts",
            )
        if self.seed is not None and self.cells is None:
            raise SpecError("--seed draws cells, and --cells does not say how many", hint="try --cells 24")
        from xbench.fabrics import parse_fabric

        rates = listed("--rates", self.rates)
        return Matrix(
            [parse_fabric(f"shaped:hosts={count},rate={rate}") for count in hosts for rate in rates],
            [parse_fabric(f"shaped:hosts={self.held_out},rate={rate}") for rate in rates if self.held_out],
            self.cells,
            self.seed or 0,
        )


def _hosts(part: str, text: str) -> int:
    if part.strip().isdecimal() and 2 <= int(part) <= 8:
        return int(part)
    raise SpecError(f"--hosts: {part.strip()!r} in {text!r} is not a number from 2 to 8", hint="write 2 or 2,3,4")
