"""The end of a backward pass is that of the outermost one, and a pass that raised has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xbench.errors import UsageError
from xbench.schedules.backward_end import BackwardEnd


class Watched:
    """Layers whose gradients are counted; `ends` holds the count at each end of a pass."""

    def __init__(self, *layers: nn.Module) -> None:
        self.gradients = 0
        self.ends: list[int] = []
        self.end = BackwardEnd(lambda: self.ends.append(self.gradients))
        for layer in layers:
            for parameter in layer.parameters():
                parameter.register_post_accumulate_grad_hook(self.ready)  # type: ignore[no-untyped-call]

    def ready(self, _: Tensor) -> None:
        if not self.end.awaited:
            self.end.await_end()
        self.gradients += 1


class Trap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise MemoryError("planted")


def test_a_nested_pass_is_not_the_end() -> None:
    stem, first, second = (nn.Linear(3, 3) for _ in range(3))
    watched = Watched(stem, first, second)
    for step in (1, 2):
        x = stem(torch.ones(2, 3))
        x = checkpoint(first, x, use_reentrant=True)
        checkpoint(second, x, use_reentrant=True).sum().backward()
        assert watched.ends == [6 * n for n in range(1, step + 1)]


def test_nested_passes_may_nest() -> None:
    stem, first, second = (nn.Linear(3, 3) for _ in range(3))
    watched = Watched(stem, first, second)

    def both(x: Tensor) -> Tensor:
        return checkpoint(second, first(x), use_reentrant=True)  # type: ignore[no-any-return]

    checkpoint(both, stem(torch.ones(2, 3)), use_reentrant=True).sum().backward()
    assert watched.ends == [6]


def test_the_end_comes_when_only_nested_passes_have_gradients() -> None:
    block = nn.Linear(3, 3)
    watched = Watched(block)
    x = torch.ones(2, 3, requires_grad=True)
    checkpoint(block, x * 1, use_reentrant=True).sum().backward()
    assert watched.ends == [2]


def test_a_pass_that_raised_is_told_at_the_next_gradient() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    watched = Watched(first, second)
    with pytest.raises(MemoryError):
        second(Trap.apply(first(torch.ones(2, 3)))).sum().backward()
    with pytest.raises(UsageError, match="the last backward pass raised an error"):
        first(torch.ones(2, 3)).sum().backward()
    watched.end.forget()
    first(torch.ones(2, 3)).sum().backward()
    assert len(watched.ends) == 1
