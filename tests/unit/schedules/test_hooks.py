"""A backward pass ends with the outermost one, one that raised has no end, and a closure is followed by the wait."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xbench.errors import UsageError
from xbench.schedules.hooks import BackwardEnd, closure_of, takes_hooks, uncopied, with_wait


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


@pytest.mark.parametrize("keyword", [False, True])
def test_the_wait_follows_each_call_of_the_closure(keyword: bool) -> None:
    said: list[str] = []
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.register_step_pre_hook(lambda _, args, kwargs: with_wait(args, kwargs, lambda: said.append("waited")))

    def closure() -> float:
        said.append("computed")
        return 2.5

    loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    assert loss == 2.5
    assert said == ["computed", "waited"]


@pytest.mark.parametrize("arguments", [((object(),), {}), ((object(), None), {}), ((object(),), {"closure": None})])
def test_none_is_no_closure(arguments: tuple[tuple[object, ...], dict[str, object]]) -> None:
    assert closure_of(*arguments) is None


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one, as of training libraries."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner


@pytest.mark.parametrize("optimizer", [object(), Wrapper(torch.optim.SGD([torch.ones(1)]))])
def test_an_object_without_hooks_is_refused(optimizer: object) -> None:
    with pytest.raises(UsageError, match=f"{type(optimizer).__name__} takes no step hooks") as refused:
        takes_hooks(optimizer)
    assert 'wait="backward"' in str(refused.value.hint)


def users(_module: nn.Module, _inputs: Any) -> None:
    """A hook of the user."""


@pytest.mark.parametrize("taken", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_and_files_have_the_hooks_of_others_alone(taken: Any) -> None:
    model, calls = nn.Linear(1, 1), []
    first = model.register_forward_pre_hook(users)
    ours = [
        uncopied(model.register_forward_pre_hook(lambda *_: calls.append(1), with_kwargs=True)),
        uncopied(model.register_forward_hook(lambda *_: calls.append(2), always_call=True)),
        uncopied(model.register_state_dict_pre_hook(lambda *_: calls.append(3))),
    ]
    other = taken(model)
    assert list(other._forward_pre_hooks.values()) == [users]
    for table in (other._forward_pre_hooks_with_kwargs, other._forward_hooks, other._forward_hooks_always_called):
        assert not table
    other.state_dict()
    assert calls == []
    model.state_dict()
    copy.copy(model)(model.weight)
    assert calls == [3, 1, 2]
    first.remove()
    for handle in ours:
        handle.remove()
    assert not taken(model)._forward_pre_hooks
