"""`spb` against gradients averaged by hand over the ranks that may compute them, on two and on four real Gloo ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from shares import drawn
from typed_commands import said_by_ranks, scenarios_of

RANKS = Path(__file__).parent / "ranks" / "partial.py"
SCENARIOS = scenarios_of("partial.py")


@pytest.fixture(scope="module", params=drawn("partial", [2, 4]))
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed; all scenarios share one start."""
    store = tmp_path_factory.mktemp("store") / "store"
    return said_by_ranks(request.param, RANKS, *SCENARIOS, store=store, timeout_s=280)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_partial_backpropagation_trains_what_averages_by_hand_train(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
