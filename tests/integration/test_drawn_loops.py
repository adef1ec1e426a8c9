"""Random training loops on two real ranks: every schedule trains what averaging by hand trains, or refuses."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from shares import ALL, SEED
from typed_commands import said_by_two_ranks, scenarios_of

RANKS = Path(__file__).parent / "ranks" / "drawn_loops.py"
SCENARIOS = scenarios_of("guarded_loops.py", "drawn_loops.py")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Output of each rank, all scenarios in one start. Exploring draws 1000 new loops."""
    explore = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
    seeded = (100 * SEED, 100 if ALL else 30)
    first, count = (random.SystemRandom().randrange(10**9), 1000) if explore else seeded
    store = tmp_path_factory.mktemp("store") / "store"
    return said_by_two_ranks(RANKS, str(first), str(count), store=store, timeout_s=1200 if explore else 200)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_schedule_trains_what_ddp_would_or_refuses(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
