"""Users' factories, and models of libraries, on real ranks: what only ranks show, and what the record says of it."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
from typed_commands import compare, comparison, xbench

pytestmark = pytest.mark.integration
SHORT = ("--fabric", "local:ranks=2", "--quick", "--rounds", "1")

PACKED = """
import argparse
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from .sizes import WORDS

arguments = argparse.ArgumentParser()
arguments.add_argument("--length", type=int, default=8)
LENGTH = arguments.parse_args().length


class Data(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.arange(LENGTH) + i, i


def make(rank):
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    body = nn.Sequential(nn.Embedding(WORDS, 16), nn.Flatten(), nn.Dropout(0.5))
    model = nn.Sequential(body, nn.Linear(16 * LENGTH, WORDS)).eval()
    inputs, targets = next(iter(DataLoader(Data(), batch_size=1, num_workers=1, multiprocessing_context="spawn")))
    return model, (inputs + rank, targets), nn.CrossEntropyLoss()
"""


def test_a_script_of_a_package_with_arguments_a_group_workers_and_one_row_of_tokens(tmp_path: Path) -> None:
    package = tmp_path / "bench_ranks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("WORDS = 50\n")
    (package / "train.py").write_text(PACKED)
    record, done = compare(f"{package / 'train.py'}:make", *SHORT, "--modes", "ddp,wfbp", results=tmp_path / "runs")
    assert record.jobs[0].workload.spec.variation == "rank"
    told = "train.py:make: the factory's model is in evaluation mode, and is measured so: .train() ends it"
    assert told in record.warnings
    assert told in " ".join(done.stdout.split())
    for mode in record.modes.values():
        assert mode.parity.ok


LOADED = """
import os, pathlib, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WAIT_S, BATCH = 0.005, 8


class Data(Dataset):
    def __len__(self):
        return 52  # rank 1 has 26 samples: three batches an epoch

    def __getitem__(self, i):
        time.sleep(WAIT_S)
        return torch.randn(16, generator=torch.Generator().manual_seed(i)), i % 4


def note(worker):
    (pathlib.Path(__file__).parent / f"worker-{os.getpid()}").touch()


def make():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    data, workers = Data(), dist.get_rank()
    loader = DataLoader(
        data, BATCH, sampler=DistributedSampler(data), num_workers=workers, worker_init_fn=note, drop_last=True
    )
    return model, loader, nn.CrossEntropyLoss()
"""


def test_the_wait_for_a_loader_is_a_part_of_every_step_and_its_workers_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADED)
    short = (*SHORT[:-1], "4")
    record, done = compare(f"{tmp_path / 'train.py'}:make", *short, "--modes", "ddp,optimal", results=tmp_path / "runs")
    (job,) = record.jobs
    planted_s = 8 * 0.005  # a sleep is never shorter
    assert job.workload.input == "16 float32 from a DataLoader"
    assert planted_s <= job.step.input_s < job.step.step_s
    assert not job.step.input_ahead
    assert "a step without communication waits " in " ".join(done.stdout.split())
    for mode in record.modes.values():
        assert (mode.parity.ok, mode.parity.shown) == (True, True)
        assert mode.predicted_step_s is not None
        waits = [part for part in mode.timeline.compute if part.name == "input"]
        assert sum(part.end_s - part.start_s for part in waits) >= planted_s
        assert min(mode.predicted_step_s, mode.step_s.median) >= planted_s
    workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
    assert workers
    assert not any(psutil.pid_exists(pid) for pid in workers)


GATHERED = """
import torch
import torch.distributed.nn
from torch import nn


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(32, 16), nn.Linear(24, 16)

    def forward(self, image, text):
        pair = self.image(image), self.text(text)
        image, text = (torch.cat(torch.distributed.nn.all_gather(one)) for one in pair)
        return image @ text.t()


def make():
    loss = lambda logits, _: nn.functional.cross_entropy(logits, torch.arange(len(logits)))
    return Towers(), ((torch.randn(16, 32), torch.randn(16, 24)), None), loss
"""


def test_a_model_with_collectives_of_its_own_trains_in_every_mode(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GATHERED)
    modes = ("ddp", "wfbp", "dear", "auto", "replicate")
    record, done = compare(
        *(f"{tmp_path / 'train.py'}:make", *SHORT, "--modes", ",".join(modes), "--timeout", "30s"),
        results=tmp_path / "runs",
    )
    assert [(mode, result.status) for mode, result in record.modes.items()] == [(mode, "ok") for mode in modes]
    assert "the model has collectives of its own" in " ".join(done.stdout.split())
    (job,) = record.jobs
    assert job.contention.points == []
    assert record.unit_costs == {}


def test_ranks_whose_models_start_apart_are_told_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch\nfrom torch import nn\n\n\ndef make():\n    torch.manual_seed(os.getpid())\n"
        "    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))\n"
        "    return model, (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), nn.CrossEntropyLoss()\n"
    )
    done = xbench("profile", f"{tmp_path / 'train.py'}:make", *SHORT[:2], results=tmp_path / "runs")
    assert done.returncode == 1
    assert "train.py:make: the ranks' models start apart, in '0.weight' and 3 more" in done.stderr
    assert "hint: the same seed is set on all ranks before the factory is called" in done.stderr
    assert "Traceback" not in done.stderr


ENDING = """
import os
import torch
from torch import nn

from xbench.schedules.served_parameters import engine_of

RANK, BATCHES = os.environ.get("RANK"), {batches}


def batches(model):
    taken = 0
    while taken < BATCHES or RANK != "1":
        taken += engine_of(model[0].weight) is not None  # steps under a schedule of ours
        yield torch.randn(4, 16), torch.tensor([0, 1, 0, 1])


def make():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    return model, batches(model), nn.CrossEntropyLoss()
"""


@pytest.mark.parametrize(
    ("mode", "batches", "doing", "blocks"),
    [
        ("wfbp", 7, "round 2 wfbp step 2: computing", {(0, "ddp"), (0, "wfbp")}),  # six steps of a block, and one
        ("auto", 1, "trying .*", set()),
    ],
)
def test_a_loader_that_ends_on_one_rank_ends_the_run_and_the_blocks_before_are_kept(
    tmp_path: Path, mode: str, batches: int, doing: str, blocks: set[tuple[int, str]]
) -> None:
    (tmp_path / "train.py").write_text(ENDING.replace("{batches}", str(batches)))
    done = xbench(
        "compare", f"{tmp_path / 'train.py'}:make", "--fabric", "local:ranks=2", "--quick", "--launches", "1",
        "--rounds", "2", "--modes", f"ddp,{mode}", results=tmp_path / "runs",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    record = comparison(tmp_path / "runs")
    assert not record.complete
    assert re.fullmatch(
        rf"rank 1 on host 0 \({doing}\): train.py:make: its generator ended after \d+ batches and cannot be started "
        "again, and a run takes as many batches as its steps need",
        record.error or "",
    ), record.error
    assert {(sample.round, sample.mode) for sample in record.samples} == blocks


@pytest.mark.parametrize(
    ("module", "text", "title", "tensors"),
    [
        ("timm", "timm/test_resnet:image-size=32", "timm/test_resnet", 47),
        ("transformers", "hf/electra:batch-size=1,seq-len=8", "hf/electra", 204),
    ],
)
def test_a_model_of_a_library_trains_the_same_under_both(
    tmp_path: Path, module: str, text: str, title: str, tensors: int
) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed")
    record, _ = compare(text, *SHORT, "--launches", "1", "--modes", "ddp,wfbp", results=tmp_path / "runs")
    workload = record.jobs[0].workload
    assert (workload.title, workload.tensors) == (title, tensors)
    assert module in record.environment.facts
    for mode in record.modes.values():
        assert mode.parity.ok
