"""Units that torch's sharded modes wrap, and the second tree of modules that they wrap."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from xbench.errors import UsageError
from xbench.schedules.twin import blocks_of, twin_of, units_of


class Block(nn.Module):
    """A block with a list inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Net(nn.Module):
    """Lists in lists, a list in a dictionary, a module without parameters, and parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.stem = nn.Linear(2, 2)
        self.stages = nn.Sequential(nn.Sequential(Block(), Block()), nn.Dropout(0.0))
        self.parts = nn.ModuleDict({"h": nn.ModuleList([Block()])})
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.parts["h"][0](self.stages(self.stem(x)))) * self.scale  # type: ignore[index]


def test_units_are_the_blocks_and_the_rest() -> None:
    assert units_of(Net()) == {
        "stages.0.0": ["stages.0.0.inner.0.weight", "stages.0.0.inner.0.bias"],
        "stages.0.1": ["stages.0.1.inner.0.weight", "stages.0.1.inner.0.bias"],
        "parts.h.0": ["parts.h.0.inner.0.weight", "parts.h.0.inner.0.bias"],
        "": ["scale", "stem.weight", "stem.bias", "head.weight", "head.bias"],
    }
    sequence = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert list(blocks_of(sequence)) == list(units_of(sequence)) == ["0", "2"]
    assert units_of(nn.Linear(2, 2)) == {"": ["weight", "bias"]}  # without lists


def test_a_module_that_stands_twice_is_one_block() -> None:
    block = Block()
    model = nn.ModuleDict({"one": nn.ModuleList([block, block]), "two": nn.ModuleList([block])})
    assert list(blocks_of(model)) == ["one.0"]


@pytest.mark.parametrize("place", ["block", "root"])
def test_a_parameter_of_two_units_is_refused(place: str) -> None:
    model = Net()
    other = model.stages[0][1].inner[0] if place == "block" else model.head  # type: ignore[index, union-attr]
    other.weight = model.stages[0][0].inner[0].weight  # type: ignore[index, union-attr]
    with pytest.raises(UsageError, match=r"is also one of unit 'stages\.0\.0'"):
        units_of(model)


def test_parameters_shared_within_a_unit_are_named_once() -> None:
    model = Net()
    model.head.weight = model.stem.weight
    assert units_of(model)[""] == ["scale", "stem.weight", "stem.bias", "head.bias"]


def test_a_twin_has_the_same_parameters_buffers_and_hooks_and_modules_of_its_own() -> None:
    model = Net()
    model.register_buffer("seen", torch.zeros(1))
    called: list[str] = []
    model.stem.register_forward_hook(lambda *_: called.append("model's"))
    twin = twin_of(model)
    assert [id(p) for p in twin.parameters()] == [id(p) for p in model.parameters()]
    assert [id(b) for b in twin.buffers()] == [id(b) for b in model.buffers()]
    twin.seen = torch.ones(1)  # type: ignore[assignment]
    assert float(model.seen) == 1
    assert not {id(m) for m in twin.modules()} & {id(m) for m in model.modules()}
    twin.stem.register_forward_hook(lambda *_: called.append("twin's"))  # type: ignore[union-attr, operator]
    model(torch.ones(1, 2))
    assert called == ["model's"]
    twin(torch.ones(1, 2))
    assert called == ["model's", "model's", "twin's"]


def test_a_list_of_a_recurrent_layer_s_weights_is_the_twin_s_own() -> None:
    model = nn.LSTM(2, 2)
    twin = twin_of(model)
    twin.weight_ih_l0 = nn.Parameter(torch.zeros(8, 2))
    assert model._flat_weights[0] is model.weight_ih_l0
    assert twin._flat_weights[0] is twin.weight_ih_l0  # type: ignore[index]


def test_a_model_that_cannot_be_copied_or_is_compiled_is_refused() -> None:
    model = Net()
    model.lock = __import__("threading").Lock()  # type: ignore[assignment]
    with pytest.raises(UsageError, match="second tree of the model's modules, and copying raised cannot pickle"):
        twin_of(model)
    compiled = Net()
    compiled.compile(backend="eager")
    with pytest.raises(UsageError, match=r"torch\.compile has left no modules to wrap"):
        twin_of(compiled)
