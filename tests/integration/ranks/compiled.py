"""Ranks of the tests of modes under torch.compile: each scenario trains the same thing under a mode and by hand.

Layers have more than a megabyte, DDP's first bucket, so that DDPOptimizer has buckets to cut at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx as inductor
from schedule_training import average_by_hand, run_scenarios
from torch import Tensor, nn

import xbench
from xbench.errors import UsageError
from xbench.torch_compile import compilations, regions

WIDTH = 600
STEPS = 3


class Block(nn.Module):
    """A layer beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.nn.functional.gelu(self.inner(self.norm(x)))


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, called: nn.Module, rank: int,
          after_backward: Callable[[], object] = lambda: None) -> None:  # fmt: skip
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + rank)
        inputs, targets = torch.randn(8, WIDTH, generator=generator), torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(called(inputs), targets).backward()
        after_backward()
        optimizer.step()


def graphs_of(schedule: str, rank: int) -> tuple[int, int]:
    """Train under the schedule, and compare with averages by hand.

    Returns how many graphs Inductor compiled, and how many all-reduces are in them.
    """
    graphs = sent = 0
    compile_fx = inductor.compile_fx

    def counted(graph: Any, *arguments: Any, **options: Any) -> object:
        nonlocal graphs, sent
        graphs += 1
        sent += sum("all_reduce" in str(node.target) for node in graph.graph.nodes)
        return compile_fx(graph, *arguments, **options)

    inductor.compile_fx = counted  # type: ignore[assignment]
    model, optimizer = made()
    plain, other = made()
    before = compilations()
    try:
        with xbench.attach(model, optimizer, schedule=schedule, wait="step") as handle:
            train(model, optimizer, handle.model, rank)
            handle.finish()
            compiled = compilations()
            assert compiled > before
    finally:
        inductor.compile_fx = compile_fx
    averages = schedule != "compute+compile"
    train(plain, other, plain, rank, (lambda: average_by_hand(plain)) if averages else lambda: None)
    for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), (name, (a - b).abs().max())
    assert not regions(model)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    train(model, optimizer, model, rank)  # detached: nothing is compiled, and nothing waits
    assert compilations() == compiled
    return graphs, sent


def ddp_is_cut_at_its_buckets(rank: int, world: int) -> None:
    graphs, sent = graphs_of("ddp+compile", rank)
    assert graphs > 1
    assert sent == 0


def without_communication_it_is_one_graph(rank: int, world: int) -> None:
    assert graphs_of("compute+compile", rank) == (1, 0)


def each_block_of_fsdp_is_compiled(rank: int, world: int) -> None:
    assert graphs_of("fsdp+compile", rank)[0] >= 1  # equal blocks share one graph


def models_that_are_refused(rank: int, world: int) -> None:
    flat = nn.Linear(4, 4)
    with pytest.raises(UsageError, match="compiles the blocks of ModuleList and Sequential, and this model has none"):
        xbench.attach(flat, torch.optim.SGD(flat.parameters(), lr=0.1), schedule="fsdp+compile")
    for schedule in ("ddp+compile", "fsdp+compile", "compute+compile"):
        model, optimizer = made()
        model[0].compile()
        with pytest.raises(UsageError, match=r"torch\.compile has compiled this model or parts of it already"):
            xbench.attach(model, optimizer, schedule=schedule)


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
