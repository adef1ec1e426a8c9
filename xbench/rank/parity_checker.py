"""Comparison of a schedule's steps with a reference's: differences, tolerances and verdict.

The difference of two trained networks is relative to the update of the training (`rank.parity` explains the formula):

    difference(p) = size(a - b) / (size(b - start) + 100 ε size(b) + least)

`a` is the schedule's value, `b` the reference's, `start` the common initial value, `ε` the dtype's. `size` is the
largest magnitude, or the mean for compressed gradients and for compiled steps. `least` is 10⁻³ of the largest update if
sums may have another order, else 0. Integers, booleans and complex numbers are compared by their bits: they differ by 0
or by 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.equal_ranks import digest
from xbench.rank.snapshot import host_copy
from xbench.records import Parity
from xbench.text import counted
from xbench.workloads.workload import Workload

TOLERANCE = 0.02
MEAN_TOLERANCE = 0.25
"""Tolerance of means: half of the smallest error of a wrong schedule, and many times the rounding to bf16, or that of
compiled kernels (`rank.parity`)."""

COMPRESSED_MOMENTUM = 0.05
"""Tolerance of means of first moments: ten times the rounding to bf16 if ranks cancel as independent samples do."""


ALL = "all parameters"
"""Name of the norm of all gradients among the first moments."""

PIECE = 1 << 22
"""Elements of a parameter that are compared at a time."""

NULL = 1e-3
_ULPS = 100.0

Size = Callable[[Tensor, Tensor | None, torch.device], float]
Value = TypeVar("Value")


@dataclass
class Reference:
    """Reference of the parity check. `states` holds parameters before the first step and after each."""

    states: list[dict[str, Tensor]]
    by: str = "ddp"
    momentum: dict[str, Tensor] = field(default_factory=dict)
    """The optimizer's first moment of each parameter after the last step."""
    norms: list[float | None] = field(default_factory=list)
    """Norm of all gradients before they were clipped, step by step; None without clipping."""
    ddp_refusal: str | None = None
    not_shown: str | None = None
    """Reason why a schedule that passes has not been shown to train the same network."""
    not_shown_compiled: str | None = None
    """The same for a compiled step, whose tolerance is wider."""
    comparable: bool = True
    """True if a difference from these states is evidence about a schedule."""
    buffer: str | None = None
    """Buffer that DDP makes equal on all ranks, and that the forward pass reads."""

    def release(self) -> None:
        """Free the parameters and moments, several times the network's memory. Nothing can be compared afterwards."""
        self.states.clear()
        self.momentum.clear()


def copies(tensors: Any) -> dict[str, Tensor]:
    """Return a copy of named tensors, in the host's memory."""
    return {name: host_copy(value) for name, value in tensors}


def momentum_of(rank_workload: Any) -> dict[str, Tensor]:
    """Return the optimizer's first moment of each parameter by name, not copied; empty if it has none.

    It is a fixed sum of all averaged gradients so far. Under Adam parameters do not distinguish a sum from a mean,
    because updates do not depend on the size of gradients.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in rank_workload.model.named_parameters():
        state = rank_workload.optimizer.state.get(parameter, {})
        for key in ("momentum_buffer", "exp_avg"):
            if isinstance(state.get(key), Tensor):
                found[name] = state[key]
    return found


def size_of(norm: Tensor | None) -> float | None:
    """Return a norm as a number. Collective for a sharded tensor."""
    if norm is None:
        return None
    whole: Callable[[], Tensor] | None = getattr(norm, "full_tensor", None)
    return float(norm if whole is None else whole())


def gathered(value: Value, group: dist.ProcessGroup | None = None) -> list[Value]:
    """Return the value of every rank, on every rank. Collective."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def largest(values: Tensor, less: Tensor | None = None, device: torch.device | None = None) -> float:
    """Return the largest magnitude of `values`, or of `values - less`, in fp64; NaN if any is NaN.

    `device` computes it; None is that of the values.
    """
    found = [float(piece.abs().max()) for piece in _pieces(values, less, device)]
    return math.nan if any(map(math.isnan, found)) else max(found)


def mean(values: Tensor, less: Tensor | None = None, device: torch.device | None = None) -> float:
    """Return the mean magnitude of `values`, or of `values - less`, in fp64, as `largest` does."""
    return math.fsum(float(piece.abs().sum()) for piece in _pieces(values, less, device)) / values.numel()


def _pieces(values: Tensor, less: Tensor | None, device: torch.device | None) -> Iterator[Tensor]:
    """Yield the values, or differences, in fp64 and in pieces. A whole large layer in fp64 takes too much memory."""
    device = values.device if device is None else device
    flat = torch.split(values.reshape(-1), PIECE)
    if less is None:
        yield from (piece.to(device).double() for piece in flat)
    else:
        others = torch.split(less.reshape(-1), PIECE)
        yield from (a.to(device).double() - b.to(device).double() for a, b in zip(flat, others, strict=True))


def differences(
    result: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    start: Mapping[str, Tensor] | None,
    *,
    reordered: bool,
    size: Size = largest,
) -> dict[str, float]:
    """Return difference(p) of each parameter that has elements; NaN if a value is NaN.

    `start` None stands for zeros. `reordered`: whether sums over ranks may have another order. Results are compared on
    their own device, also with references in the host's memory.
    """
    filled = {name: b for name, b in reference.items() if b.numel()}
    updates = {
        name: size(b, None if start is None else start[name], result[name].device)
        for name, b in filled.items()
        if b.is_floating_point()
    }
    most = max((update for update in updates.values() if math.isfinite(update)), default=0.0)
    least = NULL * most if reordered else 0.0
    found: dict[str, float] = {}
    for name, b in filled.items():
        a = result[name]
        if name not in updates or a.shape != b.shape:
            found[name] = float(not same_bits(a, b))
            continue
        scale = updates[name] + _ULPS * torch.finfo(b.dtype).eps * size(b, None, a.device) + least
        found[name] = size(a, b, a.device) / scale if scale > 0 else float((a.to(b.device) != b).any())
    return found


def worst_of(found: Mapping[str, float]) -> tuple[float, str | None]:
    """Return the largest difference and its parameter; NaN counts as largest. (0, None) if nothing differs."""
    worst, name = max(
        ((value, name) for name, value in found.items()),
        key=lambda pair: (math.isnan(pair[0]), pair[0]),
        default=(0.0, None),
    )
    return (worst, name) if worst != 0 else (0.0, None)


def largest_difference(
    result: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    *,
    reordered: bool,
    size: Size = largest,
) -> tuple[float, str | None]:
    """Return the largest of `differences` and its parameter."""
    return worst_of(differences(result, reference, start, reordered=reordered, size=size))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if two tensors have the same shape, dtype and bits. A NaN equals itself here."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.to(b.device), b) or digest(a) == digest(b)


class ParityChecker:
    """Comparison of a schedule's steps with a reference's.

    `states` holds the reference's parameters before the first step and after each of its k. `momentum` holds its
    optimizer's first moments after the last, by parameter, and `norms` the norm of its gradients in each step. With
    `comparable` False, nothing is compared with the reference, and parameters are not reset to it. Ranks must still be
    equal.
    """

    def __init__(
        self,
        workload: Workload,
        states: Sequence[Mapping[str, Tensor]],
        group: dist.ProcessGroup | None,
        *,
        momentum: Mapping[str, Tensor] | None = None,
        norms: Sequence[float | None] = (),
        compressed: bool = False,
        compiled: bool = False,
        comparable: bool = True,
    ) -> None:
        self._workload = workload
        self._states = states
        self._momentum = momentum or {}
        self._norms = norms
        self._group = group
        self._comparable = comparable
        self._size = mean if compressed or compiled else largest
        self._tolerance = MEAN_TOLERANCE if compressed or compiled else TOLERANCE
        self._momentum_tolerance = COMPRESSED_MOMENTUM if compressed and not compiled else self._tolerance
        self._reordered = compiled or dist.get_world_size(group) > 2  # a sum of two is the same in either order
        self._taken = 0
        self._differences: dict[str, float] = {}
        self._moments: dict[str, float] = {}
        self._digests: dict[str, str] = {}
        self._lost: tuple[int, float] | None = None

    def step(self, loss: Tensor | None = None, norm: Tensor | None = None) -> None:
        """Judge a step, and reset parameters to the reference's state. `verdict` reports surplus steps.

        `loss` is the step's loss on this rank, `norm` that of its gradients before they were clipped.
        """
        self._taken += 1
        if self._taken >= len(self._states):
            return
        before, there = self._states[self._taken - 1], self._states[self._taken]
        mine = dict(self._workload.model.named_parameters())
        if loss is not None and self._lost is None and not math.isfinite(float(loss.sum())):
            self._lost = (self._taken, float(loss.sum()))
        if self._comparable:
            self._compare_norm(norm)
            self._compare({n: value.detach() for n, value in mine.items()}, there, before)
        with torch.no_grad():
            for n, value in mine.items():
                self._digests[n] = digest(value, self._digests.get(n, ""))
                if self._comparable:
                    value.copy_(there[n])

    def _compare_norm(self, norm: Tensor | None) -> None:
        there = self._norms[self._taken - 1] if self._norms else None
        mine = size_of(norm)
        if there is None:
            return
        if mine is None or there == 0:
            off = float(mine != there)
        elif not math.isfinite(there):  # a step that a GradScaler skips
            off = float(math.isfinite(mine))
        else:
            off = abs(mine / there - 1) if math.isfinite(mine) else math.inf
        self._moments[ALL] = max(self._moments.get(ALL, 0.0), off)

    def _compare(self, mine: Mapping[str, Tensor], there: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
        found = differences(mine, there, before, reordered=self._reordered, size=self._size)
        for name, value in found.items():
            known = self._differences.get(name, 0.0)
            if not value <= known and not math.isnan(known):
                self._differences[name] = value
        if self._taken < len(self._states) - 1 or not self._momentum:
            return
        moments = momentum_of(self._workload)
        self._moments |= differences(
            {name: moments[name] if name in moments else torch.zeros_like(b) for name, b in self._momentum.items()},
            self._momentum,
            None,
            reordered=self._reordered,
            size=self._size,
        )

    def tolerances(self) -> dict[str, float]:
        """Return each parameter's deviation [tolerances] here: the larger of its value's and its first moment's."""
        found = {name: value / self._tolerance for name, value in self._differences.items()}
        for name, value in self._moments.items():
            found[name] = max(found.get(name, 0.0), value / self._momentum_tolerance)
        return found

    def verdict(self, late: str | None = None) -> Parity:
        """Return the verdict, the same on every rank: the worst rank decides. Collective over the group.

        `late` is the parameter that was read before its update, if any (`read_too_early`).
        """
        steps = len(self._states) - 1
        said = (self._digests, worst_of(self._differences), worst_of(self._moments), self._taken, self._lost)
        found = gathered(said, self._group)
        first = found[0][0]
        unequal = [name for name in first if any(rank[0].get(name) != first[name] for rank in found)]
        worst, worst_name = max((rank[1] for rank in found), key=_worse)
        moment, moment_name = max((rank[2] for rank in found), key=_worse)
        message, name = None, worst_name
        taken = next((rank[3] for rank in found if rank[3] != steps), steps)
        lost = next(((number, *rank[4]) for number, rank in enumerate(found) if rank[4] is not None), None)
        if taken != steps:
            message = f"it took {counted(taken, 'step')} in place of {steps}"
        elif lost is not None and self._comparable:
            message = f"the loss of rank {lost[0]} is {lost[2]} at step {lost[1]}, and the reference's is not"
        elif unequal and (self._comparable or lost is None):
            message = f"ranks disagree on {unequal[0]!r}" + (
                f" and {len(unequal) - 1} more" if len(unequal) > 1 else ""
            )
        elif not worst <= self._tolerance:
            message = (
                f"{worst_name!r} differs from the reference's by {worst:.3g} of its update "
                f"(tolerance {self._tolerance:g})"
            )
        elif not moment <= self._momentum_tolerance:
            name = moment_name
            message = (
                f"the averaged gradients of {moment_name!r} differ from the reference's by {moment:.3g} of their size "
                f"(tolerance {self._momentum_tolerance:g})"
            )
        elif late is not None:
            message = f"{late!r} ends otherwise when its update is put off than when each step is finished"
        return Parity(
            ok=message is None,
            max_relative_difference=worst if math.isfinite(worst) and self._comparable else None,
            tolerance=self._tolerance,
            bitwise_across_ranks=not unequal,
            steps=steps,
            worst_parameter=unequal[0] if unequal else late or name,
            message=message,
        )


def _worse(pair: tuple[float, str | None]) -> tuple[bool, float]:
    return math.isnan(pair[0]), pair[0]


def compressed(compress: str) -> str:
    """Return the record's remark on a run whose gradients are compressed."""
    return (
        f"fp32 gradients travel as {compress}, in every mode; the parity check compares mean differences with DDP's "
        f"exact steps (tolerance {MEAN_TOLERANCE:g} in place of {TOLERANCE:g} of the largest)"
    )
