"""The guard of a training loop: what it refuses before a forward pass, in a backward pass and at a step."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook

from xbench.errors import AlikeError, UsageError
from xbench.schedules import loop_guard
from xbench.schedules.loop_guard import LoopGuard, has_step_hooks_of_others, refuse_node_hooks
from xbench.schedules.served_parameters import trainable

Loop = tuple[nn.Sequential, SGD, LoopGuard]


def guarded(model: nn.Sequential, optimizer: SGD | None = None, **options: bool) -> LoopGuard:
    return LoopGuard(model, optimizer, trainable(model), averages=options.get("averages", True))


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """No guard of a test is there in the next one."""
    yield
    for guard in list(loop_guard._GUARDS):
        guard.remove()


@pytest.fixture
def loop() -> Loop:
    """A model, its optimizer, and a guard that sees backward passes by itself, as of one of several ranks."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = guarded(model, optimizer)
    guard.probe()
    return model, optimizer, guard


def backward(model: nn.Module) -> None:
    model(torch.ones(1, 3)).sum().backward()


def put_gradients(model: nn.Module) -> None:
    """As a loop does that uses torch.autograd.grad."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(model(torch.ones(1, 3)).sum(), parameters), strict=True
    ):
        parameter.grad = gradient


# --- steps ------------------------------------------------------------------------------------------------------------


def test_gradients_that_no_backward_pass_has_computed_are_refused(loop: Loop) -> None:
    model, optimizer, _ = loop
    put_gradients(model)
    with pytest.raises(UsageError, match=r"'0\.weight' has a gradient, and no backward pass") as refused:
        optimizer.step()
    assert "torch.autograd.grad" in str(refused.value.hint)


@pytest.mark.parametrize(
    "put", [put_gradients, lambda model: [p.grad.copy_(torch.ones_like(p)) for p in model.parameters()]]
)
def test_they_are_refused_after_other_steps_too(loop: Loop, put: Callable[[nn.Module], object]) -> None:
    """A probing guard may see it one step later, because it has kept one hook only."""
    model, optimizer, _ = loop
    backward(model)
    optimizer.step()
    put(model)
    optimizer.step()
    put(model)
    with pytest.raises(UsageError, match="no backward pass"):
        optimizer.step()


def test_a_step_of_any_optimizer_is_looked_at(loop: Loop) -> None:
    model, _, _ = loop
    put_gradients(model)
    with pytest.raises(UsageError, match=r"'1\.weight' has a gradient"):
        SGD(model[1].parameters(), lr=0.1).step()


def test_steps_that_are_right_are_served(loop: Loop) -> None:
    model, optimizer, _ = loop
    for parameter in model.parameters():  # as torch does to give an optimizer its state before a checkpoint is loaded
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    backward(model)
    optimizer.step()
    optimizer.step()  # once more with the same gradients
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    halves = [SGD(part.parameters(), lr=0.1) for part in model]
    backward(model)
    for half in halves:
        half.step()
    other = nn.Sequential(nn.Linear(3, 2))
    put_gradients(other)
    SGD(other.parameters(), lr=0.1).step()


@pytest.mark.parametrize("by_name", [True, False])
def test_gradients_of_a_closure_are_looked_at_after_it(loop: Loop, by_name: bool) -> None:
    """Those from before it are not used: most closures begin with `zero_grad()`."""
    model, optimizer, _ = loop

    def step(compute: Callable[[nn.Module], None]) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            compute(model)
            return 1.0

        optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    put_gradients(model)
    step(backward)
    step(put_gradients)  # as above, a probing guard may see it one step later
    before = model[0].weight.clone()
    with pytest.raises(UsageError, match="no backward pass"):
        step(put_gradients)
    assert torch.equal(model[0].weight, before)


def test_a_parameter_that_some_passes_leave_out_does_not_hide_them(loop: Loop) -> None:
    model, optimizer, _ = loop
    for part in (1, 0, 1, 0, 0, 1):
        optimizer.zero_grad()
        model[part](torch.ones(1, 3)).sum().backward()
        optimizer.step()


def test_a_world_of_one_has_nothing_to_average() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = guarded(model, optimizer, averages=False)
    guard.probe()
    put_gradients(model)
    optimizer.step()
    assert not model[0].weight._post_accumulate_grad_hooks


# --- hooks of the backward pass ---------------------------------------------------------------------------------------


def hooked(hook: Callable[[Tensor], None]) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].weight.register_post_accumulate_grad_hook(hook)
    return model


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused() -> None:
    model = hooked(lambda parameter: SGD([parameter], lr=0.1).step())
    guard = guarded(model)
    with pytest.raises(UsageError, match=r"inside the backward pass, in a hook of parameter '0\.weight'"):
        backward(model)
    guard.remove()
    backward(model)


def test_a_hook_that_removes_the_gradient_is_refused() -> None:
    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    model = hooked(drop)
    earlier = dict(model[0].weight._post_accumulate_grad_hooks)
    guard = guarded(model)
    with pytest.raises(UsageError, match=r"a hook of parameter '0\.weight' removes its gradient"):
        backward(model)
    guard.remove()
    assert model[0].weight._post_accumulate_grad_hooks == earlier


def test_a_hook_that_changes_the_gradient_is_served_and_none_is_no_removal() -> None:
    class Without(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> None:
            return None

    def clamp(parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.clamp_(-1, 1)

    model = hooked(clamp)
    guarded(model)
    (Without.apply(model[0].weight).sum() + model[0].bias.sum()).backward()
    backward(model)


def test_a_hook_on_the_node_of_a_parameter_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].bias.register_hook(lambda gradient: gradient)
    model[0].bias.register_post_accumulate_grad_hook(lambda _: None)
    refuse_node_hooks(trainable(model))
    node = model[0].bias.expand_as(model[0].bias).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: None)
    with pytest.raises(UsageError, match=r"AccumulateGrad node of parameter '0\.bias'"):
        refuse_node_hooks(trainable(model))


# --- forward passes ---------------------------------------------------------------------------------------------------


def test_a_new_layer_is_refused_without_an_optimizer(loop: Loop) -> None:
    model, _, guard = loop
    guard.remove()
    guarded(model)
    model[1] = nn.Linear(3, 2)
    with torch.no_grad():
        model(torch.ones(1, 3))
    with pytest.raises(AlikeError, match=r"'1\.weight' has become trainable"):
        model(torch.ones(1, 3))
    with pytest.raises(AlikeError, match=r"'1\.weight' has become trainable"):
        SGD(model[1].parameters(), lr=0.1).step()


def test_weights_that_functional_call_lends_are_not_new_ones(loop: Loop) -> None:
    """As in meta-learning, also after any module of the process was made."""
    model, optimizer, _ = loop
    names, parameters = zip(*model.named_parameters(), strict=True)
    nn.Linear(2, 2)
    inner = torch.autograd.grad(model(torch.ones(1, 3)).sum(), parameters, create_graph=True)
    nn.Linear(2, 2)
    adapted = {name: p - g for name, p, g in zip(names, parameters, inner, strict=True)}
    torch.func.functional_call(model, adapted, torch.ones(1, 3)).sum().backward()
    optimizer.step()
    model[1].more = nn.Linear(2, 2)
    torch.func.functional_call(model, adapted, torch.ones(1, 3))
    with pytest.raises(AlikeError, match=r"'1\.more\.weight' has become trainable"):
        model(torch.ones(1, 3))


def test_replaced_parameters_are_refused(loop: Loop) -> None:
    model, _, _ = loop
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    with pytest.raises(AlikeError, match=r"'0\.weight' has become trainable"):
        model(torch.ones(1, 3))


def test_a_converted_model_is_refused(loop: Loop) -> None:
    model, _, _ = loop
    model[1].double()
    with pytest.raises(AlikeError, match=r"'1\.weight' was torch.float32 on cpu .* now it is torch.float64"):
        model(torch.ones(1, 3))
    model[1].float()
    model(torch.ones(1, 3))


@pytest.mark.parametrize("layer", [nn.LazyLinear(2), nn.Linear(3, 2, device="meta")])
def test_a_parameter_without_values_is_named(layer: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"parameter '0\.weight' has no values yet"):
        trainable(nn.Sequential(layer))


# --- traces that a guard leaves ---------------------------------------------------------------------------------------


def test_copies_of_the_model_are_not_guarded(loop: Loop) -> None:
    model, _, _ = loop
    saved = pickle.dumps(model)
    assert b"xbench" not in saved
    for other in (copy.deepcopy(model), pickle.loads(saved)):
        other[1] = nn.Linear(3, 2)
        backward(other)


def test_nothing_stays_after_removal(loop: Loop) -> None:
    model, _, guard = loop
    other = guarded(nn.Sequential(nn.Linear(3, 2)))
    own = set(_global_optimizer_pre_hooks)
    assert own
    assert not has_step_hooks_of_others()
    foreign = register_optimizer_step_pre_hook(lambda *_: None)
    assert has_step_hooks_of_others()
    foreign.remove()
    guard.remove()
    assert own == set(_global_optimizer_pre_hooks)
    other.remove()
    assert not own & set(_global_optimizer_pre_hooks)
    assert not model._forward_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
