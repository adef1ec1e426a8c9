"""A closure is followed by the wait, however it is passed; None is no closure."""

from __future__ import annotations

import pytest
import torch

from xbench.errors import UsageError
from xbench.schedules.optimizer_hooks import before_each_step, closure_of, takes_hooks, with_wait


@pytest.mark.parametrize("keyword", [False, True])
def test_the_wait_follows_each_call_of_the_closure(keyword: bool) -> None:
    said: list[str] = []
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    before_each_step(optimizer, lambda _, args, kwargs: with_wait(args, kwargs, lambda: said.append("waited")))

    def closure() -> float:
        said.append("computed")
        return 2.5

    loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    assert loss == 2.5
    assert said == ["computed", "waited"]


@pytest.mark.parametrize("arguments", [((object(),), {}), ((object(), None), {}), ((object(),), {"closure": None})])
def test_none_is_no_closure(arguments: tuple[tuple[object, ...], dict[str, object]]) -> None:
    assert closure_of(*arguments) is None


def test_an_object_without_hooks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"object is no torch\.optim\.Optimizer") as refused:
        takes_hooks(object())
    assert 'wait="backward"' in str(refused.value.hint)
