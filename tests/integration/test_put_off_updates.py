"""Next-forward overlap against a hand-written average, on two and three real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from shares import drawn
from typed_commands import said_by_ranks, scenarios_of

RANKS = Path(__file__).parent / "ranks" / "next_forward.py"
SCENARIOS = scenarios_of("next_forward_loops.py", "next_forward.py")


@pytest.fixture(scope="module", params=drawn("put off", [2, 3]))
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed; all scenarios share one start."""
    store = tmp_path_factory.mktemp("store") / "store"
    return said_by_ranks(request.param, RANKS, *SCENARIOS, store=store, timeout_s=280)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_updates_that_are_put_off_train_what_a_plain_loop_trains(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
