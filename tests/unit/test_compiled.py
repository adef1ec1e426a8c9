"""Compiled regions, what their parameters are called, and how DDP gets graphs of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from torch import nn

import xbench
from xbench.errors import SpecError
from xbench.schedules.served_parameters import trainable
from xbench.torch_compile import compiled_inside, cut_by_ddp, is_region, outside_regions, plain_name, region_of, regions


def model() -> nn.Sequential:
    torch._dynamo.reset()
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))


def compiled(module: nn.Module) -> nn.Module:
    made: nn.Module = torch.compile(module, backend="eager")  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_orig_mod.0.weight", "0.weight"),
        ("layers.0._orig_mod.weight", "layers.0.weight"),
        ("_orig_mod", ""),
        ("my_orig_mod.weight", "my_orig_mod.weight"),
        ("0.weight", "0.weight"),
    ],
)
def test_plain_names(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_regions_are_the_outermost_compiled_modules() -> None:
    plain = model()
    assert (regions(plain), is_region(plain)) == ({}, False)
    plain[1].compile(backend="eager")
    assert list(regions(plain)) == ["1"]
    plain[2] = compiled(plain[2])
    assert list(regions(plain)) == ["1", "2"]
    assert [type(module).__name__ for module in outside_regions(plain)] == ["Sequential", "Linear"]
    whole = compiled(plain)
    assert regions(whole) == {"": whole}
    assert list(outside_regions(whole)) == []


def test_what_is_inside_a_region() -> None:
    found = {"layers.1": nn.ReLU()}
    assert region_of("layers.1", found) == region_of("layers.1.weight", found) == "layers.1"
    assert region_of("layers.10", found) is None
    assert region_of("layers", found) is None


def test_names_fit_whether_or_not_a_model_is_compiled() -> None:
    plain = model()
    names = list(trainable(plain))
    assert list(trainable(compiled(plain))) == names
    plain[1] = compiled(plain[1])
    assert list(trainable(plain)) == names


def test_buckets_of_a_compiled_model_fit_the_plain_one_and_the_other_way_round() -> None:
    plain = model()
    of_compiled = [[name for name, _ in compiled(plain).named_parameters()][::-1]]
    of_plain = [[name for name, _ in plain.named_parameters()][::-1]]
    for buckets in (of_compiled, of_plain):
        for wrapped in (plain, compiled(plain)):
            with xbench.attach(wrapped, schedule="optimal", plan=buckets) as handle:
                assert handle.buckets == of_plain
    with pytest.raises(SpecError, match="the plan names 'wieght'"):
        xbench.attach(plain, schedule="optimal", plan=[["_orig_mod.wieght"]])


def test_regions_are_compiled_anew_for_ddp_and_after_it() -> None:
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    plain = model()
    whole = torch.compile(plain, backend=backend)  # type: ignore[arg-type]
    inputs = torch.randn(2, 3)
    for under_ddp, more in ((False, 1), (False, 0), (True, 1), (False, 1)):
        before = len(graphs)
        with cut_by_ddp(whole, under_ddp):  # type: ignore[arg-type]
            whole(inputs)
            whole(inputs)
        assert len(graphs) - before == more
    before = len(graphs)
    with cut_by_ddp(plain, True):  # no region: nothing to compile anew
        whole(inputs)
    assert len(graphs) == before


class HeadsByTurns(nn.Module):
    """Two layers, of which each step calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        outputs: torch.Tensor = (self.a if self.steps % 2 else self.b)(x)
        return outputs


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """The compiler is imported, and has compiled nothing."""
    frames = torch._dynamo.utils.counters.pop("frames", None)
    yield
    torch._dynamo.reset()
    if frames is not None:
        torch._dynamo.utils.counters["frames"] = frames


@pytest.mark.usefixtures("nothing_compiled")
def test_a_layer_that_only_some_steps_call_is_not_inside_compiled_code() -> None:
    model = HeadsByTurns()
    assert compiled_inside(model, lambda: model(torch.ones(1, 4))) is None


@pytest.mark.usefixtures("nothing_compiled")
def test_a_layer_inside_a_compiled_function_is_named() -> None:
    model = nn.ModuleDict({"seen": nn.Linear(4, 4), "hidden": nn.Linear(4, 4)})
    hidden = torch.compile(lambda x: model["hidden"](x), backend="eager")

    def forward() -> torch.Tensor:
        outputs: torch.Tensor = hidden(model["seen"](torch.ones(1, 4)))
        return outputs

    forward()
    assert compiled_inside(model, forward) == "hidden"
