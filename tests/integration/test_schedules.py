"""Every schedule against a hand-written average, on two real ranks: the contract of xbench.attach."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import said_by_two_ranks, scenarios_of

RANKS = Path(__file__).parent / "ranks" / "schedules.py"
SCENARIOS = scenarios_of("schedules.py")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed; all scenarios share one start, because importing torch twice is what costs."""
    store = tmp_path_factory.mktemp("store") / "store"
    return said_by_two_ranks(RANKS, *SCENARIOS, store=store, timeout_s=200)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_schedules_train_what_a_hand_written_average_trains(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
