"""Memory of one training step under a mode, on this rank, outside the timed blocks.

Four parts are counted from tensors, in bytes of this rank's own pieces: parameters, their gradients after backward, the
optimizer's state after the step, and activations. Activations are what autograd saves in the forward pass, each piece
of memory once, without parameters and buffers.

The peak is that of CUDA's caching allocator in an ordinary step, less what the rank holds for xbench alone (the saved
initial state). It includes buckets, parameters that were gathered for one unit, and the workspace of operators. The
allocator of a CPU keeps no such count. There the peak is the sum of the four parts, and the record says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from xbench.rank.events import MemoryMeasured
from xbench.rank.session import Session, noted
from xbench.schedules import cycle_of
from xbench.spec import ModeSpec
from xbench.torch_compile import cut_by_ddp
from xbench.workloads.memory import local_shard, saved_bytes
from xbench.workloads.nested import tensors_in


def measure_memory(session: Session, mode: ModeSpec) -> None:
    """Attach anew, take a first step, count a second one, and write the result. Collective over the job."""
    what = noted(mode, f"memory of {mode.text}")
    on_gpu = session.device.type == "cuda"
    workload, cycle = session.workload, cycle_of(mode)
    before = torch.cuda.memory_allocated(session.device) if on_gpu else 0
    own = local_bytes((*workload.model.parameters(), *workload.model.buffers()))
    own += local_bytes(tensors_in([workload.inputs, workload.targets, list(workload.optimizer.state.values())]))
    with cut_by_ddp(workload.model, session.on_ddp(mode)), session.attach(mode) as handle:
        # The optimizer's state is made in the first step. The last step of a cycle is the largest.
        session.train(handle, max(1, cycle - 1), what, lambda: None)
        peak = None
        if on_gpu:
            session.device_idle()
            torch.cuda.reset_peak_memory_stats(session.device)
            session.train(handle, cycle, what, lambda: None)
            session.device_idle()
            peak = torch.cuda.max_memory_allocated(session.device) - max(0, before - own)
        session.note(f"{what}: counting")
        workload.optimizer.zero_grad(set_to_none=True)
        loss, activations = activation_bytes(handle.model, lambda: workload.forward_loss(handle.model))
        loss.backward()  # type: ignore[no-untyped-call]
        handle.synchronize()
        parameters = list(handle.model.parameters())
        gradients = local_bytes(p.grad for p in parameters if p.grad is not None)
        workload.optimizer.step()
        state = local_bytes(tensors_in(list(workload.optimizer.state.values())))
        held = local_bytes(parameters)
    workload.optimizer.zero_grad(set_to_none=True)
    session.journal.write(
        MemoryMeasured(
            mode=mode.text,
            peak_bytes=peak,
            parameter_bytes=held,
            gradient_bytes=gradients,
            optimizer_bytes=state,
            activation_bytes=activations,
        )
    )


def local_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors on this rank: of a sharded tensor, its own shard."""
    return sum(one.numel() * one.element_size() for one in map(local_shard, tensors))


def activation_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """Return the result of `forward()`, and the bytes that autograd saves in it for the backward pass."""
    known: set[int] = set()

    def know(tensors: Iterable[Tensor]) -> None:
        known.update(one.untyped_storage()._cdata for one in tensors if not hasattr(one, "to_local"))

    def gathered(module: nn.Module, _: Any) -> None:
        know(module.parameters(recurse=False))

    know((*model.parameters(), *model.buffers()))
    hooks = [module.register_forward_pre_hook(gathered) for module in model.modules()]
    try:
        return saved_bytes(forward, known)
    finally:
        for hook in hooks:
            hook.remove()
