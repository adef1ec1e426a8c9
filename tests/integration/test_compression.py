"""Odd gradients and compressed ones on two real Gloo ranks: each trains what a hand-written average trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import said_by_two_ranks, scenarios_of

RANKS = Path(__file__).parent / "ranks" / "compression.py"
SCENARIOS = scenarios_of("compression.py")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed; all scenarios share one start."""
    return said_by_two_ranks(RANKS, *SCENARIOS, store=tmp_path_factory.mktemp("store") / "store", timeout_s=200)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_gradients_train_what_they_should(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
