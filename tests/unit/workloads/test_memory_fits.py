"""Jobs that do not fit in memory are refused: at once, one after another, and on shared GPUs."""

import pytest
import torch

from xbench.errors import WorkloadError
from xbench.workloads import memory, parse_workload, preflight, resolve
from xbench.workloads.build import build
from xbench.workloads.memory import Footprint, check_fits

META = torch.device("meta")
GIB = 1024**3


def fits(monkeypatch, *, free, ranks=1, gpus=(), jobs=1, text="transformer-tiny:batch-size=64", activations=64 * GIB):
    monkeypatch.setattr(memory, "available_bytes", lambda gpus: free)
    workload = build(resolve(parse_workload(text), "cpu"), META)
    check_fits([(workload, Footprint(GIB, activations))] * jobs, ranks, gpus)


def test_what_cannot_fit_is_refused_with_the_batch_that_does(monkeypatch):
    with pytest.raises(WorkloadError) as caught:
        fits(monkeypatch, free=23 * GIB)
    assert str(caught.value) == "transformer-tiny with batch 64 needs about 65.0 GiB, 23.0 GiB are free"
    assert caught.value.hint == "try --batch-size 16"


def test_ranks_and_jobs_share_the_memory(monkeypatch):
    fits(monkeypatch, free=130 * GIB, ranks=2)
    with pytest.raises(WorkloadError, match=r"needs about 130 GiB for 2 ranks, 129 GiB are free"):
        fits(monkeypatch, free=129 * GIB, ranks=2)
    with pytest.raises(WorkloadError, match=r"and its companions need about 130 GiB, 129 GiB are free"):
        fits(monkeypatch, free=129 * GIB, jobs=2)


def test_the_same_workload_twice_is_tried_once_and_counted_twice(monkeypatch):
    tried, counted = [], []
    real = preflight.examine_one
    monkeypatch.setattr(preflight, "examine_one", lambda *args: tried.append(args) or real(*args))
    monkeypatch.setattr(preflight, "check_fits", lambda jobs, *_: counted.extend(jobs))
    twin = parse_workload("transformer-tiny")
    first, second = preflight.examine([twin, twin], "cpu", 1)
    assert first == second
    assert (len(tried), len(counted)) == (1, 2)


def test_workloads_that_run_one_after_another_are_to_fit_one_by_one(monkeypatch):
    asked = []

    def check(jobs, ranks, *_):
        asked.append(([job.batch_size for job, _ in jobs], ranks))

    monkeypatch.setattr(preflight, "check_fits", check)
    specs = [parse_workload(f"transformer-tiny:batch-size={size}") for size in (2, 4)]
    preflight.examine(specs, "cpu", 3)
    assert asked == [([2, 4], 3)]
    asked.clear()
    preflight.examine(specs, "cpu", [4, 1])
    assert asked == [([2], 4), ([4], 1)]


def test_each_gpu_holds_its_own_rank(monkeypatch):
    fits(monkeypatch, free=65 * GIB, ranks=4, gpus=[0, 1, 2, 3])
    fits(monkeypatch, free=65 * GIB, ranks=1, gpus=[3])
    with pytest.raises(WorkloadError, match=r"needs about 130 GiB for 2 ranks, 65.0 GiB are free on the GPU"):
        fits(monkeypatch, free=65 * GIB, ranks=4, gpus=[0, 1])


@pytest.mark.parametrize(
    ("free", "text", "hint"),
    [
        (GIB // 2, "transformer-tiny:batch-size=64", "its weights, gradients and optimizer alone need 1.00 GiB a rank"),
        (GIB + 1, "transformer-tiny:batch-size=64", "try a smaller --seq-len"),
        (GIB + 1, "resnet18", "try a smaller --image-size"),
    ],
)
def test_the_hint_says_what_would_help(monkeypatch, free, text, hint):
    with pytest.raises(WorkloadError) as caught:
        fits(monkeypatch, free=free, text=text)
    assert caught.value.hint == hint


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_input_counts_with_its_values(layout):
    weight = torch.ones(8, 3, requires_grad=True)
    inputs = torch.eye(8).to_sparse(layout=layout)
    _, saved = memory.saved_bytes(lambda: (inputs @ weight).sum(), {weight.untyped_storage()._cdata})
    assert saved == 8 * 4
