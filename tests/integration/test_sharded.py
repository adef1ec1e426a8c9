"""torch's sharded modes in a comparison, as users type it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import compare, comparison, xbench

from xbench.records import Comparison

pytestmark = pytest.mark.integration
LAYERS, LAYER_BYTES = 6, 64 * 1024


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, str]:
    folder = tmp_path_factory.mktemp("rivals")
    record, done = compare(
        f"synthetic:layers={LAYERS},bytes=64k", "--modes", "compute,ddp,zero1,fsdp,replicate,auto:shard",
        "--fabric", "local:ranks=2", "--quick", "--rounds", "2", results=folder,
    )  # fmt: skip
    return record, done.stdout + done.stderr


def test_collectives_of_groups_are_measured_for_hsdp(tmp_path: Path) -> None:
    record, _ = compare(
        "synthetic:layers=4,bytes=64k", "--modes", "ddp,hsdp", "--fabric", "local:ranks=4",
        "--quick", "--rounds", "1", results=tmp_path,
    )  # fmt: skip
    costs = record.other_costs
    assert {name: cost.world_size for name, cost in costs.items()} == dict.fromkeys(
        ("all_gather:group=2", "reduce_scatter:group=2", "all_reduce:group=2"), 2
    )
    largest = {name: cost.points[-1].nbytes for name, cost in costs.items()}
    assert largest["all_reduce:group=2"] == largest["all_gather:group=2"] / 2
    assert record.modes["hsdp"].predicted_step_s > 0


def test_they_train_exactly_what_ddp_trains(compared: tuple[Comparison, str]) -> None:
    for name in ("zero1", "fsdp", "replicate", "auto:shard"):
        result = compared[0].modes[name]
        assert result.status == "ok", (name, result.error)
        assert (result.parity.ok, result.parity.shown, result.parity.max_relative_difference) == (True, True, 0.0)
        assert result.blocks == 2


def test_the_record_names_the_units(compared: tuple[Comparison, str]) -> None:
    modes = compared[0].modes
    for name in ("fsdp", "replicate"):
        blocks = [unit.name for unit in modes[name].units if unit.name]
        assert blocks == [f"layers.{place}" for place in range(LAYERS)]
    planned = [unit.name.split(", ") for unit in modes["auto:shard"].units if unit.name]
    assert [path for unit in planned for path in unit] == [f"layers.{place}" for place in range(LAYERS)]
    assert all(len(unit) <= 2 for unit in planned), "twice the largest block"
    assert modes["ddp"].units == modes["zero1"].units == []


def test_a_step_is_recorded_with_its_collectives(compared: tuple[Comparison, str]) -> None:
    kinds: dict[str, list[str]] = {}
    for name in ("fsdp", "replicate", "zero1"):
        timeline = compared[0].modes[name].timeline
        assert timeline is not None, name
        assert {part.name.split(" ")[0] for part in timeline.compute} == {"forward", "backward", "optimizer"}
        kinds[name] = [part.name.rpartition(" ")[0] for part in timeline.communication]
    units = compared[0].modes["fsdp"].units
    assert kinds["replicate"] == ["all-reduce"] * len(units)
    assert kinds["zero1"] == ["bucket"] * kinds["zero1"].count("bucket") + ["broadcast"] * LAYERS
    assert "" not in units, "every parameter is in a block, so all units are gathered twice"
    assert {kind: kinds["fsdp"].count(kind) for kind in kinds["fsdp"]} == {
        "all-gather": 2 * len(units), "reduce-scatter": len(units),
    }  # fmt: skip


def test_a_rank_s_memory_is_counted_by_parts(compared: tuple[Comparison, str]) -> None:
    """Parameters, gradients and momentum of half a megabyte, of which two ranks keep halves or wholes."""
    whole = LAYERS * LAYER_BYTES
    expected = {"ddp": (whole, whole, whole), "replicate": (whole, whole, whole), "zero1": (whole, whole, whole / 2)}
    expected |= dict.fromkeys(("fsdp", "auto:shard"), (whole / 2, whole / 2, whole / 2))
    for name, parts in expected.items():
        memory = compared[0].modes[name].memory
        assert (memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes) == parts, name
        assert memory.by == "counted"
        assert memory.peak_bytes == sum(parts) + memory.activation_bytes


def test_the_report_shows_memory_and_how_units_were_planned(compared: tuple[Comparison, str]) -> None:
    assert "Memory of the fullest rank" in compared[1]
    assert set(compared[0].unit_costs) == {"fsdp", "replicate"}
    assert any(note.startswith("auto:shard wraps ") for note in compared[0].fabric.notes)
    assert "auto:shard wraps " in compared[1]
    assert compared[0].modes["auto:shard"].predicted_step_s is not None


READS = """
import os
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.blocks(x)


def make():
    model = Net()

    def loss(outputs, targets):
        if os.environ.get("RANK") == "0" or torch.is_grad_enabled():
            [parameter.detach().norm() for parameter in model.parameters()]
        return nn.functional.cross_entropy(outputs, targets)

    return model, (torch.randn(8, 8), torch.randint(0, 4, (8,))), loss
"""


@pytest.mark.parametrize("first", ["on the first rank", "on all ranks, in training alone"])
def test_a_loss_that_reads_the_plain_model_leaves_the_mode_out(tmp_path: Path, first: str) -> None:
    on_all = READS.replace('os.environ.get("RANK") == "0" or ', "")
    (tmp_path / "train.py").write_text(READS if first == "on the first rank" else on_all)
    done = xbench(
        "compare", f"{tmp_path / 'train.py'}:make", "--modes", "ddp,fsdp", "--fabric", "local:ranks=2",
        "--quick", "--rounds", "1", results=tmp_path / "runs",
    )  # fmt: skip
    record = comparison(tmp_path / "runs")
    assert (record.complete, record.modes["ddp"].status, record.modes["fsdp"].status) == (True, "ok", "failed"), (
        done.stderr[-2000:]
    )
    assert "the schedule has them in shards" in str(record.modes["fsdp"].error)
