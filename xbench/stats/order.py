"""In which order to time the modes of each round, so that no mode gains from its place or from its predecessor.

A machine warms up, throttles and fills its caches while it measures. A Williams design (Williams 1949) is a Latin
square in which each item also follows each other item equally often: first-order carry-over cancels together with the
effect of place. For an even number of items one square of n rows does it; for an odd number it takes the square
and its mirror image, 2n rows.

Rounds often are fewer than rows, so rows are dealt in mirrored pairs (ABDC, then CDBA; the mirror of a row of an even
square is a row of the same square): after every second round each mode's mean place is the middle one exactly, and a
drift that is linear over two rounds cancels from every comparison.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def balanced_orders(items: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """The order of `items` in each of `rounds` rounds: `rounds` lists, each a permutation. Same seed, same orders.

    Over a whole cycle (n rounds for even n, 2n for odd) each item stands in each place equally often and directly
    follows each other item equally often; inside a cycle these counts differ by at most one for even n and two for
    odd n. Further cycles are shuffled anew.

    Raises ValueError for no items, an item that stands twice, or a negative number of rounds.
    """
    if not items or len(set(items)) != len(items):
        raise ValueError(f"items to order must be there and be distinct: {list(items)}")
    if rounds < 0:
        raise ValueError(f"{rounds} rounds cannot be ordered")
    generator = random.Random(seed)
    orders: list[list[str]] = []
    while len(orders) < rounds:
        labels = list(items)
        generator.shuffle(labels)
        pairs = _mirrored_pairs(len(labels))
        generator.shuffle(pairs)
        for pair in pairs:
            orders += [[labels[index] for index in row] for row in pair]
    return orders[:rounds]


def _mirrored_pairs(count: int) -> list[list[list[int]]]:
    """The rows of the design for `count` items, as pairs of a row and its mirror image."""
    if count == 1:
        return [[[0]]]
    # 0, 1, n-1, 2, n-2, ...: neighbours differ by each of 1..n-1 once (even n), or by half of them twice (odd n).
    zigzag = [(place + 1) // 2 if place % 2 else (count - place // 2) % count for place in range(count)]
    rows = [[(index + shift) % count for index in zigzag] for shift in range(count)]
    # Reversing an even zigzag shifts it by n/2, so half of the rows are the mirror images of the other half.
    firsts = rows[: count // 2] if count % 2 == 0 else rows
    return [[row, row[::-1]] for row in firsts]
