"""Random uses of a model in a loop on two real ranks: each schedule trains as by hand, or refuses on every rank."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from shares import ALL, SEED
from typed_commands import said_by_two_ranks, scenarios_of

RANKS = Path(__file__).parent / "ranks" / "drawn_uses.py"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Output of each rank, all scenarios in one start: 60 loops, or all 500. Exploring draws 1000 new loops."""
    explore = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
    seeded = (0, 500) if ALL else (60 * SEED % 480, 60)
    first, count = (random.SystemRandom().randrange(10**9), 1000) if explore else seeded
    store = tmp_path_factory.mktemp("store") / "store"
    return said_by_two_ranks(RANKS, str(first), str(count), store=store, timeout_s=1200 if explore or ALL else 300)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", scenarios_of("drawn_uses.py"))
def test_every_schedule_trains_as_by_hand_or_refuses(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
