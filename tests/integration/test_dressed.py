"""Schedules on process groups that behave towards the host as NCCL's do (`ranks/dressed.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import said_by_groups

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
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[str]]:
    """Return what the ranks of a case print. All share one import of torch, and who gets stuck has ranks of its own."""
    groups: dict[tuple[int, str], list[str]] = {}
    for world, name in CASES:
        alone = name if "stuck" in name else name.partition(":")[2]
        groups.setdefault((world, alone), []).append(name)
    words = [[world, str(RANKS), *names] for (world, _), names in groups.items()]
    outputs = said_by_groups(words, tmp_path_factory.mktemp("dressed") / "store", 240)
    return {
        (world, name): output
        for ((world, _), names), output in zip(groups.items(), outputs, strict=True)
        for name in names
    }


@pytest.mark.smoke
@pytest.mark.integration
@pytest.mark.parametrize(("world", "scenario"), CASES)
def test_schedules_do_what_nccl_asks_of_a_host(
    said: dict[tuple[int, str], list[str]], world: int, scenario: str
) -> None:
    for output in said[world, scenario]:
        assert f"{scenario}: ok\n" in output, output[-5000:]
