"""A user's own factory: what it may return, what its mistakes look like, how its batch differs by rank."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from xbench.errors import WorkloadError
from xbench.report.sentences import workload_line
from xbench.spec import WorkloadSpec
from xbench.workloads import WORKLOADS, parse_workload
from xbench.workloads.build import build

CPU = torch.device("cpu")
EXAMPLE = Path(__file__).parents[3] / "examples" / "train.py"
HEAD = "import torch\nfrom torch import nn\nMODEL, LOSS = nn.Linear(3, 2), nn.functional.cross_entropy\n"


@pytest.fixture
def write(tmp_path):
    def to_file(text, name="train.py"):
        (tmp_path / name).write_text(HEAD + text)
        return f"{tmp_path / name}:make"

    return to_file


def make(text, rank=0, **options):
    return build(parse_workload(text, **options), CPU, rank=rank)


def test_the_example_is_short_and_trains():
    assert len([line for line in EXAMPLE.read_text().splitlines() if line.strip()]) <= 10
    workload = make(f"{EXAMPLE}:make")
    first = workload.forward_loss()
    first.backward()
    workload.optimizer.step()
    assert workload.forward_loss() < first
    assert (workload.batch_size, workload.input_description) == (32, "256 float32")
    assert workload.describe().title == "train.py:make"


@pytest.mark.parametrize(
    ("inputs", "description"),
    [
        ("(torch.randn(4, 3), torch.ones(4))", "3 float32, 1 float32"),
        ("{'x': torch.randn(4, 3), 'scale': torch.ones(4)}", "3 float32, 1 float32"),
        ("[torch.randn(4, 3), torch.tensor([2, 2, 2, 2])]", "3 float32, 1 int64"),
        ("UserDict(x=torch.randn(4, 3), scale=torch.ones(4))", "3 float32, 1 float32"),
    ],
)
def test_inputs_may_be_tuples_lists_and_dicts(write, inputs, description):
    text = write(
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(3, 2)\n"
        "    def forward(self, x, scale):\n        return self.linear(x) * scale.unsqueeze(1)\n"
        "from collections import UserDict\n"
        f"def make():\n    return Net(), ({inputs}, torch.tensor([0, 1, 0, 1])), LOSS\n"
    )
    workload = make(text)
    assert torch.isfinite(workload.forward_loss())
    assert (workload.batch_size, workload.input_description) == (4, description)


@pytest.mark.parametrize(
    ("parameters", "needed"), [("width", "width"), ("width, depth=2, *, heads", "width, heads"), ("**more", None)]
)
def test_a_factory_that_needs_arguments_is_told_so_by_their_names(write, parameters, needed):
    text = write(f"def make({parameters}):\n    return MODEL, (torch.randn(4, 3), torch.randn(4, 2)), nn.MSELoss()\n")
    if needed is None:
        assert torch.isfinite(make(text).forward_loss())
        return
    with pytest.raises(WorkloadError) as caught:
        make(text)
    assert str(caught.value) == f"train.py:make needs {needed}, and a factory is called without arguments"
    assert caught.value.hint == "give defaults, or write a function that calls it with values"


def test_every_rank_gets_the_same_model_and_its_own_batch(write):
    text = write(
        "import random, numpy as np\n"
        "def make():\n"
        "    model = nn.Linear(3, 2)\n"
        "    model.bias.data.fill_(random.random() + np.random.rand())\n"
        "    return model, (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), LOSS\n"
    )
    random.seed(), np.random.seed()
    zero, one, two = (make(text, rank) for rank in range(3))
    for workload in (one, two):
        assert torch.equal(workload.model.weight, zero.model.weight)
        assert torch.equal(workload.model.bias, zero.model.bias)
        assert not torch.equal(workload.inputs, zero.inputs)
        places = [zero.inputs.tolist().index(sample) for sample in workload.inputs.tolist()]
        assert torch.equal(workload.targets, zero.targets[places])
    assert torch.equal(make(text, 1).inputs, one.inputs)


def test_a_factory_may_make_the_batch_of_each_rank_or_give_all_the_same(write):
    body = "    return nn.Linear(3, 2), (torch.full((1, 3), {} + 1.0), torch.tensor([0])), LOSS\n"
    own = write("def make(rank):\n" + body.format("rank"))
    assert [make(own, rank).inputs[0, 0].item() for rank in range(3)] == [1.0, 2.0, 3.0]
    assert make(own).spec.variation == "rank"
    same = write("def make():\n" + body.format("0") + "make.vary = 'none'\n")
    assert torch.equal(make(same, 1).inputs, make(same).inputs)
    assert make(same).spec.variation == "none"
    with pytest.raises(WorkloadError, match=r"vary is 'noise' and must be 'samples' or 'none'"):
        make(write("def make():\n" + body.format("0") + "make.vary = 'noise'\n"))


@pytest.mark.parametrize(
    ("batch", "more", "size", "description"),
    [
        ("(torch.randn(9, 4, 3), torch.zeros(9, 4))", "", 9, "4×3 float32"),
        ("(torch.randn(9, 4, 3), torch.zeros(7))", "", 0, "9×4×3 float32"),
        ("(torch.randn(9, 4, 3), torch.zeros(7))", "make.batch_size = 7\n", 7, "9×4×3 float32"),
        ("(torch.zeros(9, 4, dtype=torch.int64), None)", "", 9, "4 tokens (int64)"),
        # of an nn.LSTM, whose first dimension is time
        ("(torch.randn(9, 4, 3), torch.zeros(9, 4))", "MODEL.add_module('rnn', nn.LSTM(3, 2))\n", 0, "9×4×3 float32"),
        ("(torch.randn(9, 4, 3), torch.zeros(4))", "MODEL.add_module('rnn', nn.LSTM(3, 2))\n", 4, "9×3 float32"),
        # a loader's sequences, put side by side
        (
            "DataLoader([torch.randn(9, 3)] * 16, 8, collate_fn=lambda all: (torch.stack(all, 1), torch.zeros(9, 8)))",
            "from torch.utils.data import DataLoader\n",
            8,
            "9×8×3 float32",
        ),
        (
            "DataLoader(TensorDataset(torch.randn(16, 4, 3), torch.zeros(16, 4)), 8)",
            "from torch.utils.data import DataLoader, TensorDataset\nMODEL.add_module('rnn', nn.LSTM(3, 2))\n",
            8,
            "4×3 float32",
        ),
    ],
)
def test_the_size_of_a_batch_is_found_declared_or_not_claimed(write, batch, more, size, description):
    workload = make(write(f"def make():\n    return MODEL, {batch}, LOSS\n{more}"))
    assert (workload.batch_size, workload.input_description) == (size, description)
    record = workload.describe()
    assert (record.batch_size, record.samples) == (size, size or 1)
    assert record.training.startswith(f"batch {size or '(untold size)'} of {description}")


def test_the_whole_step_is_described(write):
    text = write("def make():\n    return MODEL, (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), LOSS\n")
    record = make(text, optimizer="adamw", amp="bf16", clip=1.0, accumulate=2).describe()
    assert record.training == "batch 2 × 4 of 3 float32, fp32 with bf16 autocast, adamw, clipped to 1"
    assert record.samples == 8


@pytest.mark.parametrize("size", ["0", "'4'", "2.0"])
def test_a_declared_size_is_a_number_of_samples(write, size):
    with pytest.raises(WorkloadError, match="batch_size is"):
        make(write(f"def make():\n    return MODEL, (torch.ones(4, 3), 1), LOSS\nmake.batch_size = {size}\n"))


def test_bf16_converts_the_factorys_model_and_batch(write):
    text = write("def make():\n    return MODEL, (torch.randn(4, 3), torch.randn(4, 2)), nn.functional.mse_loss\n")
    workload = make(text, dtype="bf16")
    workload.forward_loss().backward()
    assert workload.model.weight.grad.dtype == workload.targets.dtype == torch.bfloat16
    assert workload.grad_bytes == 2 * 8


def test_a_factory_imports_its_neighbours_and_leaves_the_path_alone(write, tmp_path):
    (tmp_path / "neighbour_of_train.py").write_text("WIDTH = 3\n")
    (tmp_path / "late_neighbour_of_train.py").write_text("CLASSES = 2\n")
    text = write(
        "from neighbour_of_train import WIDTH\n"
        "def make():\n"
        "    from late_neighbour_of_train import CLASSES\n"
        "    return nn.Linear(WIDTH, CLASSES), (torch.randn(4, WIDTH), torch.tensor([0, 1, 0, 1])), LOSS\n"
    )
    before = list(sys.path)
    assert make(text).parameters_count == 8
    assert sys.path == before


def test_a_changed_file_is_read_again(write):
    body = "def make():\n    return nn.Linear(3, {}), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), LOSS\n"
    assert make(write(body.format(2))).parameters_count == 8
    assert make(write(body.format(22))).parameters_count == 88


def test_a_registered_factory_is_used_like_a_file(monkeypatch):
    monkeypatch.setattr(WORKLOADS, "_entries", dict(WORKLOADS._entries))
    WORKLOADS.add("mine", "test_custom_factory:registered", "a factory of another package")
    monkeypatch.setitem(sys.modules, "test_custom_factory", sys.modules[__name__])
    workload = make("mine")
    assert (workload.spec, workload.batch_size) == (WorkloadSpec(name="mine"), 4)
    assert workload.forward_loss().requires_grad


def registered():
    return torch.nn.Linear(3, 2), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), torch.nn.functional.cross_entropy


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def make():\n    raise ValueError('no data\\n here')\n", "train.py:5 raised ValueError: no data here"),
        ("def make():\n    torch.ones(2) @ torch.ones(3)\n", "train.py:5 raised RuntimeError: "),
        ("def make():\n    raise SystemExit(3)\n", "train.py:5 raised SystemExit: 3"),
        ("make = 1 / 0\n", "train.py:4 raised ZeroDivisionError: division by zero"),
        ("def make(:\n", "train.py:4 raised SyntaxError: "),
        ("import nothing_of_this_name as make\n", "train.py:4 raised ModuleNotFoundError: "),
        ("def maker():\n    pass\n", "'make' does not exist in train.py"),
        ("make = 3\n", "'make' is not a function in train.py"),
        ("def make():\n    pass\n", "returned None and not (model, batch, loss)"),
        ("def make():\n    return MODEL, LOSS\n", "returned a tuple of 2 and not (model, batch, loss)"),
        ("def make():\n    return 3, (torch.ones(1), 1), LOSS\n", "returned a int as its model"),
        ("def make():\n    return MODEL, torch.ones(1), LOSS\n", "returned a Tensor as its batch"),
        ("def make():\n    return MODEL, (3, 1), LOSS\n", "returned a int as inputs"),
        ("def make():\n    return MODEL, ({1: torch.ones(1)}, 1), LOSS\n", "keys are not all argument names"),
        ("def make():\n    return MODEL, ((), 1), LOSS\n", "returned inputs without a tensor"),
        ("def make():\n    return MODEL, (torch.ones(()), 1), LOSS\n", "shape (), which has no samples"),
        ("def make():\n    return MODEL, (torch.ones(0, 3), 1), LOSS\n", "shape (0, 3), which has no samples"),
        ("def make():\n    return MODEL, (torch.ones(1, 3), 1), 3\n", "returned a int as its loss"),
        ("def make():\n    return nn.ReLU(), (torch.ones(1, 3), 1), LOSS\n", "the model has no parameter to train"),
        ("def make():\n    return nn.LazyLinear(2), (torch.ones(1, 3), 1), LOSS\n", "lazy parameters"),
        (
            "def make():\n    return MODEL, torch.optim.SGD(MODEL.parameters()), (torch.ones(1, 3), 1), LOSS\n",
            "returned an optimizer, and xbench makes its own over the parameters",
        ),
        (
            "class Wrapper:\n    param_groups = []\n    def step(self, closure=None):\n        pass\n"
            "def make():\n    return MODEL, (torch.ones(1, 3), 1), LOSS, Wrapper()\n",
            "returned an optimizer, and xbench makes its own over the parameters",
        ),
    ],
)
def test_a_factorys_mistake_is_one_sentence(write, body, message):
    with pytest.raises(WorkloadError) as caught:
        make(write(body))
    assert message in str(caught.value)
    assert str(caught.value).startswith("train.py:make")
    assert "\n" not in str(caught.value)


def test_a_misspelt_factory_gets_the_nearest_name_and_a_raised_error_its_traceback(write):
    with pytest.raises(WorkloadError) as caught:
        make(write("def maker():\n    pass\n"))
    assert caught.value.hint == "did you mean 'maker'?"
    with pytest.raises(WorkloadError) as caught:
        make(write("def make():\n    raise KeyError('x')\n"))
    assert "KeyError: 'x'" in caught.value.detail


@pytest.mark.parametrize(
    ("change", "options", "recorded", "shown"),
    [
        ("", {}, None, "fp32"),
        ("", {"dtype": "bf16"}, None, "bf16"),
        ("    model.bfloat16()\n", {}, "bf16", "bf16"),
        ("    model.half()\n", {}, "fp16", "fp16"),
        ("    model[0].bfloat16()\n", {}, "fp32 and bf16", "fp32 and bf16"),
        ("    model[1].bfloat16()\n", {}, "fp32 and bf16", "fp32 and bf16"),
        ("    model.bfloat16(); model[0].requires_grad_(False)\n", {}, "bf16", "bf16"),
    ],
)
def test_the_record_names_what_the_parameters_are_made_of(write, change, options, recorded, shown):
    model = "    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))\n"
    rest = "    return model, (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), LOSS\n"
    record = make(write(f"def make():\n{model}{change}{rest}"), **options).describe()
    assert (record.parameter_dtypes, record.dtype) == (recorded, shown)
    assert f", {shown}, sgd; " in workload_line(record)
