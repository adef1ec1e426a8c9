"""Three ways to carry gradients, on two real Gloo ranks: each trains what a hand-written average trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import said_by_two_ranks

RANKS = Path(__file__).parent / "ranks" / "copies.py"
SCENARIOS = (
    "every_way", "every_way_accumulates", "every_way_copes_with_missing_gradients",
    "every_way_takes_dtypes_and_memory_orders", "all_ways_end_in_the_same_bits",
    "coalesced_leaves_gradients_where_they_are", "compressed_gradients_train_nearly_the_same",
    "compressed_gradients_of_two_ranks_are_ddp_s_bit_for_bit", "half_the_bytes_travel", "a_world_of_one_sends_nothing",
)  # fmt: skip


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed; all scenarios share one start."""
    return said_by_two_ranks(RANKS, *SCENARIOS, store=tmp_path_factory.mktemp("store") / "store", timeout_s=200)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_way_to_carry_gradients_trains_the_same(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
