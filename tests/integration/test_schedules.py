"""The contract of xbench.attach on real Gloo ranks: each schedule trains what averages by hand train, or refuses.

The scenarios are functions in the scripts of `ranks/`. Those of a script share one start of its ranks.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from shares import ALL, SEED, drawn
from typed_commands import said_by_ranks, scenarios_of

from xbench.torch_compile import compiler_obstacle

RANKS = Path(__file__).parent / "ranks"
WORLDS = {
    "schedules.py": [2], "user_loops.py": [2], "changing_loops.py": [2], "guarded_loops.py": [2], "compression.py": [2],
    "next_forward.py": drawn("put off", [2, 3]), "partial.py": drawn("partial", [2, 4]),
    "sharded.py": [2], "sharded_uses.py": [2], "compiled.py": [2],
}  # fmt: skip
"""Numbers of ranks by script."""

OF_MORE = {"next_forward.py": ("next_forward_loops.py", "next_forward.py")}
"""Files of the scenarios of a script that runs those of several."""

OF_FOUR = {"copies_of_shards"}
"""Scenarios of four ranks."""

COMPILES = pytest.mark.skipif(compiler_obstacle() is not None, reason=str(compiler_obstacle()))
CASES = [
    (script, 4 if scenario in OF_FOUR else world, scenario)
    for script, worlds in WORLDS.items()
    for world in worlds
    for scenario in scenarios_of(*OF_MORE.get(script, (script,)))
]

Said = Callable[[str, int], list[str]]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Function from a script and a number of ranks to the output of each rank."""

    @cache
    def said_by(script: str, world: int) -> list[str]:
        names = [scenario for other, ranks, scenario in CASES if (other, ranks) == (script, world)]
        store = tmp_path_factory.mktemp("store") / "store"
        return said_by_ranks(world, RANKS / script, *names, store=store, timeout_s=280)

    return said_by


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "world", "scenario"),
    [pytest.param(*case, marks=COMPILES if case[0] == "compiled.py" else ()) for case in CASES],
)
def test_a_scenario_ends_as_by_hand_on_every_rank(said: Said, script: str, world: int, scenario: str) -> None:
    for output in said(script, world):
        assert f"{scenario}: ok" in output, output[-3000:]


@pytest.mark.integration
def test_random_loops_train_as_by_hand_or_are_refused_on_every_rank(tmp_path: Path) -> None:
    """Exploring draws 1000 new ones."""
    explore = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
    known = (0, 500) if ALL else (60 * SEED % 480, 60)
    first, count = (random.SystemRandom().randrange(10**9), 1000) if explore else known
    words = (RANKS / "drawn_uses.py", str(first), str(count))
    timeout_s = 1200 if explore or ALL else 300
    for output in said_by_ranks(2, *words, store=tmp_path / "store", timeout_s=timeout_s):
        for scenario in scenarios_of("drawn_uses.py"):
            assert f"{scenario}: ok" in output, output[-3000:]
