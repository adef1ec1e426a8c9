"""Errors that only show in a step, or in a process group, are found before ranks are started, with the user's line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from xbench.errors import WorkloadError
from xbench.spec import WorkloadSpec
from xbench.workloads import parse_workload, preflight
from xbench.workloads.build import build
from xbench.workloads.preflight import group_of_one
from xbench.workloads.probe import Preflight, Probed

HEAD = "import torch\nimport torch.distributed as dist\nfrom torch import nn\n"
BATCH = "(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), nn.CrossEntropyLoss()\n"
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.head, self.kept = nn.Linear(3, 3), nn.Linear(3, 2), None
        self.made()

    def made(self):
        pass

"""
Writer = Callable[[str], WorkloadSpec]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def to_file(body: str) -> WorkloadSpec:
        (tmp_path / "train.py").write_text(HEAD + body)
        return parse_workload(f"{tmp_path / 'train.py'}:make")

    return to_file


def refused(spec: WorkloadSpec) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        preflight.examine_one(spec, torch.device("cpu"))
    assert "\n" not in str(caught.value)
    return caught.value


def line_of(text: str, body: str) -> int:
    return 1 + next(number for number, line in enumerate((HEAD + body).splitlines()) if text in line)


MARGIN = """
from functools import partial
model, scale = nn.Linear(3, 2), nn.Parameter(torch.tensor(2.0))

class Margin(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(5, 2))

    def forward(self, features, labels):
        return nn.functional.cross_entropy(features @ self.centres.t(), labels)

    def other(self, features, labels):
        return self(features, labels)

margin = Margin()

def given(margin, features, labels):
    return margin(features, labels)

def scaled(features, labels):
    return (scale * features).square().mean()

def of_attribute():
    def loss(features, labels):
        return loss.margin(features, labels)
    loss.margin = margin
    return loss

class Unregistered(nn.Linear):
    def forward(self, x):
        return self.parts[0](super().forward(x))

unregistered = Unregistered(3, 2)
unregistered.parts = [nn.Linear(2, 2)]
"""


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        ("margin", "5×2"),
        ("margin.other", "5×2"),
        ("partial(given, margin)", "5×2"),
        ("lambda features, labels: margin(features, labels)", "5×2"),
        ("of_attribute()", "5×2"),
        ("scaled", "one number"),
        ("nn.CrossEntropyLoss()|unregistered", "2×2, 2"),
    ],
)
def test_parameters_outside_of_the_model_are_refused(write: Writer, loss: str, shape: str) -> None:
    loss, _, model = loss.partition("|")
    batch = "(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))"
    error = refused(write(f"{MARGIN}\ndef make():\n    return {model or 'model'}, {batch}, {loss}\n"))
    assert f"outside of the model ({shape})" in str(error)
    assert "make the loss a part of the model" in (error.hint or "")


@pytest.mark.parametrize(
    "body",
    [
        # a teacher without gradients, a penalty on the model's own weights, a gradient by the inputs
        "    def loss(o, t):\n        with torch.no_grad():\n            aim = margin(o, t)\n"
        "        return (o.square().mean() - aim) + model.weight.square().sum()\n"
        "    return model, (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), loss\n",
        "    x = torch.randn(4, 3, requires_grad=True)\n"
        "    return model, (x, x), lambda o, x: torch.autograd.grad(o.sum(), x, create_graph=True)[0].square().sum()\n"
        "make.vary = 'none'\n",
        "    class Forces(nn.Linear):\n        def forward(self, x):\n            x = x.detach().requires_grad_()\n"
        "            return torch.autograd.grad(super().forward(x).square().sum(), x, create_graph=True)[0]\n"
        "    return Forces(3, 2), (torch.randn(4, 3), None), lambda o, _: o.square().mean()\n",
    ],
)
def test_what_a_step_does_not_train_may_be_outside_of_the_model(write: Writer, body: str) -> None:
    preflight.examine_one(write(f"{MARGIN}\ndef make():\n{body}"), torch.device("cpu"))


def test_a_batch_that_does_not_tell_its_size_is_told_of(write: Writer) -> None:
    body = "def make():\n    return nn.Linear(3, 2), (torch.randn(5, 4, 3), torch.zeros(9)), lambda o, t: o.mean()\n"
    tried = preflight.examine_one(write(body), torch.device("cpu"))
    assert any("make.batch_size = N" in one for one in tried.warnings)


def test_a_state_that_is_kept_in_the_graph_is_found_in_the_second_step(write: Writer) -> None:
    body = NET + (
        "    def forward(self, x):\n"
        "        self.kept = self.linear(x) if self.kept is None else self.linear(x + self.kept)\n"
        "        return self.head(self.kept)\n\n"
        f"def make():\n    return Net(), {BATCH}"
    )
    error = refused(write(body))
    assert str(error) == (
        "train.py:make: its second step goes back through the graph of the first, at "
        f"train.py:{line_of('self.kept = self.linear', body)}"
    )
    assert error.hint.startswith("detach()")


def test_inputs_that_hang_on_a_graph_are_found_with_the_line_that_made_them(write: Writer) -> None:
    body = (
        "def make():\n    stem = nn.Linear(3, 3)\n    inputs = stem(torch.randn(4, 3))\n"
        "    return nn.Linear(3, 2), (inputs, torch.tensor([0, 1, 0, 1])), nn.CrossEntropyLoss()\n"
    )
    assert f"at train.py:{line_of('inputs = stem', body)}" in str(refused(write(body)))


@pytest.mark.parametrize(("number", "which"), [(1, "second"), (2, "third")])
def test_an_error_of_a_later_step_says_so(write: Writer, number: int, which: str) -> None:
    body = NET + (
        f"    def forward(self, x):\n        if self.kept == {number}:\n            raise ValueError('only so often')\n"
        "        self.kept = (self.kept or 0) + 1\n        return self.head(self.linear(x))\n\n"
        f"def make():\n    return Net(), {BATCH}"
    )
    line = line_of("only so often", body)
    assert str(refused(write(body))) == (
        f"train.py:make cannot run a {which} step on its own batch (inputs 4×3): "
        f"train.py:{line} raised ValueError: only so often"
    )


LOADED = "def make():\n    return nn.Linear(3, 2), {}, nn.CrossEntropyLoss()\n"


def test_a_step_on_the_second_batch_of_a_loader_is_tried(write: Writer) -> None:
    wider = "iter([(torch.ones(2, columns), torch.tensor([0, 1])) for columns in (3, 5)])"
    assert "cannot run a second step on its own batch (inputs 2×5)" in str(refused(write(LOADED.format(wider))))


def test_an_iterator_of_one_batch_is_told_that_it_ends(write: Writer) -> None:
    error = refused(write(LOADED.format("iter([(torch.ones(2, 3), torch.tensor([0, 1]))])")))
    assert str(error).startswith("train.py:make: its list_iterator ended after 1 batch and cannot be started again")


def test_a_loader_passes_with_its_name_in_the_record(write: Writer) -> None:
    data = "torch.utils.data.TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)"
    found = preflight.examine_one(
        write(LOADED.format(f"torch.utils.data.DataLoader({data}, batch_size=4)")), torch.device("cpu")
    )
    assert (found.workload.describe().loader, found.warnings) == ("DataLoader", [])


def test_a_parameter_made_or_replaced_in_forward_is_named(write: Writer) -> None:
    for line, how in (
        ("self.gain = nn.Parameter(torch.ones(()))", "makes the model's parameter 'gain'"),
        ("self.head.bias = nn.Parameter(torch.ones(2))", "replaces the model's parameter 'head.bias'"),
    ):
        body = NET + f"    def forward(self, x):\n        {line}\n        return self.head(self.linear(x))\n\n"
        error = refused(write(body + f"def make():\n    return Net(), {BATCH}"))
        assert how in str(error)
        assert error.hint == "run the model once in the factory before returning it"


# --- what a process group shows ---------------------------------------------------------------------------------------


def test_a_factory_that_makes_a_process_group_is_told_to_guard_it(write: Writer) -> None:
    body = (
        "def make():\n    {}dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        f"    return nn.Linear(3, 2), {BATCH}"
    )
    error = refused(write(body.format("")))
    assert str(error) == (
        "train.py:make cannot be built: train.py:5 makes a process group, and xbench has already made one"
    )
    assert "if not torch.distributed.is_initialized()" in (error.hint or "")
    guarded = write(body.format("if not dist.is_initialized(): "))
    assert preflight.examine_one(guarded, torch.device("cpu")).warnings == []
    assert not dist.is_initialized()


def test_a_factory_that_destroys_the_group_is_refused(write: Writer) -> None:
    error = refused(write(f"def make():\n    dist.destroy_process_group()\n    return nn.Linear(3, 2), {BATCH}"))
    assert "destroys the process group" in str(error)


@pytest.mark.parametrize(
    ("wrapping", "said"),
    [
        ("nn.parallel.DistributedDataParallel(net)", "the model is wrapped in DistributedDataParallel"),
        (
            "nn.Sequential(nn.parallel.DistributedDataParallel(net))",
            "the model's part '0' is wrapped in DistributedDataParallel",
        ),
        (
            "fully_shard(net, mesh=dist.device_mesh.init_device_mesh('cpu', (1,)))",
            "the model is wrapped in fully_shard",
        ),
    ],
)
def test_a_model_that_is_wrapped_where_there_is_a_group_is_refused(write: Writer, wrapping: str, said: str) -> None:
    body = (
        "from torch.distributed.fsdp import fully_shard\n"
        f"def make():\n    net = nn.Linear(3, 2)\n    if dist.is_initialized():\n        net = {wrapping}\n"
        f"    return net, {BATCH}"
    )
    error = refused(write(body))
    assert said in str(error)
    assert error.hint == "hand the model in unwrapped"


def test_a_sharded_parameter_is_refused_by_name(write: Writer) -> None:
    body = (
        "from torch.distributed.tensor import distribute_tensor, Replicate\n"
        "def make():\n    net = nn.Linear(3, 2)\n    mesh = dist.device_mesh.init_device_mesh('cpu', (1,))\n"
        "    net.weight = nn.Parameter(distribute_tensor(net.weight.data, mesh, [Replicate()]))\n"
        f"    return net, {BATCH}"
    )
    assert "the model's parameter 'weight' is sharded over ranks (a DTensor)" in str(refused(write(body)))


def test_data_parallel_of_one_process_is_no_wrapper_of_ranks(write: Writer) -> None:
    spec = write(f"def make():\n    return nn.DataParallel(nn.Linear(3, 2)), {BATCH}")
    assert preflight.examine_one(spec, torch.device("cpu")).warnings == []


def test_synchronised_batch_norm_on_a_cpu_is_refused_before_ranks_are_started(write: Writer) -> None:
    body = NET + (
        "    def made(self):\n        self.norm = nn.SyncBatchNorm(3)\n\n"
        "    def forward(self, x):\n        return self.head(self.norm(self.linear(x)))\n\n"
        f"def make():\n    return Net(), {BATCH}"
    )
    line = line_of("self.norm(self", body)
    assert f"train.py:{line} raised ValueError: SyncBatchNorm expected input tensor" in str(refused(write(body)))


def test_the_group_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    with group_of_one():
        assert dist.get_world_size() == 1
        with group_of_one():  # one that is there is kept
            pass
        assert dist.is_initialized()
    assert not dist.is_initialized()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth99"


# --- what is handed in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("self.register_buffer('mask', torch.ones(3).expand(4, 3))", "buffer 'mask' is an expanded view"),
        ("self.gain = nn.Parameter(torch.ones(1).expand(3))", "parameter 'gain' is an expanded view"),
    ],
)
def test_what_shares_its_own_memory_is_refused_by_name(write: Writer, made: str, said: str) -> None:
    body = NET + f"    def made(self):\n        {made}\n\ndef make():\n    return Net(), {BATCH}"
    error = refused(write(body))
    assert f"train.py:make: the model's {said}" in str(error)
    assert error.hint.endswith(".clone() has memory of its own")


def test_frozen_parts_in_evaluation_mode_stay_so(write: Writer) -> None:
    spec = write(
        "def make():\n    body = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval().requires_grad_(False)\n"
        f"    return nn.Sequential(body, nn.Linear(3, 2)), {BATCH}"
    )
    model = build(spec, torch.device("cpu")).model
    assert [module.training for module in model.modules()] == [True, False, False, False, True]
    assert preflight.examine_one(spec, torch.device("cpu")).warnings == []


def test_a_whole_model_in_evaluation_mode_is_measured_so_and_told(write: Writer) -> None:
    spec = write(f"def make():\n    return nn.Linear(3, 2).eval(), {BATCH}")
    tried = preflight.examine_one(spec, torch.device("cpu"))
    assert not tried.workload.model.training
    assert tried.warnings == [
        "train.py:make: the factory's model is in evaluation mode, and is measured so: .train() ends it"
    ]


def test_the_parent_learns_warnings_and_equal_batches(write: Writer) -> None:
    body = "def make():\n    return nn.Linear(3, 2), (torch.ones(1, 3), torch.tensor([1])), nn.CrossEntropyLoss()\n"
    assert "make.vary = 'none'" in str(refused(write(body)).hint)
    (answer,) = preflight.examine([write(f"{body}make.vary = 'none'\n")], "cpu", 1)
    probed = Probed.model_validate(answer)
    assert probed.record.spec.variation == "none"
    assert len(probed.warnings) == 1
    found = Preflight(device="cpu", gpus=0, torch="2", torchvision=None, nccl=None, cuda=None, workloads=[probed] * 2)
    assert found.warnings == probed.warnings
