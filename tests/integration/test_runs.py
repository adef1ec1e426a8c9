"""Whole runs of the command line on real ranks: what a user types, and what must be in the record afterwards."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from typed_commands import NETNS, TINY, compare, left_behind, may_raise_priorities, only_record, xbench

from xbench.rank.parity_checker import MEAN_TOLERANCE, compressed
from xbench.records import Comparison, load

pytestmark = pytest.mark.integration
SHORT = ("--quick", "--rounds", "2")


# --- one job ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def single_jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, str, Path]:
    folder = tmp_path_factory.mktemp("single")
    kept, done = compare(
        TINY, "--fabric", "local:ranks=2", *SHORT, "--launches", "2",
        "--modes", "compute,ddp,ddp-tuned,single,wfbp,mgwfbp,optimal,ddp@b",
        "--json", "-", results=folder,
    )  # fmt: skip
    assert json.loads(done.stdout) == json.loads(kept.model_dump_json())  # stdout carries the JSON alone
    return kept, done.stderr, folder


def test_every_single_job_mode_runs_and_trains_what_ddp_trains(single_jobs: tuple[Comparison, str, Path]) -> None:
    record, _, _ = single_jobs
    assert record.complete
    for name, mode in record.modes.items():
        assert mode.status == "ok", (name, mode.error)
        assert mode.label == "real"
        assert mode.blocks == 4
        if name == "compute":
            assert mode.parity is None
        else:
            assert mode.parity.ok
            assert mode.parity.shown, mode.parity.message
            assert mode.parity.bitwise_across_ranks
    assert record.reference == "ddp"
    assert record.modes["ddp"].ratio.verdict == "reference"


def test_every_block_of_every_mode_is_there_raw(single_jobs: tuple[Comparison, str, Path]) -> None:
    record, _, _ = single_jobs
    seen = {(s.launch, s.round, s.mode) for s in record.samples}
    assert seen == {(launch, round_, mode) for launch in (0, 1) for round_ in range(2) for mode in record.modes}
    assert all(len(s.steps_s) == 4 and len(s.warmup_s) == 2 for s in record.samples)


def test_plans_cover_the_model_and_the_bounds_are_ordered(single_jobs: tuple[Comparison, str, Path]) -> None:
    record, _, _ = single_jobs
    names = {tensor.name for layer in record.jobs[0].layers for tensor in layer.tensors}
    for mode in ("single", "wfbp", "mgwfbp", "optimal"):
        plan = record.modes[mode].plan
        assert {name for bucket in plan.buckets for name in bucket} == names
    assert record.bounds.compute_s <= record.bounds.backward_overlap_bound_s
    assert record.cost_model.points[-1].nbytes >= record.jobs[0].workload.grad_bytes


def test_a_step_of_every_mode_is_recorded_on_two_lanes(single_jobs: tuple[Comparison, str, Path]) -> None:
    record, _, _ = single_jobs
    grad_bytes = record.jobs[0].workload.grad_bytes
    layers = {layer.name for layer in record.jobs[0].layers}
    for name, mode in record.modes.items():
        assert mode.timeline is not None, name
        compute, link = mode.timeline.compute, mode.timeline.communication
        assert mode.timeline.label == "real"
        names = [part.name for part in compute]
        backward = [part for part in compute if part.name.startswith("backward ")]
        assert names[0] == "forward"
        assert names[-1] == "optimizer"
        assert {part.name.removeprefix("backward ") for part in backward} == layers
        assert compute[0].start_s == 0
        assert all(a.end_s <= b.start_s for a, b in pairwise(compute)), name
        assert sum(part.nbytes or 0 for part in link) == (0 if name == "compute" else grad_bytes)
        assert [part.start_s for part in link] == sorted(part.start_s for part in link)
        for part in link:
            assert backward[0].start_s <= part.start_s < part.end_s < compute[-1].end_s, name
        (other,) = mode.other_ranks
        assert other.compute[0].name == "forward"
        if name != "compute":  # whose ranks never wait for each other
            assert abs(other.starts_s) < compute[-1].end_s  # the same step: it ends when both have sent


def test_no_bucket_is_recorded_before_its_gradients_are_ready(single_jobs: tuple[Comparison, str, Path]) -> None:
    record, _, _ = single_jobs
    layer_of = {tensor.name: layer.name for layer in record.jobs[0].layers for tensor in layer.tensors}
    for name in ("single", "wfbp", "mgwfbp", "optimal"):
        mode = record.modes[name]
        since = {part.name: part.start_s for part in mode.timeline.compute}
        assert [part.nbytes for part in mode.timeline.communication] == mode.plan.bucket_bytes
        for part, names in zip(mode.timeline.communication, mode.plan.buckets, strict=True):
            # A layer's first gradient can be ready from the moment on when the layer before it is done.
            assert part.start_s >= max(since[f"backward {layer_of[tensor]}"] for tensor in names), name
    waited = record.modes["single"].timeline
    assert waited.communication[0].start_s >= max(p.start_s for p in waited.compute if p.name.startswith("backward "))


def test_progress_says_mode_round_and_time_left(single_jobs: tuple[Comparison, str, Path]) -> None:
    _, stderr, _ = single_jobs
    assert re.search(r"launch 1 of 2: parity check of optimal", stderr)
    assert re.search(r"launch 2 of 2: round 2 \S+, median step so far .*, about \d+ (s|min) left", stderr)


def test_a_plan_of_the_record_attaches_to_the_users_model(single_jobs: tuple[Comparison, str, Path]) -> None:

    import xbench as library
    from xbench.spec import WorkloadSpec
    from xbench.workloads import resolve
    from xbench.workloads.build import build

    record, _, folder = single_jobs
    workload = build(resolve(WorkloadSpec(name=TINY), "cpu"), torch.device("cpu"))
    path = next(folder.glob("*/record.json"))
    with library.attach(workload.model, workload.optimizer, schedule="optimal", plan=path) as handle:
        workload.forward_loss(handle.model).backward()  # type: ignore[no-untyped-call]
        workload.optimizer.step()
        plan = record.modes["optimal"].plan
        assert handle.buckets == plan.buckets


@pytest.mark.usefixtures("on_one_core")
def test_a_world_of_one_compares_hooks_with_the_bare_loop_and_compresses_nothing_twice(tmp_path: Path) -> None:
    record, done = compare(
        TINY, "--fabric", "local:ranks=1", *SHORT, "--modes", "compute,wfbp,optimal",
        "--dtype", "bf16", "--compress", "bf16", results=tmp_path,
    )  # fmt: skip
    assert list(record.modes) == ["compute", "wfbp"]
    assert "no link is used: optimal" in done.stderr
    assert record.modes["compute"].ratio is not None
    assert record.reference == "wfbp"
    assert "nothing to compress: gradients are bf16 already" in done.stderr
    assert record.spec.compress is None


WATCHED = """
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn


class Watched(nn.Linear):
    def forward(self, inputs):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # the thread ended
                if (thread / "comm").read_text().strip() == "pt_gloo_runloop":
                    priority = os.getpriority(os.PRIO_PROCESS, int(thread.name))
                    Path("FOLDER", f"priority{priority}").touch()
        return super().forward(inputs)


def partly_used():
    model = nn.Sequential(Watched(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    model[0].extra = nn.Linear(4, 4)
    return model, (torch.randn(6, 8), torch.randint(0, 3, (6,))), nn.CrossEntropyLoss()


def wholly_used():
    model = nn.Sequential(Watched(64, 64), nn.ReLU(), nn.Linear(64, 8))
    return model, (torch.randn(8, 64), torch.randn(8, 8)), nn.functional.mse_loss
"""


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Path, Path]:
    """A script with two factories, and the folder in which its models note the priorities of Gloo's threads."""
    script, seen = tmp_path / "mine.py", tmp_path / "seen"
    seen.mkdir()
    script.write_text(WATCHED.replace("FOLDER", str(seen)))
    return script, seen


@pytest.mark.smoke
def test_a_users_own_factory_in_ranks_that_are_tuned(watched: tuple[Path, Path], tmp_path: Path) -> None:
    script, seen = watched
    modes = "ddp,single,wfbp,mgwfbp,optimal"
    record, _ = compare(
        f"{script}:partly_used", "--fabric", "local:ranks=2", *SHORT, "--modes", modes, results=tmp_path / "o"
    )
    assert all(mode.parity is not None and mode.parity.ok for mode in record.modes.values())
    assert record.samples[0].samples_per_step == 12
    assert record.spec.host_tuning is True
    assert ((seen / "priority-15").exists()) is may_raise_priorities()


def test_a_compiled_channels_last_model_under_autocast(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.stem = nn.Conv2d(3, 8, 3)\n"
        "        self.block = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU())\n"
        "        self.head = nn.Linear(8, 5)\n\n"
        "    def forward(self, x):\n"
        "        with torch.autocast(x.device.type, dtype=torch.bfloat16):\n"
        "            return self.head(self.block(self.stem(x)).mean((2, 3)))\n\n\n"
        "def make():\n"
        "    model = Net().to(memory_format=torch.channels_last)\n"
        "    model.block = torch.compile(model.block, backend='aot_eager')\n"
        "    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)\n"
        "    loss = nn.CrossEntropyLoss()\n"
        "    return model, (images, torch.randint(0, 5, (4,))), lambda o, t: loss(o.float(), t)\n"
    )
    record, _ = compare(
        f"{script}:make", "--fabric", "local:ranks=2", *SHORT, "--modes", "ddp,wfbp,optimal", results=tmp_path / "o"
    )
    assert all(mode.parity is not None and mode.parity.ok for mode in record.modes.values())
    kinds = {layer.name: layer.kind for layer in record.jobs[0].layers}
    assert kinds == {"stem": "Conv2d", "block": "Sequential (compiled)", "head": "Linear"}
    names = {name for bucket in record.modes["wfbp"].plan.buckets for name in bucket}
    assert names == {f"{layer}.{kind}" for layer in ("stem", "block.0", "head") for kind in ("weight", "bias")}
    assert (record.cost_model.clock_offset_s, record.cost_model.clock_error_s) == ([0.0, 0.0], 0.0)  # one kernel


def test_compressed_gradients_have_a_tolerance_of_their_own_and_are_predicted_as_they_travel_in_ranks_untuned(
    watched: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, seen = watched
    monkeypatch.setenv("XBENCH_HOST_TUNING", "off")
    record, _ = compare(
        f"{script}:wholly_used", "--fabric", "local:ranks=2", *SHORT,
        "--modes", "ddp,single,auto", "--compress", "bf16", results=tmp_path / "o",
    )  # fmt: skip
    assert record.spec.compress == "bf16"
    for mode in record.modes.values():
        assert (mode.parity.ok, mode.parity.tolerance) == (True, MEAN_TOLERANCE)
        assert (mode.parity.max_relative_difference or 0) > 0
        assert mode.predicted_step_s is not None
    assert record.jobs[0].plans["single"].bucket_bytes == [record.jobs[0].workload.grad_bytes]
    assert compressed("bf16") in record.fabric.notes
    assert record.spec.host_tuning is False
    assert list(seen.iterdir())
    assert not (seen / "priority-15").exists()


# --- shaped links and two jobs ---------------------------------------------------------------------------------------


@pytest.mark.smoke
@NETNS
@pytest.mark.netns
def test_two_different_jobs_share_shaped_hosts(tmp_path: Path) -> None:
    modes = "concurrent,crossover,ddp-tuned"
    record, _ = compare(
        TINY, "synthetic:layers=12,bytes=32k", "--fabric", "shaped:hosts=2,rate=200mbit", *SHORT,
        "--modes", modes, "--json", str(tmp_path / "copy.json"), results=tmp_path,
    )  # fmt: skip
    assert load(tmp_path / "copy.json") == record
    assert list(record.modes) == [*modes.split(","), "sequential"]  # which the comparison of unequal jobs needs
    for mode in record.modes.values():
        assert mode.status == "ok", mode.error
        assert mode.parity.ok
    assert {s.job for s in record.samples if s.mode == "ddp-tuned"} == {0, 1}
    pattern = record.modes["crossover"].pattern
    assert set(pattern) == {"A", "B"}
    turns = record.modes["crossover"].turns
    assert {turn.job for turn in turns} == {0, 1}
    assert all(before.computed_s <= after.start_s for before, after in pairwise(turns))  # one device, one holder
    assert all(turn.arrived_s is None or turn.arrived_s > turn.start_s for turn in turns)
    assert record.fabric.rate_bps == 200e6
    assert 0.5 * 200e6 < record.fabric.measured_bps < 1.1 * 200e6
    assert left_behind() == ""


@pytest.mark.smoke
@NETNS
@pytest.mark.netns
def test_profile_on_a_shaped_link(tmp_path: Path) -> None:
    done = xbench("profile", TINY, "--fabric", "shaped:hosts=2,rate=500mbit", "--quick", results=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_record(tmp_path)
    assert record.step is not None
    assert record.cost_model.points[0].nbytes == 1024
    assert record.cost_model.points[-1].nbytes >= record.workload.grad_bytes
    ready = [layer.ready_s for layer in record.layers]
    assert ready == sorted(ready)
    assert sum(layer.parameters for layer in record.layers) == record.workload.parameters
    planned = {"compute", "ddp", "ddp-tuned", "single", "wfbp", "mgwfbp", "optimal", "auto", "dear", "priority"}
    assert set(record.plans) == planned
    assert {point.in_flight for point in record.contention.points} == {1, 2}
    # What auto promises: no schedule on the same engine is predicted faster, but by the price of a bucket.
    for mode in ("wfbp", "mgwfbp", "optimal"):
        plan = record.plans[mode]
        assert record.plans["auto"].predicted_step_s <= plan.predicted_step_s * (1 + 3e-4 * len(plan.buckets))
