"""Next-forward overlap against a hand-written average, on two and three real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import said_by_ranks

RANKS = Path(__file__).parent / "ranks" / "next_forward.py"
SCENARIOS = (
    "plain", "without_a_plan", "small_parts_in_a_strange_order", "buckets_are_complete_when_they_go",
    "every_optimizer_ends_in_the_bits_of_a_whole_step",
    "settings_are_those_of_the_step", "accumulation", "clipping_and_grad_scaler", "used_on_some_ranks",
    "what_reads_parameters_between_steps_gets_new_ones", "two_forwards_before_a_backward", "checkpointed",
    "others_collectives_do_not_get_between", "updates_wait_for_the_forward_pass", "refusals", "detach_leaves_nothing",
    "detach_completes_the_last_step", "one_order_on_every_rank",
)  # fmt: skip


@pytest.fixture(scope="module", params=[2, 3])
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed; all scenarios share one start."""
    store = tmp_path_factory.mktemp("store") / "store"
    return said_by_ranks(request.param, RANKS, *SCENARIOS, store=store, timeout_s=200)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_updates_that_are_put_off_train_what_a_plain_loop_trains(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
