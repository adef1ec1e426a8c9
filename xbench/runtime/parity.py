"""The correctness gate: does a schedule train the network that DDP trains?

From one saved state (parameters, buffers, optimizer, random numbers) and the same batches, a schedule and DDP each take
k steps. Afterwards parameters must be bitwise equal across ranks, and close to DDP's, measured against how far training
moved them:

    difference(p) = max|a - b| / (max|b - start| + 100 ε max|b|),   a: the schedule's, b: DDP's, ε: the dtype's epsilon

The denominator is the update, not the parameter: a schedule that forgot to send one small layer's gradient differs by
about 1 here, and by nothing visible against the parameter itself. The second term is rounding: one unit in the last
place counts for a hundredth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.records import Parity
from xbench.workloads.build import Workload

TOLERANCE = 0.02
_ULPS = 100.0


class Snapshot:
    """Everything that a training step changes, so that it can be put back exactly."""

    def __init__(self, workload: Workload) -> None:
        self.model = {name: value.detach().clone() for name, value in _state(workload).items()}
        self.random = torch.get_rng_state()
        self.cuda_random = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def restore(self, workload: Workload) -> None:
        """Put it back. The optimizer forgets its momentum: the snapshot was taken before its first step."""
        with torch.no_grad():
            for name, value in _state(workload).items():
                value.copy_(self.model[name])
        workload.optimizer.state.clear()
        workload.optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(self.random)
        if self.cuda_random is not None:
            torch.cuda.set_rng_state(self.cuda_random)

    def parameters(self, workload: Workload) -> dict[str, Tensor]:
        """The saved parameters alone."""
        return {name: self.model[name] for name, _ in workload.model.named_parameters()}


def _state(workload: Workload) -> dict[str, Tensor]:
    return {**dict(workload.model.named_parameters()), **dict(workload.model.named_buffers())}


def trained(workload: Workload, snapshot: Snapshot, train: Callable[[], None]) -> dict[str, Tensor]:
    """Parameters after `train()` from the snapshot, copied; the snapshot's state is put back afterwards."""
    snapshot.restore(workload)
    train()
    result = {name: value.detach().clone() for name, value in workload.model.named_parameters()}
    snapshot.restore(workload)
    return result


def compare(
    result: dict[str, Tensor],
    reference: dict[str, Tensor],
    start: dict[str, Tensor],
    *,
    steps: int,
    group: dist.ProcessGroup | None,
) -> Parity:
    """Judge a schedule's parameters against DDP's, on every rank alike (the worst rank decides).

    All three map parameter names to tensors of equal shapes. Collective: every rank of `group` must call it.
    """
    worst, worst_name = 0.0, None
    for name, b in reference.items():
        a = result[name]
        if b.numel() == 0:
            continue
        scale = (b - start[name]).abs().max().double() + _ULPS * torch.finfo(b.dtype).eps * b.abs().max().double()
        difference = float((a.double() - b.double()).abs().max() / scale) if scale > 0 else float((a != b).any())
        if not difference <= worst:  # also catches NaN
            worst, worst_name = difference, name
    digests: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(digests, ({n: _digest(v) for n, v in result.items()}, worst, worst_name), group=group)
    first = digests[0][0]
    unequal = [name for name in first if any(d[0][name] != first[name] for d in digests)]
    worst, worst_name = max(((d[1], d[2]) for d in digests), key=lambda pair: (pair[0] != pair[0], pair[0]))
    finite = worst == worst and worst != float("inf")
    message = None
    if unequal:
        message = f"ranks disagree on {unequal[0]!r}" + (f" and {len(unequal) - 1} more" if len(unequal) > 1 else "")
    elif not worst <= TOLERANCE:
        message = f"{worst_name!r} differs from DDP's by {worst:.3g} of its update (tolerance {TOLERANCE:g})"
    return Parity(
        ok=message is None,
        max_relative_difference=worst if finite else None,
        tolerance=TOLERANCE,
        bitwise_across_ranks=not unequal,
        steps=steps,
        worst_parameter=unequal[0] if unequal else worst_name,
        message=message,
    )


def _digest(value: Tensor) -> str:
    raw = value.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(raw.tobytes(), digest_size=16).hexdigest()
