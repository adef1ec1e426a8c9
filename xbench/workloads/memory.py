"""Estimate of the memory that a step needs, before it runs, and of the free memory.

One rank of one job holds its parameters P and frozen tensors, their gradients G, the optimizer's state S (SGD with
momentum: one P; AdamW: two), gradients packed into flat buckets (another G), the activations A that autograd saves
between forward and backward, and the process itself. On a CPU it also holds a copy of the initial weights for the
parity check (another P), which a rank on a GPU has in the host's memory. A is measured in a forward pass through
`saved_tensors_hooks`, each storage once; on the meta device that costs no memory. The workspace of operators and
gradients of activations are left out. So are the states of several steps that the parity check of a comparison holds in
the host's memory for a while (`rank.reference` looks whether they fit). The estimate is therefore low: it serves to
refuse what clearly cannot fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor

from xbench.errors import WorkloadError
from xbench.limits import control_groups
from xbench.units import Bytes, format_bytes
from xbench.workloads.workload import Workload

PROCESS_BYTES = 400 * 1024**2
"""Resident memory of an idle rank that has imported torch, rounded up; on a GPU: of its CUDA context."""

_STATE_COPIES = {"sgd": 1, "adamw": 2}


class Footprint(NamedTuple):
    """One rank's memory for one job: a fixed part, and a part that grows with the batch."""

    fixed_bytes: Bytes
    activation_bytes: Bytes

    @property
    def total_bytes(self) -> Bytes:
        """Sum of both parts [B]."""
        return self.fixed_bytes + self.activation_bytes


def footprint(workload: Workload, *, on_gpu: bool = False) -> tuple[Footprint, Tensor]:
    """The estimate, and the loss of the forward pass that it ran. Raises what the model raises.

    `on_gpu`: the memory is a GPU's, also for a workload on the meta device.
    """
    weights = {id(tensor): tensor for tensor in (*workload.model.parameters(), *workload.model.buffers())}
    known = {tensor.untyped_storage()._cdata for tensor in weights.values()}
    loss, activations = saved_bytes(workload.forward_loss, known)
    all_bytes = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    grads = workload.grad_bytes
    state = _STATE_COPIES[workload.spec.optimizer] * grads
    fixed = PROCESS_BYTES + (1 if on_gpu else 2) * all_bytes + 2 * grads + state
    if workload.spec.amp is not None and workload.device_type == "meta":  # which has no autocast
        activations //= 2
    return Footprint(fixed, activations), loss


def saved_bytes(forward: Callable[[], Tensor], known: Collection[int]) -> tuple[Tensor, Bytes]:
    """The result of `forward()`, and the bytes that autograd saves in it for the backward pass, each storage once.

    `known` holds the `_cdata` of storages that do not count. Of a sharded tensor its own shard counts. Nothing is kept
    alive longer than autograd keeps it, so the backward pass frees it piece by piece.
    """
    saved: dict[int, Bytes] = {}
    alive: list[Tensor] = []  # during `forward`: the next storage could have the identity of a freed one

    def keep(tensor: Tensor) -> Tensor:
        own = local_shard(tensor)
        if own.layout not in (torch.strided, torch.jagged):  # sparse: its values count, its indices do not
            own = own._values() if own.layout == torch.sparse_coo else own.values()
        storage = own.untyped_storage()
        kept = tensor.detach()  # an output that is saved with its graph would keep the graph, and so itself
        if storage._cdata not in known and storage._cdata not in saved:
            saved[storage._cdata] = storage.nbytes()
            alive.append(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    alive.clear()
    return result, sum(saved.values())


def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard of a torch.distributed.tensor.DTensor, whose import takes long, or the tensor itself."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def available_bytes(gpus: Sequence[int]) -> Bytes:
    """Free memory [B]: of the fullest of these GPUs if there are any, else of this machine and its control group."""
    if gpus:
        return min(int(torch.cuda.mem_get_info(index)[0]) for index in gpus)
    free = int(psutil.virtual_memory().available)
    limit = _control_group_bytes()
    return free if limit is None else min(free, limit)


def check_fits(
    workloads: list[tuple[Workload, Footprint]], ranks: int, gpus: Sequence[int], own: int | None = None
) -> None:
    """Refuse jobs that do not fit in memory together, `ranks` processes each. Raises WorkloadError.

    `gpus` are the GPUs that they share, none if they compute on the CPU. With `own` only that one's memory is read. The
    sentence names the largest job. The hint names the batch that fits, or says that none does.
    """
    sharers = -(-ranks // len(gpus)) if gpus else ranks
    free = available_bytes(gpus if own is None else [own])
    needed = sharers * sum(estimate.total_bytes for _, estimate in workloads)
    if needed <= free:
        return
    workload, largest = max(workloads, key=lambda job: job[1].total_bytes)
    others = needed - sharers * largest.total_bytes
    spec = workload.spec
    sizes = f" with batch {workload.batch_size}" if spec.batch_size else ""
    verb = " and its companions need" if len(workloads) > 1 else " needs"
    shared = f" for {sharers} ranks" if sharers > 1 else ""
    where = " on the GPU" if gpus else ""
    raise WorkloadError(
        f"{spec.title}{sizes}{verb} about {format_bytes(needed)}{shared}, {format_bytes(free)} are free{where}",
        hint=_smaller(workload, largest, (free - others) // sharers),
    )


def _smaller(workload: Workload, estimate: Footprint, share: Bytes) -> str:
    spec = workload.spec
    if spec.batch_size is None:
        return "let its factory make a smaller batch"
    per_sample = max(1, estimate.activation_bytes // workload.batch_size)
    fits = (share - estimate.fixed_bytes) // per_sample
    if fits >= 1:
        return f"try --batch-size {2 ** (min(fits, workload.batch_size).bit_length() - 1)}"
    if share <= estimate.fixed_bytes:
        return f"its weights, gradients and optimizer alone need {format_bytes(estimate.fixed_bytes)} a rank"
    return f"try a smaller {'--seq-len' if spec.seq_len else '--image-size'}"


_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of a control group (v2, v1): limit, use, and the field of memory.stat with the page cache that can be dropped."""


def _control_group_bytes(proc: Path = Path("/proc/self")) -> Bytes | None:
    """Memory [B] that the tightest of our control groups still allows, without droppable page cache; None: no limit."""
    left = []
    for folder, (most, now, cache) in itertools.product(control_groups("memory", proc), _MEMORY_FILES):
        try:
            limit, used = int((folder / most).read_text()), int((folder / now).read_text())
            facts: dict[str, Any] = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        left.append(max(0, limit - used + int(facts.get(cache, 0))))
    return min(left, default=None)
