"""Two real ranks over Gloo on the loopback: this file is also the program that each of them runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SIZES_BYTES = [1024, 16384, 262144]


def rank_main(rank: int, directory: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from xbench.profilers.clock import clock_for
    from xbench.profilers.collectives import clock_offsets, measure_all_reduce
    from xbench.profilers.layers import profile_step
    from xbench.workloads.training_step import TrainingStep

    class Workload(TrainingStep):
        def __init__(self) -> None:
            self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
            self.inputs = torch.randn(16, 32)

        def forward_loss(self) -> torch.Tensor:
            return self.model(self.inputs).square().mean()

    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    cpu = torch.device("cpu")
    asked, trusted = clock_offsets(None, cpu, trust_kernel=False), clock_offsets(None, cpu)
    notes: list[str] = []
    result = {
        "asked": [asked.at_s, asked.offset_s, asked.error_s],
        "trusted": [trusted.offset_s, trusted.error_s],
        "points": measure_all_reduce(
            SIZES_BYTES, cpu, None, repetitions=8, seconds_budget=1.0, clock=clock_for(cpu), note=notes.append
        ),
        "notes": len(notes),
        "profile": profile_step(Workload(), clock_for(cpu), steps=6).raw(),
    }
    (directory / f"rank{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    directory = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(directory)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(2)]


pytestmark = pytest.mark.integration


def test_clock_offsets_agree_and_hold_the_truth(ranks):
    assert ranks[0]["asked"] == ranks[1]["asked"]
    _, offset_s, error_s = ranks[0]["asked"]
    assert (offset_s[0], error_s[0]) == (0.0, 0.0)
    # Both ranks read the same clock, so the true offset is 0 and must lie within the bound, however slow the machine.
    assert error_s[1] > 0
    assert abs(offset_s[1]) <= error_s[1]


def test_ranks_of_one_kernel_are_not_asked(ranks):
    assert ranks[0]["trusted"] == ranks[1]["trusted"] == [[0.0, 0.0], [0.0, 0.0]]


def test_all_ranks_repeat_equally_often(ranks):
    counts = [[(p["nbytes"], p["warmup"], len(p["start_s"]), len(p["end_s"])) for p in r["points"]] for r in ranks]
    assert counts[0] == counts[1]
    assert [nbytes for nbytes, *_ in counts[0]] == SIZES_BYTES
    assert all(1 + 2 <= starts == ends <= 1 + 8 for _, _, starts, ends in counts[0])
    assert [r["notes"] for r in ranks] == [sum(starts for _, _, starts, _ in counts[0])] * 2


def test_no_rank_has_the_sum_before_all_have_begun(ranks):
    for mine, other in zip(ranks[0]["points"], ranks[1]["points"], strict=True):
        for starts, ends in zip(
            zip(mine["start_s"], other["start_s"], strict=True),
            zip(mine["end_s"], other["end_s"], strict=True),
            strict=True,
        ):
            assert max(starts) < min(ends)


def test_points_and_layers_come_out_of_real_ranks(ranks):
    from xbench.profilers.summary import cost_points, left_out, summarise

    points = cost_points([rank["points"] for rank in ranks])
    assert [point.nbytes for point in points] == SIZES_BYTES
    assert all(point.transfer_s > 0 and point.wait_s >= 0 and point.repetitions >= 2 for point in points)

    profiles = [rank["profile"] for rank in ranks]
    layers, step = summarise(profiles)
    assert [(layer.name, layer.parameters) for layer in layers] == [("2", 64 * 8 + 8), ("0", 32 * 64 + 64)]
    assert 0 < layers[0].ready_s < layers[1].ready_s
    assert step.steps + step.warmup_steps == 8
    assert left_out(profiles) == {"frozen": [], "unused": []}
    for profile in profiles:
        for at, forward_s in enumerate(profile["steps"]["forward_s"]):
            assert sum(layer["forward_s"][at] for layer in profile["layers"]) == pytest.approx(forward_s, abs=1e-8)


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), Path(sys.argv[2]))
