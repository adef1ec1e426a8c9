"""Compute part of one training step for the planners: its times, and its gradients in ready order.

The parts of a profiled step are instrumented, and the step that users run is not. So all parts are scaled to sum to the
bare step. In a step of several micro-steps, all but the last are computation before the forward pass of the last,
without communication. The wait for input, where batches come from a loader, comes before it too. A loader that works
ahead of the step is no part of it, but a bound (`least_s`).

There is one gradient per parameter tensor, in the order in which backward completes them. Times are seconds since the
start of backward. Every function of `planning` that takes gradients takes them in ready order. A bucket is a list of
indices into that order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xbench.records import Layer, StepTimes


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient: `nbytes` [B], complete `ready_s` [s] after the start of backward.

    Raises ValueError for a negative or non-finite number.
    """

    name: str
    nbytes: int
    ready_s: float
    dtype: str = "float32"
    elements: int = 0

    def __post_init__(self) -> None:
        if self.nbytes < 0 or self.elements < 0:
            raise ValueError(f"gradient {self.name!r} has {self.nbytes} bytes in {self.elements} elements: below zero")
        if not math.isfinite(self.ready_s) or self.ready_s < 0:
            raise ValueError(f"gradient {self.name!r} is ready at {self.ready_s} s: not a time after backward's start")


def from_layers(layers: Sequence[Layer]) -> list[Gradient]:
    """The gradients of a profile's layers in ready order; equal times keep the layers' order.

    Raises ValueError when there is no gradient, or one is not valid.
    """
    found = [
        Gradient(tensor.name, tensor.bytes, tensor.ready_s, tensor.dtype, tensor.elements)
        for layer in layers
        for tensor in layer.tensors
    ]
    if not found:
        raise ValueError("the layers have no gradients: nothing to plan")
    return sorted(found, key=lambda gradient: gradient.ready_s)


def require_ready_order(gradients: Sequence[Gradient]) -> None:
    """Raise ValueError unless there are gradients and each is ready no earlier than the one before it."""
    if not gradients:
        raise ValueError("there are no gradients to plan")
    for before, after in itertools.pairwise(gradients):
        if after.ready_s < before.ready_s:
            raise ValueError(
                f"gradients are not in ready order: {after.name!r} at {after.ready_s} s follows "
                f"{before.name!r} at {before.ready_s} s"
            )


def dtypes_of(gradients: Sequence[Gradient]) -> list[str]:
    """The distinct dtypes, in order of first readiness."""
    return list(dict.fromkeys(gradient.dtype for gradient in gradients))


@dataclass(frozen=True)
class StepModel:
    """Forward, backward and optimizer [s] of a step without communication, and its gradients in ready order."""

    gradients: tuple[Gradient, ...]
    forward_s: float
    backward_s: float
    optimizer_s: float
    loaded: tuple[Gradient, ...] | None = None
    """The gradients with the ready times measured under traffic, in that order; None where they were not measured."""
    loaded_each: tuple[Gradient, ...] | None = None
    """The same under the traffic of one collective per gradient."""
    micro_steps: int = 1
    accumulate_s: float = 0.0
    """All micro-steps but the last [s]."""
    input_s: float = 0.0
    """Wait for the batches of a loader, of all micro-steps [s]; 0 for one that works ahead."""
    least_s: float = 0.0
    """Time that a loader which works ahead takes for the batches of a step [s]."""
    updates_together: bool = False
    """True if every update waits for all gradients, to clip or unscale them."""

    @classmethod
    def of(cls, layers: Sequence[Layer], step: StepTimes) -> StepModel:
        """Build the model from a profile. Raises ValueError when there is no gradient or the step took no time."""
        whole_s = step.input_s + step.accumulate_s + step.forward_s + step.backward_s + step.optimizer_s
        if not whole_s > 0:
            raise ValueError(f"a step of {whole_s} s cannot be planned: its parts must take time")
        gradients = tuple(from_layers(layers))
        measured = cls(
            gradients, step.forward_s, step.backward_s, step.optimizer_s,
            loaded=_loaded(layers, gradients, "ready_loaded_s"),
            loaded_each=_loaded(layers, gradients, "ready_loaded_each_s"),
            micro_steps=step.micro_steps, accumulate_s=step.accumulate_s,
            input_s=0.0 if step.input_ahead else step.input_s,
            updates_together=step.updates_together,
        )  # fmt: skip
        bare_s = step.uninstrumented_step_s
        least_s = bare_s if step.input_ahead else 0.0
        return replace(measured.scaled(bare_s / whole_s), least_s=least_s)

    @property
    def compute_s(self) -> float:
        """C: the step without communication [s]."""
        return max(self.computed_s, self.least_s)

    @property
    def computed_s(self) -> float:
        """Sum of the step's parts [s]."""
        return self.ahead_s + self.backward_s + self.optimizer_s

    @property
    def ahead_s(self) -> float:
        """Wait for input and computation before the backward pass that communicates [s]."""
        return self.input_s + self.accumulate_s + self.forward_s

    @property
    def grad_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(gradient.nbytes for gradient in self.gradients)

    @property
    def parts(self) -> dict[str, float]:
        """Forward, backward and optimizer as keyword arguments of `bounds`; forward includes all before it."""
        return {"forward_s": self.ahead_s, "backward_s": self.backward_s, "optimizer_s": self.optimizer_s}

    def scaled(self, factor: float) -> StepModel:
        """The step of a device that takes `factor` times as long: 0.25 is a device four times as fast."""
        return replace(
            self,
            gradients=_slower(self.gradients, factor),
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            optimizer_s=self.optimizer_s * factor,
            loaded=_slower(self.loaded, factor) if self.loaded is not None else None,
            loaded_each=_slower(self.loaded_each, factor) if self.loaded_each is not None else None,
            accumulate_s=self.accumulate_s * factor,
            input_s=self.input_s * factor,
            least_s=self.least_s * factor,
        )


def _slower(gradients: Sequence[Gradient], factor: float) -> tuple[Gradient, ...]:
    return tuple(replace(gradient, ready_s=gradient.ready_s * factor) for gradient in gradients)


def _loaded(layers: Sequence[Layer], quiet: Sequence[Gradient], times: str) -> tuple[Gradient, ...] | None:
    """The gradients with these `times` of the record's tensors, in that ready order; None where none was measured.

    A gradient without such a time keeps its quiet one.
    """
    ready_s = {tensor.name: getattr(tensor, times) for layer in layers for tensor in layer.tensors}
    if all(value is None for value in ready_s.values()):
        return None
    found = [
        replace(gradient, ready_s=loaded_s if (loaded_s := ready_s[gradient.name]) is not None else gradient.ready_s)
        for gradient in quiet
    ]
    return tuple(sorted(found, key=lambda gradient: gradient.ready_s))
