"""What is found before anything is launched: images, memory, factories; and the process that finds it."""

import json
import subprocess
import sys
import time
import warnings

import pytest
import torch

from xbench.errors import SpecError, WorkloadError
from xbench.rank.journal import process_state
from xbench.spec import WorkloadSpec
from xbench.workloads import memory, parse_workload, preflight, resolve
from xbench.workloads import probe as probing
from xbench.workloads.build import build
from xbench.workloads.memory import PROCESS_BYTES, Footprint, check_fits, footprint
from xbench.workloads.preflight import Tried
from xbench.workloads.probe import probe

META = torch.device("meta")
GIB = 1024**3
HEAD = "import os, time, torch\nfrom torch import nn\nLOSS = nn.functional.cross_entropy\n"


@pytest.fixture
def write(tmp_path):
    def to_file(body):
        (tmp_path / "train.py").write_text(f"{HEAD}def make():\n{body}\n")
        return parse_workload(f"{tmp_path / 'train.py'}:make")

    return to_file


def test_specs_come_back_resolved_and_described():
    spec = parse_workload("resnet50")
    (answer,) = preflight.examine([spec], "cpu", 2)
    assert WorkloadSpec.model_validate(answer["record"]["spec"]) == resolve(spec, "cpu")
    assert (answer["record"]["parameters"], answer["record"]["tensors"]) == (25_557_032, 161)
    assert answer["record"]["grad_bytes"] == 4 * 25_557_032


def test_an_image_too_small_for_its_batch_names_the_next_that_works():
    spec = WorkloadSpec(name="resnet18", batch_size=1, image_size=32)
    with pytest.raises(WorkloadError) as caught:
        preflight.examine([spec], "cpu", 1)
    assert "32 px in batches of 1; the smallest above it that works is 33 px" in str(caught.value)
    assert caught.value.hint == "try --image-size 33"
    assert "Expected more than 1 value per channel" in caught.value.detail


@pytest.mark.parametrize(
    ("name", "asked", "works"), [("inception_v3", 40, 75), ("vit_b_32", 50, 64), ("alexnet", 1, 63)]
)
def test_the_search_finds_the_smallest_image_above(name, asked, works):
    spec = WorkloadSpec(name=name, batch_size=2, image_size=asked)
    assert preflight.nearest_image_size(spec) == works


def test_activations_of_a_chain_are_counted_exactly():
    """Each layer saves its weight (known), the norm, the cosine's input and output: (8, 64) floats, shared in a row."""
    shapes = {}
    for layers in (5, 6):
        workload = build(WorkloadSpec(name=f"synthetic:layers={layers},bytes=4k", batch_size=8), META)
        shapes[layers], loss = footprint(workload)
        assert loss.shape == ()
    # one more layer: its cosine (8 × 64), its input (the layer before's output), its norm and the scaled norm
    assert shapes[6].activation_bytes - shapes[5].activation_bytes == 2 * 8 * 64 * 4 + 2 * 4
    assert shapes[6].fixed_bytes - shapes[5].fixed_bytes == 5 * 4096


def test_on_a_gpu_the_initial_weights_are_kept_in_the_host_s_memory():
    workload = build(WorkloadSpec(name="synthetic:layers=5,bytes=4k", batch_size=8), META)
    here, there = (footprint(workload, on_gpu=on_gpu)[0] for on_gpu in (False, True))
    assert here.fixed_bytes - there.fixed_bytes == 5 * 4096


def test_adamw_keeps_one_more_copy_than_sgd():
    totals = {
        optimizer: footprint(build(resolve(parse_workload("transformer-tiny", optimizer=optimizer), "cpu"), META))[0]
        for optimizer in ("sgd", "adamw")
    }
    assert totals["adamw"].fixed_bytes - totals["sgd"].fixed_bytes == 4 * 172_288


def test_the_fullest_of_the_gpus_that_are_used_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: ([40, 30, 20, 50][index], 80))
    assert memory.available_bytes([0, 1, 2, 3]) == 20
    assert memory.available_bytes([1]) == 30


V2 = {"memory.current": "600\n", "memory.stat": "anon 500\ninactive_file 100\n", "memory.max": "max\n"}
V1 = {"memory.usage_in_bytes": "600\n", "memory.stat": "inactive_file 7\ntotal_inactive_file 100\n"}


@pytest.mark.parametrize(
    ("files", "where", "left"),
    [
        ({}, {}, None),
        (V2, {}, None),
        (V2 | {"memory.max": "1000\n"}, {}, 500),
        ({f"a/{name}": text for name, text in (V2 | {"memory.max": "1000"}).items()} | V2, {"group": "/a/b"}, 500),
        (V1 | {"memory.limit_in_bytes": "1100\n"}, {"controller": "memory"}, 600),
        (V1 | {"memory.limit_in_bytes": "900\n"}, {"controller": "memory", "group": "/d/4f", "top": "/d/4f"}, 400),
        (V2 | {"memory.max": "500\n"}, {}, 0),
    ],
)
def test_the_tightest_limit_of_all_control_groups_counts(fake_groups, files, where, left):
    assert memory._control_group_bytes(fake_groups(files, **where)) == left


def test_free_memory_is_that_of_the_tighter_of_machine_and_group(monkeypatch):
    monkeypatch.setattr(memory, "_control_group_bytes", lambda: 7)
    assert memory.available_bytes([]) == 7
    monkeypatch.setattr(memory, "_control_group_bytes", lambda: None)
    assert memory.available_bytes([]) > PROCESS_BYTES


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return nn.Linear(3, 2), (torch.ones(4, 5), torch.ones(4)), LOSS", "cannot run a step on its own batch"),
        ("    return nn.Linear(3, 2), (torch.ones(4, 3), None), lambda o, t: 3.0", "is a float and not a tensor"),
        ("    return nn.Linear(3, 2), (torch.ones(4, 3), None), lambda o, t: o", "the loss has shape (4, 2)"),
        (
            "    return nn.Linear(3, 2), (torch.ones(4, 3), None), lambda o, t: o.detach().sum()",
            "does not depend on any trainable parameter",
        ),
        (
            "    def loss(o, t):\n        raise KeyError('labels')\n"
            "    return nn.Linear(3, 2), (torch.ones(4, 3), 0), loss",
            "(inputs 4×3): train.py:6 raised KeyError: 'labels'",
        ),
    ],
)
def test_a_factory_whose_step_fails_is_found_before_launching(write, body, message):
    with pytest.raises(WorkloadError) as caught:
        preflight.examine([write(body)], "cpu", 1)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_loss_that_is_given_an_object_with_logits_gets_the_line_to_write(write):
    body = (
        "    class Out:\n        def __init__(self, logits): self.logits = logits\n"
        "    class Net(nn.Linear):\n        def forward(self, x): return Out(super().forward(x))\n"
        "    return Net(3, 2), (torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)), nn.CrossEntropyLoss()"
    )
    with pytest.raises(WorkloadError, match="TypeError: cross_entropy_loss") as caught:
        preflight.examine([write(body)], "cpu", 1)
    assert caught.value.hint == "the model returns an object with logits: lambda out, t: loss(out.logits, t)"


def test_the_device_is_chosen_or_refused():
    gpus = ["NVIDIA H200"] * 2
    assert preflight.choose_device("auto", []) == preflight.choose_device("cpu", gpus) == "cpu"
    assert preflight.choose_device("auto", gpus) == preflight.choose_device("cuda", gpus) == "cuda"
    assert preflight.choose_device("cuda:1", gpus) == "cuda"
    with pytest.raises(SpecError, match="--device cuda:2: there is no such GPU"):
        preflight.choose_device("cuda:2", gpus)
    for asked in ("cuda", "cuda:0"):
        with pytest.raises(SpecError, match=rf"--device {asked}: torch sees no usable GPU here"):
            preflight.choose_device(asked, [], "Found no NVIDIA driver on your system.")


def test_a_gpu_that_is_picked_is_where_the_factory_runs_and_whose_memory_counts(monkeypatch):
    tried, counted = [], []
    monkeypatch.setattr(preflight, "usable_gpus", lambda: (["NVIDIA H200"] * 2, ""))
    monkeypatch.setattr(
        preflight, "examine_one", lambda spec, device: tried.append(str(device)) or Tried(None, None, [])
    )
    monkeypatch.setattr(preflight, "check_fits", lambda jobs, ranks, gpus, own: counted.append(gpus) or 1 / 0)
    request = {"workloads": [{"name": "transformer-tiny"}], "ranks_per_host": 1}
    for asked in ("cuda:1", "cuda", "cpu"):
        answer = preflight.respond(request | {"device": asked})
        assert "ZeroDivisionError" in answer["error"]["message"]
        assert answer["gpu"] == (1 if asked == "cuda:1" else None)
    assert tried == ["cuda:1", "cuda", "cpu"]
    assert counted == [[1], [0, 1], []]


def test_a_rank_with_a_preflight_of_its_own_uses_its_gpu_alone(monkeypatch):
    current, tried, read = [], [], []
    monkeypatch.setattr(preflight, "usable_gpus", lambda: (["NVIDIA H200"] * 4, ""))
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: read.append(index) or (0, 0))
    workload = build(resolve(parse_workload("transformer-tiny"), "cpu"), META)
    monkeypatch.setattr(
        preflight, "examine_one", lambda spec, device: tried.append(str(device)) or Tried(workload, Footprint(7, 0), [])
    )
    request = {"workloads": [{"name": "transformer-tiny"}], "device": "cuda", "ranks_per_host": 4}
    answer = preflight.respond(request | {"local_rank": 2})
    assert "needs about 7 B, 0 B are free on the GPU" in answer["error"]["message"]  # one rank a GPU, not four on one
    assert (current, tried, read) == ([2], ["cuda:2"], [2])
    preflight.respond(request | {"local_rank": None})
    assert (current, tried[1:], read[1:]) == ([2], ["cuda"], [0, 1, 2, 3])


def test_ranks_that_see_one_gpu_each_do_not_share_it(monkeypatch):
    counted = []
    monkeypatch.setattr(preflight, "usable_gpus", lambda: (["NVIDIA H200"], ""))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(preflight, "examine", lambda specs, device, ranks, *_: counted.append(ranks) or [])
    request = {"workloads": [], "device": "cuda", "ranks_per_host": 4, "local_rank": 3}
    for visible in ("3", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        preflight.respond(request)
    assert counted == [1, 4]


def test_a_driver_that_is_too_old_is_refused_unless_the_cpu_was_asked_for(monkeypatch):
    said = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11080). Please update"

    def is_available():
        warnings.warn(said, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = "the NVIDIA driver here knows CUDA up to 11.8, and this torch was built for CUDA 13.0"

    def error(device):
        return preflight.respond({"workloads": [], "device": device, "ranks_per_host": 1})["error"]

    refusal = error("auto")
    assert (refusal["type"], refusal["detail"], refusal["lines"]) == ("SpecError", None, [])
    assert told in refusal["message"]
    assert "CUDA 11.8 or older" in refusal["hint"]
    assert error("cuda")["message"] == f"--device cuda: {told}"
    assert error("cpu") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert error("auto") is None


def test_probe_asks_another_process(write):
    noisy = write(
        "    print('hello'); os.write(1, b'world')\n"
        "    return nn.Linear(3, 2), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), LOSS"
    )
    found = probe([parse_workload("transformer-tiny"), noisy], "cpu", 2)
    assert found.specs == (resolve(parse_workload("transformer-tiny"), "cpu"), noisy)
    assert [probed.record.parameters for probed in found.workloads] == [172_288, 8]
    assert (found.device, found.torch) == ("cpu", torch.__version__)


def test_probe_raises_what_the_preflight_found(write, monkeypatch):
    spec = write("    raise ValueError('out of data')")
    answer = preflight.respond({"workloads": [spec.model_dump()], "device": "cpu", "ranks_per_host": 1})
    monkeypatch.setattr(probing, "PREFLIGHT", (sys.executable, "-S", "-c", f"print({json.dumps(answer)!r})"))
    with pytest.raises(WorkloadError, match=r"train.py:5 raised ValueError: out of data") as caught:
        probe([spec], "cpu", 1)
    assert "Traceback" in caught.value.detail


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL and no answer$"),
        ("print('[]')", "exit status 0 and no answer$"),
        ("import no", "exit status 1 and no answer: "),
        (
            "import sys; sys.exit('first\\nImportError: \\x1b[31mlib.so: failed\\n')",
            r"exit status 1 and no answer: ImportError: \[31mlib.so: failed$",
        ),
    ],
)
def test_a_check_that_crashes_is_one_sentence(monkeypatch, code, ending):
    monkeypatch.setattr(probing, "PREFLIGHT", (sys.executable, "-S", "-c", code))
    with pytest.raises(WorkloadError, match=f"checking resnet50 ended with {ending}"):
        probe([parse_workload("resnet50")], "cpu", 1)


def test_a_check_that_hangs_is_given_up_and_killed_with_its_children(monkeypatch, tmp_path):
    child = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()} '); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {child!r}, sys.argv[1]])\n{child}"
    monkeypatch.setattr(probing, "PREFLIGHT", (sys.executable, "-S", "-c", code, str(tmp_path / "pids")))
    with pytest.raises(WorkloadError, match=r"checking resnet50 took longer than 2.00 s"):
        probe([parse_workload("resnet50")], "cpu", 1, timeout_s=2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert pids
    assert alive_at_last(pids) == []


def alive_at_last(pids: list[int]) -> list[int]:
    """Those that live on for ten seconds: the kernel takes a moment to end what was killed."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(process_state(pid) not in (None, "Z") for pid in pids):
        time.sleep(0.01)
    return [pid for pid in pids if process_state(pid) not in (None, "Z")]


def test_a_check_dies_with_the_run_that_is_killed(tmp_path):
    pids = tmp_path / "pids"
    checking = f"import os, time; open({str(pids)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(600)"
    code = (
        "import sys; from xbench.workloads import parse_workload, probe\n"
        f"probe.PREFLIGHT = (sys.executable, '-S', '-c', {checking!r})\n"
        "probe.probe([parse_workload('resnet50')], 'cpu', 1)"
    )
    run = subprocess.Popen([sys.executable, "-c", code])
    while not (pids.exists() and pids.read_text().endswith(" ")):
        assert run.poll() is None
        time.sleep(0.01)
    run.kill()
    run.wait()
    assert alive_at_last([int(pids.read_text())]) == []


FOUND = {"torch": "2.15", "torchvision": "0.29", "nccl": "2.30.7", "cuda": "13.2", "workloads": []}


@pytest.mark.parametrize(
    ("device", "names", "told"),
    [
        ("cuda", ["NVIDIA H200", "NVIDIA H200"], ("NVIDIA H200", 2)),
        ("cuda", ["NVIDIA H200", "NVIDIA L4"], ("NVIDIA H200 and NVIDIA L4", 2)),
        ("cpu", ["NVIDIA H200"], ("cpu", 0)),
    ],
)
def test_the_environment_names_the_gpus_that_are_used(device, names, told):
    found = probing.Preflight(device=device, gpus=len(names), gpu_names=names, **FOUND)
    facts = found.environment_facts()
    assert (facts.pop("device"), facts.pop("device_count")) == told
    assert facts == {"torch": "2.15", "torchvision": "0.29", "nccl": "2.30.7", "cuda": "13.2"}


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
