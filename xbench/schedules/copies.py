"""Ways to copy gradients into a collective and back, by name; `bucket` implements them. Imports no torch."""

from __future__ import annotations

from xbench.errors import SpecError
from xbench.spec import Compress, Copies

BEST: dict[str, Copies] = {"gloo": "views", "nccl": "views"}
"""Default way by backend; `benchmarks/copies.py` compares the ways on a machine."""


def chosen_copies(asked: Copies | None, backend: str, compress: Compress | None = None) -> Copies:
    """The requested way, else the default of this torch.distributed backend; "views" for an unknown one.

    Raises SpecError for coalesced collectives of compressed gradients: those take gradients in place.
    """
    best = BEST.get(backend, "views")
    if compress is None:
        return asked or best
    if asked == "coalesced":
        raise SpecError(
            "copies 'coalesced' sends gradients where they lie, and compressing them makes a copy",
            hint="copies 'fused' compresses while it copies",
        )
    return asked or ("fused" if best == "coalesced" else best)
