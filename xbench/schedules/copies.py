"""How gradients get into a collective and back, by name; what each does is in `bucket`. Nothing here imports torch."""

from __future__ import annotations

from xbench.errors import SpecError
from xbench.spec import Compress, Copies

BEST: dict[str, Copies] = {"gloo": "views", "nccl": "views"}
"""The way to take by backend where none is asked for: `benchmarks/copies.py` compares them on the machine at hand."""


def chosen_copies(asked: Copies | None, backend: str, compress: Compress | None = None) -> Copies:
    """What was asked for, else the way of this backend of torch.distributed; views on one that `BEST` does not know.

    Raises SpecError for coalesced collectives of compressed gradients: those take gradients as they are.
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
