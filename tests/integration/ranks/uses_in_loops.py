"""Uses of a model and its optimizer in a training loop, apart from passes and steps: reads, writes, hooks.

Each is a function of the loop and may return tensors, which are the same under every schedule as by hand.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from schedule_training import average_by_hand
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Shape:
    """Features of a model. `gradless`: an autograd function returns None for a parameter."""

    frozen: str = "nothing"
    checkpointed: str = "no"
    tied: bool = False
    unused: str = "nothing"
    gradless: bool = False


PLAIN = Shape()


class NoGradient(torch.autograd.Function):
    """Uses a weight and returns no gradient for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x + 0 * weight.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class Net(nn.Module):
    """Blocks, which torch's FSDP wraps, and three layers around them. `step`: of the loop, for `shape`.

    `moves`: training passes move a buffer, which they also read.
    """

    def __init__(self, shape: Shape = PLAIN, moves: bool = False) -> None:
        super().__init__()
        self.shape, self.moves, self.step = shape, moves, 0
        self.stem = nn.Linear(6, 6)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.extra = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(6))
        if shape.tied:
            self.blocks[1][0].weight = self.blocks[0][0].weight  # type: ignore[index, union-attr]
        if shape.gradless:
            self.gradless = nn.Parameter(torch.ones(3))
        if shape.frozen in ("head", "stem"):
            getattr(self, shape.frozen).requires_grad_(False)
        elif shape.frozen == "one bias":
            self.blocks[1][0].bias.requires_grad_(False)  # type: ignore[index, union-attr]

    def uses_extra(self) -> bool:
        unused = self.shape.unused
        here = unused == "on rank 1" and dist.get_rank() == 1
        return not (unused == "everywhere" or here or (unused == "at odd steps" and self.step % 2))

    def forward(self, x: Tensor) -> Tensor:
        if self.moves and self.training and torch.is_grad_enabled():
            self.centre.lerp_(x.mean(0), 0.5)
        x = self.stem(x - self.centre)
        for block in self.blocks:
            if self.shape.checkpointed != "no" and x.requires_grad:
                x = checkpoint(block, x, use_reentrant=self.shape.checkpointed == "reentrant")
            else:
                x = block(x)
        if self.uses_extra():
            x = x + self.extra(x)
        if self.shape.gradless:
            x = NoGradient.apply(x, self.gradless)
        return self.head(x)


@dataclass
class Loop:
    """The state of a loop; a use may replace each part. `found` keeps the results of its uses.

    `wrapper`: `handle.model`. `call`: the module that runs this step's forward pass, which is `model` or `wrapper`.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    wrapper: nn.Module
    call: nn.Module
    average: Callable[[], None] = lambda: None
    no_sync: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    attach_again: Callable[[], None] = lambda: None
    group: dist.ProcessGroup | None = None
    is_by_hand: bool = False
    kept: list[Any] = field(default_factory=list)
    mean: list[Tensor] = field(default_factory=list)
    found: list[Tensor] = field(default_factory=list)

    def loss(self, x: Tensor) -> Tensor:
        """The loss of a training pass. By hand, the first rank's buffer is broadcast before it."""
        if self.is_by_hand:
            dist.broadcast(self.model.centre, src=0)  # type: ignore[arg-type]
        loss: Tensor = self.call(x).square().mean()
        return loss


def batch(step: int, rank: int | None = None) -> Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(50 * step + rank))


def initial() -> dict[str, Tensor]:
    torch.manual_seed(5)
    return Net().state_dict()


def optimizer_of(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    options = {"SGD": {"momentum": 0.9}, "AdamW": {"eps": 1e-3}, "LBFGS": {"max_iter": 1}}.get(kind, {})
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return getattr(torch.optim, kind)(parameters, lr=0.05, **options)  # type: ignore[no-any-return]


# Reads.


def state_dict(loop: Loop) -> list[Tensor]:
    return [value.clone() for value in loop.model.state_dict().values()]


def saved(loop: Loop) -> list[Tensor]:
    kept = io.BytesIO()
    torch.save(loop.model.state_dict(), kept)
    kept.seek(0)
    return list(torch.load(kept).values())


def saved_whole(loop: Loop) -> list[Tensor]:
    kept = io.BytesIO()
    torch.save(loop.model, kept)
    kept.seek(0)
    return run_alone(torch.load(kept, weights_only=False))


def copied(loop: Loop) -> list[Tensor]:
    return run_alone(copy.deepcopy(loop.model))


def run_alone(model: nn.Module) -> list[Tensor]:
    """A copy of the model is a plain one: it computes, and a backward pass fills its own gradients."""
    model.zero_grad()
    output = model(batch(99, rank=0))
    output.square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return [output.detach(), *(parameter.detach().clone() for parameter in model.parameters()), *gradients]


def validated(loop: Loop) -> list[Tensor]:
    loop.call.eval()
    with torch.no_grad():
        output = loop.call(batch(98, rank=0))
    loop.call.train()
    return [output]


def validated_plainly(loop: Loop) -> list[Tensor]:
    with torch.no_grad():
        return [loop.model(batch(98, rank=0))]


def vector(loop: Loop) -> list[Tensor]:
    return [nn.utils.parameters_to_vector(loop.model.parameters()).detach().clone()]


def gradient_norms(loop: Loop) -> list[Tensor]:
    return [p.grad.norm() for p in loop.model.parameters() if p.grad is not None]


def moments(loop: Loop) -> list[Tensor]:
    return moments_in(loop.optimizer.state_dict())


def moments_in(state_dict: dict[str, Any]) -> list[Tensor]:
    state = state_dict["state"]
    return [value.clone() for _, of in sorted(state.items()) for value in of.values() if torch.is_tensor(value)]


def optimizer_saved(loop: Loop) -> list[Tensor]:
    kept = io.BytesIO()
    torch.save(loop.optimizer.state_dict(), kept)
    kept.seek(0)
    return moments_in(torch.load(kept))


def optimizer_copied(loop: Loop) -> list[Tensor]:
    return moments_in(copy.deepcopy(loop.optimizer).state_dict())


def moving_average(loop: Loop) -> list[Tensor]:
    if not loop.mean:
        loop.mean = [torch.zeros(p.shape) for p in loop.model.parameters()]
    with torch.no_grad():
        for mean, parameter in zip(loop.mean, loop.model.parameters(), strict=True):
            mean.lerp_(parameter, 0.5)
    return [mean.clone() for mean in loop.mean]


# Writes.


def clamped(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.clamp_(-0.2, 0.2)


def loaded(loop: Loop) -> None:
    loop.model.load_state_dict(initial())


def assigned(loop: Loop) -> None:
    loop.model.load_state_dict(initial(), assign=True)


def assigned_with_a_new_optimizer(loop: Loop) -> None:
    assigned(loop)
    loop.optimizer = type(loop.optimizer)(loop.model.parameters(), lr=0.05)  # type: ignore[call-arg]


def new_head(loop: Loop) -> None:
    torch.manual_seed(8)
    loop.model.head = nn.Linear(6, 3)
    loop.optimizer = type(loop.optimizer)(loop.model.parameters(), lr=0.05)  # type: ignore[call-arg]


def optimizer_state_loaded(loop: Loop) -> None:
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))


def other_dtype(loop: Loop) -> None:
    loop.model.double()
    loop.model.float()


def gradients_halved(loop: Loop) -> None:
    for parameter in loop.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


def gradient_removed(loop: Loop) -> None:
    loop.model.head.bias.grad = None  # type: ignore[union-attr]


def clipped(loop: Loop) -> None:
    nn.utils.clip_grad_norm_(loop.call.parameters(), 0.1)


def zeros_kept(loop: Loop) -> None:
    loop.optimizer.zero_grad(set_to_none=False)


def frozen(loop: Loop) -> None:
    loop.model.blocks[0].requires_grad_(False)  # type: ignore[operator, index, union-attr]


def frozen_for_a_step(loop: Loop) -> None:
    weight = loop.model.blocks[1][0].weight  # type: ignore[index]
    weight.requires_grad_(not weight.requires_grad)  # type: ignore[operator, union-attr]


def hooked(loop: Loop) -> None:
    loop.model.head.weight.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[operator, union-attr]


def hooked_after_accumulation(loop: Loop) -> None:
    loop.model.head.weight.register_post_accumulate_grad_hook(halve)  # type: ignore[operator, union-attr]


def hooked_on_its_node(loop: Loop) -> None:
    weight: Any = loop.model.head.weight
    node = weight.view_as(weight).grad_fn.next_functions[0][0]
    loop.kept += [node, node.register_hook(lambda *_: halve(weight))]


def halve(parameter: nn.Parameter) -> None:
    if parameter.grad is not None:
        parameter.grad.mul_(0.5)


def stepped_again(loop: Loop) -> None:
    loop.optimizer.step()


def gradients_by_grad(loop: Loop) -> None:
    parameters = [p for p in loop.model.parameters() if p.requires_grad]
    loss = loop.loss(batch(97))
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    if loop.is_by_hand:
        average_by_hand(loop.model)
    loop.optimizer.step()


def another_pass(loop: Loop) -> None:
    loop.loss(batch(96)).backward()
    if loop.is_by_hand:
        average_by_hand(loop.model)


def accumulated(loop: Loop) -> None:
    with loop.no_sync():
        loop.loss(batch(95)).backward()


def wrapped(loop: Loop) -> None:
    if not loop.is_by_hand:
        loop.wrapper = loop.call = nn.parallel.DistributedDataParallel(loop.wrapper, process_group=loop.group)


def attached_again(loop: Loop) -> None:
    loop.attach_again()


def a_part_is_called(loop: Loop) -> None:
    """A backward pass through a layer that the loop calls by itself."""
    loop.model.head(batch(94)).square().mean().backward()  # type: ignore[operator]
    if loop.is_by_hand:
        average_by_hand(loop.model)
    loop.optimizer.step()


READS = (state_dict, saved, saved_whole, copied, validated_plainly, vector, moments, optimizer_saved, optimizer_copied,
         moving_average)  # fmt: skip
ANYWHERE = (*READS, validated, loaded, clamped, assigned, assigned_with_a_new_optimizer, new_head,
            optimizer_state_loaded, other_dtype, frozen, frozen_for_a_step, hooked, hooked_after_accumulation,
            hooked_on_its_node, wrapped, attached_again)  # fmt: skip
AFTER_BACKWARD = (*ANYWHERE, gradient_norms, gradients_halved, gradient_removed, clipped, another_pass, zeros_kept)
AFTER_STEP = (*ANYWHERE, gradient_norms, stepped_again, gradients_by_grad, a_part_is_called, zeros_kept)
POINTS: dict[str, tuple[Callable[[Loop], Any], ...]] = {
    "start": ANYWHERE,
    "zeroed": (*ANYWHERE, accumulated, zeros_kept),
    "backward": AFTER_BACKWARD,
    "stepped": AFTER_STEP,
}
"""The uses at each point of a step: before the first one, before the forward pass, before and after the update."""

USES = {use.__name__: use for use in itertools.chain(*POINTS.values())}
BY_ONE = {*(use.__name__ for use in READS), "gradient_norms"}
"""Uses that rank 0 may do alone, because they change nothing and send nothing under DDP."""


def mask(model: nn.Module) -> None:
    model.head.weight.register_hook(lambda gradient: gradient * torch.tensor([[1.0], [0.0], [1.0]]))  # type: ignore[operator, union-attr]


def halved(model: nn.Module) -> None:
    model.head.weight.register_post_accumulate_grad_hook(halve)  # type: ignore[operator, union-attr]


def stepped_in_backward(model: nn.Module) -> None:
    """The optimizer in the backward pass: each gradient is used and dropped as soon as it is there."""

    def act(parameter: nn.Parameter) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.05)  # type: ignore[arg-type]
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(act)


BEFORE = {each.__name__: each for each in (mask, halved, stepped_in_backward)}
