"""Every schedule against a hand-written average, on two real ranks: the contract of xbench.attach."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from typed_commands import said_by_two_ranks, scenarios_of

RANKS = Path(__file__).parent / "ranks"
SCRIPTS = ("schedules.py", "user_loops.py", "changing_loops.py")
SCENARIOS = [(script, name) for script in SCRIPTS for name in scenarios_of(script)]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Function from a script to the output of each rank. Scenarios of a script share one start of two ranks."""

    @cache
    def outputs_of(script: str) -> list[str]:
        names = [name for other, name in SCENARIOS if other == script]
        return said_by_two_ranks(
            RANKS / script, *names, store=tmp_path_factory.mktemp("store") / "store", timeout_s=200
        )

    return outputs_of


@pytest.mark.integration
@pytest.mark.parametrize(("script", "scenario"), SCENARIOS)
def test_schedules_train_what_a_hand_written_average_trains(
    outputs: Callable[[str], list[str]], script: str, scenario: str
) -> None:
    for output in outputs(script):
        assert f"{scenario}: ok" in output, output[-3000:]
