"""What a factory may hand in beyond a plain fp32 model: memory formats, autocast, torch.compile; and CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from xbench.errors import WorkloadError
from xbench.profilers.clock import HostClock
from xbench.profilers.layers import profile_step
from xbench.profilers.summary import summarise
from xbench.records import Layer
from xbench.schedules.bucket import CommBucket
from xbench.schedules.served_parameters import trainable
from xbench.spec import WorkloadSpec
from xbench.torch_compile import recorded_by
from xbench.workloads import parse_workload, preflight
from xbench.workloads.build import build

CPU = torch.device("cpu")
Writer = Callable[[str], WorkloadSpec]
HEAD = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.conv(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


NET = Net()
BATCH = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
LOSS = nn.CrossEntropyLoss()
"""
PLAIN_NAMES = [
    "conv.weight", "conv.bias", "blocks.0.0.weight", "blocks.0.0.bias", "blocks.1.0.weight", "blocks.1.0.bias",
    "head.weight", "head.bias",
]  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def to_file(body: str) -> WorkloadSpec:
        (tmp_path / "train.py").write_text(f"{HEAD}\n\n{body}\n")
        torch._dynamo.reset()
        return parse_workload(f"{tmp_path / 'train.py'}:make")

    return to_file


def refused(spec: WorkloadSpec) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        preflight.examine([spec], "cpu", 1)
    assert str(caught.value).startswith("train.py:make")
    return caught.value


def profiled(spec: WorkloadSpec) -> tuple[list[Layer], list[str]]:
    """The real profiler's layers of a factory's model, and the parameters' names as the engine calls them."""
    workload = build(spec, CPU)
    layers, _ = summarise([profile_step(workload, HostClock(), steps=4, warmup=1).raw()])
    return layers, list(trainable(workload.model))


def test_a_channels_last_model_is_profiled_and_its_gradients_travel_as_they_lie(write: Writer) -> None:
    spec = write(
        "def make():\n"
        "    images = BATCH[0].to(memory_format=torch.channels_last)\n"
        "    return NET.to(memory_format=torch.channels_last), (images, BATCH[1]), LOSS"
    )
    preflight.examine([spec], "cpu", 2)
    assert {layer.name for layer in profiled(spec)[0]} == {"conv", "blocks.0.0", "blocks.1.0", "head"}
    for rank in (0, 1):
        workload = build(spec, CPU, rank=rank)
        weight = workload.model.get_parameter("blocks.0.0.weight")
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert workload.inputs.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr]
    workload.forward_loss().backward()  # type: ignore[no-untyped-call]
    gradient = weight.grad
    bucket = CommBucket([weight], 0.5)
    bucket.fill(0)
    assert weight.grad is not gradient
    assert weight.grad.stride() == weight.stride()
    assert torch.equal(weight.grad, gradient * 0.5)


AUTOCAST = """
class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = NET

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.net(x)


def make():
    return Mixed(), BATCH, lambda outputs, targets: LOSS(outputs.float(), targets)
"""


def test_under_autocast_math_is_bf16_and_gradients_are_fp32(write: Writer) -> None:
    spec = write(AUTOCAST)
    preflight.examine([spec], "cpu", 2)
    assert build(spec, CPU).outputs().dtype == torch.bfloat16
    layers, names = profiled(spec)
    assert names == [f"net.{name}" for name in PLAIN_NAMES]
    assert {tensor.dtype for layer in layers for tensor in layer.tensors} == {"float32"}
    assert {tensor.bytes for layer in layers for tensor in layer.tensors if tensor.name == "net.head.bias"} == {20}


COMPILED = {
    "torch.compile(model)": "    return torch.compile(NET, backend={backend!r}), BATCH, LOSS",
    "model.compile()": "    NET.compile(backend={backend!r})\n    return NET, BATCH, LOSS",
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", COMPILED)
def test_a_compiled_model_is_one_layer_with_the_plain_model_s_names(write: Writer, how: str, backend: str) -> None:
    spec = write("def make():\n" + COMPILED[how].format(backend=backend))
    preflight.examine([spec], "cpu", 2)
    torch._dynamo.reset()
    counters.clear()
    layers, names = profiled(spec)
    assert counters["frames"]["total"] == 1  # profiling compiles it once
    assert names == PLAIN_NAMES
    assert [(layer.name, layer.kind) for layer in layers] == [("(model)", "Net (compiled)")]
    assert sorted(tensor.name for tensor in layers[0].tensors) == sorted(PLAIN_NAMES)
    assert all(tensor.ready_s > 0 for tensor in layers[0].tensors)


REGIONAL = {
    "torch.compile(block)": "NET.blocks[place] = torch.compile(NET.blocks[place], backend='aot_eager')",
    "block.compile()": "NET.blocks[place].compile(backend='aot_eager')",
}


@pytest.mark.parametrize("how", REGIONAL)
def test_compiled_blocks_are_layers_among_others(write: Writer, how: str) -> None:
    spec = write(f"def make():\n    for place in range(2):\n        {REGIONAL[how]}\n    return NET, BATCH, LOSS")
    preflight.examine([spec], "cpu", 2)
    layers, names = profiled(spec)
    assert names == PLAIN_NAMES
    assert [(layer.name, layer.kind) for layer in layers] == [
        ("head", "Linear"),
        ("blocks.1", "Sequential (compiled)"),
        ("blocks.0", "Sequential (compiled)"),
        ("conv", "Conv2d"),
    ]
    assert [layer.parameters for layer in layers] == [45, 584, 584, 224]


# --- what is refused by name ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "def make():\n    return torch.compile(NET, mode='reduce-overhead'), BATCH, LOSS",
        "def make():\n    return torch.compile(NET, mode='max-autotune'), BATCH, LOSS",
        "def make():\n    NET.blocks[1].compile(options={'triton.cudagraphs': True})\n    return NET, BATCH, LOSS",
    ],
)
def test_compiling_with_cuda_graphs_is_refused_by_name(write: Writer, body: str) -> None:
    error = refused(write(body))
    assert "recorded in a CUDA graph by torch.compile" in str(error)
    assert "max-autotune-no-cudagraphs" in (error.hint or "")


def test_modes_without_cuda_graphs_are_not_refused(write: Writer) -> None:
    for mode in ("default", "max-autotune-no-cudagraphs"):
        spec = write(f"def make():\n    return torch.compile(NET, mode={mode!r}), BATCH, LOSS")
        assert recorded_by(build(spec, CPU).model) is None


def test_a_graphed_callable_is_refused_by_name(write: Writer) -> None:
    # As torch.cuda.make_graphed_callables leaves a module, which takes a GPU to do.
    spec = write(
        "def make_graphed_callables(module):\n"
        "    def make_graphed_forward(inner):\n"
        "        def new_fwd(*arguments):\n            return inner(*arguments)\n"
        "        return new_fwd\n"
        "    module.forward = make_graphed_forward(module.forward)\n"
        "    return module\n\n\n"
        "def make():\n    make_graphed_callables(NET.blocks[0])\n    return NET, BATCH, LOSS"
    )
    assert "recorded in a CUDA graph by torch.cuda.make_graphed_callables" in str(refused(spec))


@pytest.mark.parametrize("method", ["replay", "capture_begin"])
def test_a_graph_recorded_or_replayed_by_hand_is_refused(
    write: Writer, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    class Graph:
        def replay(self) -> None: ...

        def capture_begin(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    before = dict(vars(Graph))
    spec = write(
        "class Replayed(Net):\n    def forward(self, x):\n"
        f"        torch.cuda.CUDAGraph().{method}()\n        return super().forward(x)\n\n\n"
        "def make():\n    return Replayed(), BATCH, LOSS"
    )
    assert "recorded in a CUDA graph, in which" in str(refused(spec))
    assert dict(vars(Graph)) == before


def test_layers_inside_a_compiled_function_are_refused_with_what_to_do(write: Writer) -> None:
    spec = write(
        "class Fast(Net):\n    def __init__(self):\n        super().__init__()\n"
        "        self.run = torch.compile(self.body, backend='eager')\n\n"
        "    def body(self, x):\n        return self.blocks[1](self.blocks[0](x))\n\n"
        "    def forward(self, x):\n        return self.head(self.run(self.conv(x)).mean((2, 3)))\n\n\n"
        "def make():\n    return Fast(), BATCH, LOSS"
    )
    error = refused(spec)
    assert "layer 'blocks.0.0' runs inside a function compiled" in str(error)
    assert "torch.compile(module)" in (error.hint or "")
    without_layers = write(
        "pool = torch.compile(lambda x: x.mean((2, 3)), backend='eager')\n\n\n"
        "class Pooled(Net):\n    def forward(self, x):\n        return self.head(pool(self.conv(x)))\n\n\n"
        "def make():\n    return Pooled(), BATCH, LOSS"
    )
    preflight.examine([without_layers], "cpu", 1)


def test_memory_that_runs_out_in_the_trial_step_is_one_sentence(write: Writer) -> None:
    spec = write(
        "class Vast(Net):\n    def forward(self, x):\n"
        "        return super().forward(x) + torch.empty(2**45, dtype=torch.uint8).sum()\n\n\n"
        "def make():\n    return Vast(), BATCH, LOSS"
    )
    error = refused(spec)
    assert "ran out of memory on its own batch: 32768 GiB" in str(error)
    assert "smaller batch" in (error.hint or "")
