"""Stand-ins of gradients in flight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from xbench.errors import UsageError
from xbench.schedules.in_flight import InFlight


@pytest.fixture
def parameter() -> Parameter:
    parameter = Parameter(torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
    parameter.grad = torch.ones_like(parameter)
    return parameter


@pytest.mark.parametrize(
    ("use", "remedy"),
    [
        (lambda p: p.grad.sum(), "synchronize"),
        (lambda p: p.grad.zero_(), "synchronize"),
        (lambda p: p.grad.clone(), "synchronize"),
        (lambda p: torch._foreach_mul_([p.grad], 2.0), "synchronize"),
        (lambda p: (p * 2).sum().backward(), "no_sync"),
        (lambda p: torch.nn.utils.clip_grad_norm_([p], 1.0), "synchronize"),
        (lambda p: torch.optim.SGD([p], lr=1.0).step(), "synchronize"),
    ],
)
def test_every_use_is_refused(parameter: Parameter, use: Callable[[Parameter], object], remedy: str) -> None:
    gradient = parameter.grad
    in_flight = InFlight()
    in_flight.take([parameter])
    with pytest.raises(UsageError, match="gradients are used before they are averaged") as refused:
        use(parameter)
    assert [word for word in ("synchronize", "no_sync") if word in str(refused.value.hint)] == [remedy]
    in_flight.give_back([parameter])
    assert parameter.grad is gradient
    assert torch.equal(parameter.grad, torch.ones_like(parameter))


def test_a_stand_in_looks_like_the_gradient(parameter: Parameter) -> None:
    InFlight().take([parameter])
    stand_in = parameter.grad
    assert (stand_in.shape, stand_in.dtype, stand_in.device) == (parameter.shape, parameter.dtype, parameter.device)
    assert stand_in.stride() == parameter.stride()
    assert repr(stand_in) == "a gradient that is not averaged yet"


@pytest.mark.parametrize("put", [None, torch.zeros(2, 3, 4, 4)])
def test_what_other_code_put_there_stays(parameter: Parameter, put: Tensor | None) -> None:
    in_flight = InFlight()
    in_flight.take([parameter])
    parameter.grad = put
    in_flight.give_back([parameter])
    assert parameter.grad is put


@pytest.mark.parametrize("removes", [False, True])
def test_absent_gradients_stay_absent_and_their_removal_is_seen(removes: bool) -> None:
    parameter = Parameter(torch.ones(2))
    in_flight = InFlight()
    in_flight.take([parameter])
    with pytest.raises(UsageError, match="before they are averaged"):
        parameter.grad.sum()  # type: ignore[union-attr]
    if removes:
        parameter.grad = None
    assert in_flight.give_back([parameter]) == ({id(parameter)} if removes else set())
    assert parameter.grad is None
    assert in_flight.give_back([parameter]) == set()
