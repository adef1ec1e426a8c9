"""Order of the modes in each round, balanced so that no mode gains from its position or its predecessor.

A machine warms up, throttles and fills its caches while it measures. A Williams design (Williams 1949) is a Latin
square in which each item also follows each other item equally often. So first-order carry-over cancels together with
the effect of position. An even number of items needs one square of n rows; an odd number needs the square and its
mirror image, 2n rows.

There are often fewer rounds than rows. So rows come in mirrored pairs (ABDC, then CDBA; the mirror of a row of an even
square is a row of the same square). After every second round each mode's mean position is exactly the middle one, and a
drift that is linear over two rounds cancels from every comparison.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def balanced_orders(items: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """The order of `items` in each of `rounds` rounds: `rounds` lists, each a permutation. Same seed, same orders.

    Over a whole cycle (n rounds for even n, 2n for odd) each item is in each position equally often and directly
    follows each other item equally often. Inside a cycle these counts differ by at most one for even n and two for odd
    n. Further cycles are shuffled anew.

    Raises ValueError for no items, a duplicate item, or a negative number of rounds.
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
    """Rows of the design for `count` items, as pairs of a row and its mirror image."""
    if count == 1:
        return [[[0]]]
    # 0, 1, n-1, 2, n-2, ...: neighbours differ by each of 1..n-1 once (even n), or by half of them twice (odd n).
    zigzag = [(index + 1) // 2 if index % 2 else (count - index // 2) % count for index in range(count)]
    rows = [[(index + shift) % count for index in zigzag] for shift in range(count)]
    # Reversing an even zigzag shifts it by n/2, so half of the rows are the mirror images of the other half.
    firsts = rows[: count // 2] if count % 2 == 0 else rows
    return [[row, row[::-1]] for row in firsts]
