"""The bucket of a way of copying (`bucket_of`), and the one that copies nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from xbench.schedules.bucket import CommBucket, FlatBucket, FusedBucket, Work, grad_dtype, laid_out_as
from xbench.spec import Compress, Copies


def bucket_of(
    parameters: Sequence[Parameter], scale: float, copies: Copies, compress: Compress | None = None, pieces: int = 1
) -> CommBucket:
    """A bucket of parameters of one dtype, whose gradients are sent times `scale`.

    Its buffer, if it has one, can be cut into `pieces` equal pieces.
    """
    if copies == "coalesced":
        return CoalescedBucket(parameters, scale)
    own = grad_dtype(parameters[0])
    wire = torch.bfloat16 if compress == "bf16" and own == torch.float32 else own
    return (FusedBucket if copies == "fused" else FlatBucket)(parameters, scale, wire, pieces)


class CoalescedBucket(CommBucket):
    """Gradients in place, and one collective for many tensors."""

    def __init__(self, parameters: Sequence[Parameter], scale: float) -> None:
        super().__init__(parameters, scale)
        self.flags = torch.zeros(len(parameters), dtype=self.dtype, device=parameters[0].device)
        self.tensors: list[Tensor] = []

    def complete(self) -> None:
        """Scale the gradients in place."""
        if self.waiting:
            self.flags.copy_(self._marks())
        else:
            self.flags.fill_(1.0)
        self.tensors = []
        for parameter, like, filled in zip(self.parameters, self.like, self.filled, strict=True):
            if filled:
                gradient = laid_out_as(like, parameter.grad)
                parameter.grad = gradient.clone() if is_shared(gradient) else gradient
                self.tensors.append(parameter.grad)
            elif parameter.grad is None:
                self.tensors.append(torch.zeros_like(like, dtype=self.dtype, device=parameter.device))
            else:
                self.tensors.append(laid_out_as(like, parameter.grad.clone()))
        torch._foreach_mul_([*self.tensors, self.flags], self.scale)

    def send(self, group: dist.ProcessGroup | None) -> Work:
        """Call the group's own method: torch's function for it is deprecated and returns no `Work`."""
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = dist.ReduceOp.SUM
        options.asyncOp = True
        chosen = group if group is not None else dist.group.WORLD
        assert chosen is not None
        work: Work = chosen.allreduce_coalesced([*self.tensors, self.flags], options)
        return work

    def empty(self) -> None:
        """See `Bucket.empty`."""
        super().empty()
        self.tensors = []

    def sent(self, index: int) -> Tensor:
        """See `CommBucket.sent`."""
        return self.tensors[index]


def _users(tensor: Tensor) -> int:
    """Number of users of this tensor's memory, from a private counter of torch."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count


_ALONE = _users(torch.empty(1)) if hasattr(torch._C, "_storage_Use_Count") else 0


def is_shared(gradient: Tensor) -> bool:
    """True if another tensor shares the memory, or may share it: then it must not be written during backward.

    Where a parameter meets another branch through a view (a sum with a reshaped parameter, a concatenation), autograd
    gives it a gradient that is a view of memory that the other branch still needs.
    """
    return _ALONE == 0 or _users(gradient) > _ALONE
