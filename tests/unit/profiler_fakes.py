"""A clock that tests move by hand, and modules that move it by known amounts. Times are dyadic, so sums are exact."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xbench.workloads.training_step import TrainingStep


class FakeClock:
    """A mark is an index; its time may only be asked after `flush`, as on a GPU. A mark can be made to cost time."""

    def __init__(self, mark_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.mark_s = mark_s
        self.flushes = 0
        self.resets = 0
        self.reserved: tuple[int, int] | None = None
        """Number of marks reserved, and number of marks made before."""
        self._times_s: list[float] = []
        self._flushed = 0

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    def mark(self) -> int:
        self.now_s += self.mark_s
        self._times_s.append(self.now_s)
        return len(self._times_s) - 1

    def reserve(self, marks: int) -> None:
        self.reserved = (marks, len(self._times_s))

    def elapsed_s(self, start: int, end: int) -> float:
        assert max(start, end) < self._flushed, "a mark was read before the clock was flushed"
        return self._times_s[end] - self._times_s[start]

    def flush(self) -> None:
        self.flushes += 1
        self._flushed = len(self._times_s)

    def reset(self) -> None:
        self.resets += 1


class _Timed(torch.autograd.Function):
    """Scales by a parameter; takes `forward_s` going and `backward_s` coming back."""

    @staticmethod
    def forward(ctx, x, weight, clock, forward_s, backward_s):
        ctx.save_for_backward(x, weight)
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.advance(forward_s)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        ctx.clock.advance(ctx.backward_s)
        return grad * weight, (grad * x).sum().reshape(1), None, None, None


class Layer(nn.Module):
    """A layer of one parameter whose forward and backward take what one says."""

    def __init__(
        self, clock: FakeClock, forward_s: float, backward_s: float, weight: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s
        self.weight = nn.Parameter(torch.ones(1)) if weight is None else weight

    def forward(self, x: Tensor) -> Tensor:
        return _Timed.apply(x, self.weight, self.clock, self.forward_s, self.backward_s)


class Pause(nn.Module):
    """A module without parameters that takes time in forward: an activation, a pooling."""

    def __init__(self, clock: FakeClock, forward_s: float) -> None:
        super().__init__()
        self.clock, self.forward_s = clock, forward_s

    def forward(self, x: Tensor) -> Tensor:
        self.clock.advance(self.forward_s)
        return x


class Optimizer(torch.optim.SGD):
    """Takes `zero_s` to clear gradients and `step_s` to update."""

    def __init__(self, model: nn.Module, clock: FakeClock, zero_s: float, step_s: float) -> None:
        super().__init__(model.parameters(), lr=0.0)
        self.clock, self.zero_s, self.update_s = clock, zero_s, step_s

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert set_to_none
        self.clock.advance(self.zero_s)
        super().zero_grad(set_to_none=True)

    def step(self, closure=None):
        assert closure is None
        self.clock.advance(self.update_s)
        return super().step()


class Workload(TrainingStep):
    """The least that `profile_step` takes."""

    def __init__(
        self, model: nn.Module, clock: FakeClock, *, loss_s: float = 0.0, zero_s=0.0, step_s=0.0, load_s=0.0
    ) -> None:
        self.model = model
        self.optimizer = Optimizer(model, clock, zero_s, step_s)
        self.clock, self.loss_s, self.load_s = clock, loss_s, load_s
        self.is_fed = load_s > 0
        self.steps = 0

    def load(self) -> None:
        self.clock.advance(self.load_s)

    def forward_loss(self) -> Tensor:
        self.steps += 1
        output = self.model(torch.ones(1))
        self.clock.advance(self.loss_s)
        return output.sum()
