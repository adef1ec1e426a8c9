"""What partial backpropagation should keep and compute, beside what autograd really does at every depth."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from xbench.rank.partial_work import kept_bytes, work_by_band


class Attention(nn.Module):
    """Products of activations, which belong to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, 16)
        self.query = nn.Linear(16, 16)
        self.key = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return self.head(torch.softmax(scores, -1) @ x)


def convolutions() -> tuple[nn.Module, Tensor]:
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1)]
    for _ in range(3):
        layers += [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 8 * 8, 10)), torch.randn(4, 3, 8, 8)


def measured(model: nn.Module, band_of: dict[str, int], level: int, forward: Callable[[], Tensor]) -> tuple[int, int]:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(band_of[name] <= level)
    loss, kept = kept_bytes(model, forward)
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return kept, counter.get_total_flops()


def bands_of(model: nn.Module, of_layer: list[int]) -> dict[str, int]:
    """The band of every parameter, layer by layer from the inputs on."""
    layers = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    band = dict(zip(layers, of_layer, strict=True))
    return {name: band[name.rpartition(".")[0]] for name, _ in model.named_parameters()}


def test_layers_in_a_row_keep_and_compute_what_the_formula_says() -> None:
    model, inputs = convolutions()
    band_of = bands_of(model, [3, 3, 3, 2, 2, 1, 1, 1])
    work = work_by_band(model, band_of, 3, lambda: model(inputs).sum())
    for level in (1, 2, 3):
        assert work.up_to(level) == measured(model, band_of, level, lambda: model(inputs).sum())
    assert all(work.kept_bytes)
    assert all(work.flops)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_products_of_activations_count_from_the_band_of_what_they_multiply() -> None:
    model, inputs = Attention(), torch.randn(2, 5, 8)
    band_of = bands_of(model, [2, 1, 1, 1])
    work = work_by_band(model, band_of, 2, lambda: model(inputs).sum())
    assert work.up_to(2) == measured(model, band_of, 2, lambda: model(inputs).sum())
    kept, flops = measured(model, band_of, 1, lambda: model(inputs).sum())
    assert work.up_to(1)[0] == kept
    # The key's layer is taken to hand a gradient on to the embedding, as the query's does not; and so is the last x.
    assert flops < work.up_to(1)[1] <= 1.5 * flops


@pytest.mark.parametrize("levels", [1, 2])
def test_a_single_band_is_the_whole_pass(levels: int) -> None:
    model, inputs = convolutions()
    band_of = dict.fromkeys(dict(model.named_parameters()), 1)
    work = work_by_band(model, band_of, levels, lambda: model(inputs).sum())
    assert work.up_to(1) == measured(model, band_of, 1, lambda: model(inputs).sum())
