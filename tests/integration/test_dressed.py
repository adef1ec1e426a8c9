"""Schedules on process groups that behave towards the host as NCCL's do (`tests/ranks/dressed.py`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typed_commands import SHARED_BY_RANKS, ran

RANKS = Path(__file__).parent / "ranks" / "dressed_steps.py"
WORLDS = {
    "the_host_goes_on": (2, 4),
    "every_schedule": (2,),
    "trained_as_by_hand": (2, 4),
    "two_calls_have_the_bits_of_one": (2,),
    "few_updates_a_step": (2, 4),
    "the_host_waits_for_flags_once": (2, 4),
    "spb_on_new_groups": (2, 4, 8),
    "two_orders_of_two_groups_are_stuck": (2,),
    "a_pair_of_which_one_never_comes_is_stuck": (2,),
    "an_engine_that_does_not_wait_is_caught": (2,),
}
IN_ONE_QUEUE = {"every_schedule": (4,), "trained_as_by_hand": (4,), "spb_on_new_groups": (2, 4, 8),
                "two_orders_of_two_groups_are_stuck": (2,)}  # fmt: skip
"""Scenarios in which collectives also run in the order in which the host launched them, whatever their group is."""

CASES = [
    *((world, scenario) for scenario, worlds in WORLDS.items() for world in worlds),
    *((world, f"{scenario}:one-queue") for scenario, worlds in IN_ONE_QUEUE.items() for world in worlds),
]


@pytest.fixture(scope="module")
def output() -> str:
    """The lines of all ranks; all scenarios share one import of torch."""
    words = [sys.executable, str(RANKS), *(f"{world}:{scenario}" for world, scenario in CASES)]
    done = ran(words, env=os.environ | SHARED_BY_RANKS | {"TORCH_CPP_LOG_LEVEL": "ERROR"})
    return done.stdout + done.stderr


@pytest.mark.smoke
@pytest.mark.integration
@pytest.mark.parametrize(("world", "scenario"), CASES)
def test_schedules_do_what_nccl_asks_of_a_host(output: str, world: int, scenario: str) -> None:
    for rank in range(world):
        assert f"{world}:{scenario} on rank {rank}: ok\n" in output, output[-5000:]
