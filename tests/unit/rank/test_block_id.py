"""Numbers of turns outside timed blocks."""

from __future__ import annotations

import itertools

from xbench.rank.program import block_id
from xbench.schedules import parse_mode, parse_modes


def test_modes_and_kinds_have_numbers_of_their_own() -> None:
    modes = parse_modes("ddp@ga,ddp@af,crossover:mgwfbp,crossover:optimal")  # the first two had one number
    numbers = sorted(block_id(kind, mode) for kind, mode in itertools.product(("", "gate", "converge"), modes))
    assert all(later - before >= 2**32 for before, later in itertools.pairwise(numbers))
    assert numbers[0] >= 2**32
    assert block_id("gate", parse_mode("ddp")) == 1023879212198526976  # the same in every process
