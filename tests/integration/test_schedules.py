"""Every schedule against a hand-written average, on two real Gloo ranks: the contract of xbench.attach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = Path(__file__).parent / "ranks" / "schedules.py"
SCENARIOS = (
    "plain", "wait_at_step", "early_update", "gradients_after_a_step", "accumulation", "set_to_none", "clipping",
    "grad_scaler", "used_on_some_ranks", "two_dtypes", "hooks_out_of_order", "learnt_order", "one_collective_a_bucket",
    "detach_leaves_nothing", "poisoned_buckets",
)  # fmt: skip


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed; all scenarios share one start, because importing torch twice is what costs."""
    store = tmp_path_factory.mktemp("store") / "store"
    ranks = []
    for rank in range(2):
        env = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "STORE": str(store), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(RANKS), *SCENARIOS]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        return [rank.communicate(timeout=200)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_schedules_train_what_a_hand_written_average_trains(outputs: list[str], scenario: str) -> None:
    for output in outputs:
        assert f"{scenario}: ok" in output, output[-3000:]
