"""Random training loops on two real ranks: every schedule trains what averaging by hand trains, or refuses."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from typed_commands import said_by_two_ranks

RANKS = Path(__file__).parent / "ranks" / "drawn_loops.py"


SCENARIOS = (
    "ranks_that_start_apart_are_refused", "statistics_of_each_rank_may_differ", "broadcast_makes_ranks_equal",
    "parameters_unfrozen_later_are_refused", "parameters_added_later_are_refused", "sparse_gradients_are_refused",
    "a_backward_pass_inside_forward", "a_pass_after_one_that_raised_is_refused",
    "two_passes_over_different_layers_are_refused", "an_object_that_holds_an_optimizer",
    "models_that_average_already_are_refused", "loops",
)  # fmt: skip


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Output of each rank, all scenarios in one start. Exploring draws 1000 new loops."""
    explore = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
    first, count = (random.SystemRandom().randrange(10**9), 1000) if explore else (0, 100)
    store = tmp_path_factory.mktemp("store") / "store"
    return said_by_two_ranks(RANKS, str(first), str(count), store=store, timeout_s=1200 if explore else 200)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_schedule_trains_what_ddp_would_or_refuses(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
