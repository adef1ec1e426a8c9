"""Distance between two trained networks, relative to the update of the training.

    difference(p) = size(a - b) / (size(b - start) + 100 ε size(b) + least)

`a` is the schedule's value, `b` the reference's, `start` the common initial value, `ε` the dtype's. `size` is the
largest magnitude, or the mean for compressed gradients. `least` is 10⁻³ of the largest update if a sum over ranks may
have another order, else 0. Integers, booleans and complex numbers are compared by their bits: they differ by 0 or by 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from xbench.equal_ranks import digest

PIECE = 1 << 22
"""Elements of a parameter that are compared at a time."""

NULL = 1e-3
_ULPS = 100.0

Size = Callable[[Tensor, Tensor | None], float]


def largest(values: Tensor, less: Tensor | None = None) -> float:
    """Return the largest magnitude of `values`, or of `values - less`, in fp64; NaN if any is NaN."""
    found = [float(piece.abs().max()) for piece in _pieces(values, less)]
    return math.nan if any(map(math.isnan, found)) else max(found)


def mean(values: Tensor, less: Tensor | None = None) -> float:
    """Return the mean magnitude of `values`, or of `values - less`, in fp64."""
    return math.fsum(float(piece.abs().sum()) for piece in _pieces(values, less)) / values.numel()


def _pieces(values: Tensor, less: Tensor | None) -> Iterator[Tensor]:
    """Yield the values, or differences, in fp64 and in pieces. A whole large layer in fp64 takes too much memory."""
    flat = torch.split(values.reshape(-1), PIECE)
    if less is None:
        yield from (piece.double() for piece in flat)
    else:
        others = torch.split(less.reshape(-1), PIECE)
        yield from (piece.double() - other.double() for piece, other in zip(flat, others, strict=True))


def differences(
    result: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    *,
    reordered: bool,
    size: Size = largest,
) -> dict[str, float]:
    """Return difference(p) of each parameter that has elements; NaN if a value is NaN.

    `reordered`: whether sums over ranks may have another order.
    """
    filled = {name: b for name, b in reference.items() if b.numel()}
    updates = {name: size(b, start[name]) for name, b in filled.items() if b.is_floating_point()}
    most = max((update for update in updates.values() if math.isfinite(update)), default=0.0)
    least = NULL * most if reordered else 0.0
    found: dict[str, float] = {}
    for name, b in filled.items():
        a = result[name]
        if name not in updates or a.shape != b.shape:
            found[name] = float(not same_bits(a, b))
            continue
        scale = updates[name] + _ULPS * torch.finfo(b.dtype).eps * size(b, None) + least
        found[name] = size(a, b) / scale if scale > 0 else float((a != b).any())
    return found


def worst_of(found: Mapping[str, float]) -> tuple[float, str | None]:
    """Return the largest difference and its parameter; NaN counts as largest. (0, None) if nothing differs."""
    worst, name = max(
        ((value, name) for name, value in found.items()),
        key=lambda pair: (math.isnan(pair[0]), pair[0]),
        default=(0.0, None),
    )
    return (worst, name) if worst != 0 else (0.0, None)


def largest_difference(
    result: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    *,
    reordered: bool,
    size: Size = largest,
) -> tuple[float, str | None]:
    """Return the largest of `differences` and its parameter."""
    return worst_of(differences(result, reference, start, reordered=reordered, size=size))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if two tensors have the same shape, dtype and bits. A NaN equals itself here."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or digest(a) == digest(b)
