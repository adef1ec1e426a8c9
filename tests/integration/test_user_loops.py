"""Loops of users that are not one forward pass, one backward pass and one step, on two real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import said_by_two_ranks, scenarios_of

RANKS = Path(__file__).parent / "ranks" / "user_loops.py"
SCENARIOS = scenarios_of("user_loops.py")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed; all scenarios share one start."""
    store = tmp_path_factory.mktemp("store") / "store"
    return said_by_two_ranks(RANKS, *SCENARIOS, store=store, timeout_s=200)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_loop_trains_the_same_or_is_refused(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
