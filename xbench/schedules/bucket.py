"""A bucket: gradients that share one collective.

A gradient is scaled by 1/world while it is copied into its bucket's buffer, as soon as it is ready (on a CPU it is
still in the cache then). After the collective `parameter.grad` *is* the slice of the buffer. A small bucket of a CPU
stays in the cache as a whole, and one call copies all of its gradients (`AT_ONCE_BYTES`). Each bucket also sends one
flag per parameter.

With `compress="bf16"` fp32 gradients are multiplied by 1/world in fp32 and rounded to bf16 on the copy into the buffer.
The backend sums them in bf16. They are widened on the copy back into `parameter.grad`, which stays fp32. This halves
the bytes. The mean has the rounding of bf16 in it (2⁻⁹ of each rank's part, and of each partial sum). Gradients of
other dtypes are sent as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from xbench.errors import UsageError
from xbench.spec import Compress

WIDE_BYTES = 16
"""Bytes of which equal pieces of a buffer are a multiple."""

AT_ONCE_BYTES = 256 << 10
"""Largest bucket that one call copies on a CPU: its gradients are still in a core's cache."""

MAX_PATTERNS = 64
"""Most patterns of absent gradients of a bucket whose flags are kept on the device."""


class Work(Protocol):
    """A collective in flight, as the engine uses it: a `dist.Work`, or a watched one."""

    def wait(self) -> bool:
        """Return when the collective has completed."""
        ...

    def is_completed(self) -> bool:
        """True if `wait` would return at once."""
        ...


class Bucket:
    """Parameters, and which of their gradients are ready. This base class sends nothing and serves a world of one."""

    def __init__(self, parameters: Sequence[Parameter], scale: float) -> None:
        self.parameters = list(parameters)
        self.scale = scale
        # Gradients are sent with their parameter's own strides where they are dense (channels-last stays
        # channels-last).
        self.like = [p if is_dense(p) else torch.empty(p.size(), dtype=p.dtype, device="meta") for p in parameters]
        self.dtype = grad_dtype(parameters[0])
        self.filled = [False] * len(parameters)
        self.waiting = len(parameters)

    @property
    def grad_bytes(self) -> int:
        """Bytes of the gradients [B], without the flags, and before compression."""
        return sum(parameter.numel() for parameter in self.parameters) * self.dtype.itemsize

    def fill(self, index: int) -> None:
        """Record that this parameter's gradient has been accumulated."""
        self.filled[index] = True
        self.waiting -= 1

    def empty(self) -> None:
        """Wait for every gradient again."""
        self.filled = [False] * len(self.parameters)
        self.waiting = len(self.parameters)


class CommBucket(Bucket):
    """A bucket with a collective: one flat buffer with a slice for each parameter, and a flag for each at the end.

    `whole` is the same memory with padding. It can be cut into `pieces` equal pieces of a multiple of 16 bytes each.
    """

    work: Work | None = None

    def __init__(
        self, parameters: Sequence[Parameter], scale: float, compress: Compress | None = None, pieces: int = 1
    ) -> None:
        super().__init__(parameters, scale)
        self.narrowed = compress == "bf16" and self.dtype == torch.float32
        wire = torch.bfloat16 if self.narrowed else self.dtype
        ends = list(itertools.accumulate(p.numel() for p in parameters))
        self.offsets = [0, *ends]
        """Where the slice of each parameter begins [elements], and the flags."""
        length = self.offsets[-1] + len(parameters)
        unit = pieces * (WIDE_BYTES // wire.itemsize) if pieces > 1 else 1
        self.whole = torch.zeros(-(-length // unit) * unit, dtype=wire, device=parameters[0].device)
        self.flat = self.whole[:length]
        self.flags = self.flat[self.offsets[-1] :]
        """(parameters,): above zero where any rank had a gradient, after the collective."""
        regions = zip(self.offsets, ends, self.like, strict=False)
        self.views = [self.flat[begin:end].as_strided(like.size(), like.stride()) for begin, end, like in regions]
        at_once = self.flat.is_cpu and len(parameters) > 1 and self.grad_bytes <= AT_ONCE_BYTES
        in_a_row = all(view.is_contiguous() for view in self.views)
        self._all_marks = torch.ones(len(parameters), dtype=self.dtype) if at_once and in_a_row else None
        self._known_marks: dict[tuple[bool, ...], Tensor] = {}

    def fill(self, index: int) -> None:
        """Copy this parameter's gradient in, scaled, unless one call copies all."""
        super().fill(index)
        if self._all_marks is None:
            self._copy(index)

    def _copy(self, index: int) -> None:
        """Copy and scale a gradient. A gradient that already is the slice is scaled in place."""
        parameter, view = self.parameters[index], self.views[index]
        gradient = parameter.grad
        if gradient is None:
            raise UsageError(
                f"a gradient of shape {tuple(parameter.shape)} was removed before the backward pass had ended",
                hint="remove gradients after the backward pass",
            )
        if gradient.data_ptr() == view.data_ptr():
            view.mul_(self.scale)
        else:
            torch.mul(gradient, self.scale, out=view)
            if not self.narrowed:
                parameter.grad = view.detach()  # other code may give a gradient other memory, and the slice must stay

    def complete(self) -> None:
        """Prepare for sending: the gradients and the flags of all.

        For a parameter without a gradient of this pass, what an earlier pass left on it is sent, else zeros. If other
        ranks used it, they average the sum of both passes, and so must this rank.
        """
        if self._all_marks is not None:
            if not self.waiting and self._copied_at_once(self._all_marks):
                return
            for index, filled in enumerate(self.filled):
                if filled:
                    self._copy(index)
        if self.waiting:
            for index, filled in enumerate(self.filled):
                if not filled:
                    self._copy_earlier(index)
            self.flags.copy_(self._marks() * self.scale)
        else:
            self.flags.fill_(self.scale)

    def _copy_earlier(self, index: int) -> None:
        """Copy and scale the gradient that an earlier pass left, which stays as it is; zeros without one."""
        parameter, view = self.parameters[index], self.views[index]
        if parameter.grad is None:
            view.zero_()
            return
        if parameter.grad.data_ptr() == view.data_ptr():
            parameter.grad = parameter.grad.clone()
        torch.mul(parameter.grad, self.scale, out=view)

    def _copied_at_once(self, marks: Tensor) -> bool:
        """Copy all gradients and the flags in one call if possible.

        It is not possible for a gradient that already is a slice, or that has other strides. Returns whether it was
        done.
        """
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if len(gradients) < len(self.parameters):  # a gradient was removed: copy one by one
            return False
        begin, end = self.flat.data_ptr(), self.flags.data_ptr()
        for gradient in gradients:
            if begin <= gradient.data_ptr() < end or not gradient.is_contiguous():
                return False
        torch.mul(torch._C._nn.flatten_dense_tensors([*gradients, marks]), self.scale, out=self.flat)
        if not self.narrowed:
            for parameter, view in zip(self.parameters, self.views, strict=True):
                parameter.grad = view.detach()
        return True

    def send(self, group: dist.ProcessGroup | None) -> Work:
        """Start the collective."""
        return start_all_reduce(self.flat, group)

    def has_arrived(self) -> bool:
        """True if `finish` would return at once."""
        return self.work is None or self.work.is_completed()

    def finish(self, changed: Container[int]) -> None:
        """Wait for the collective, and write its averages into gradients that are not the sent memory.

        `finish` of the module does what follows.
        """
        assert self.work is not None
        self.work.wait()
        self.work = None
        if self.narrowed:
            for parameter, view, filled in zip(self.parameters, self.views, self.filled, strict=True):
                if filled and parameter.grad is not None and id(parameter) not in changed:
                    parameter.grad.copy_(view)

    def sent(self, index: int) -> Tensor:
        """The sent memory of a parameter without a gradient on this rank."""
        return self.views[index].detach().to(self.dtype)

    def give_absent(self, used: Sequence[bool], changed: Container[int]) -> None:
        """Give gradients to parameters that other ranks used (`used`, by parameter) and this one did not."""
        for index, (parameter, filled) in enumerate(zip(self.parameters, self.filled, strict=True)):
            if not filled and used[index] and id(parameter) not in changed:
                parameter.grad = self.sent(index)

    def _marks(self) -> Tensor:
        """The flags of this rank, before scaling; read only.

        They are kept by pattern: the host would wait for a GPU each time it copies them there.
        """
        pattern = tuple(self.filled)
        marks = self._known_marks.get(pattern)
        if marks is None:
            if len(self._known_marks) == MAX_PATTERNS:
                self._known_marks.clear()
            ones = [1.0 if filled else 0.0 for filled in pattern]
            marks = torch.tensor(ones, dtype=self.flags.dtype, device=self.flags.device)
            self._known_marks[pattern] = marks
        return marks


def finish(buckets: Sequence[CommBucket], changed: Container[int] = ()) -> None:
    """Wait for the buckets' collectives, and give gradients to parameters that only other ranks used.

    The buckets are then empty again. All flags are read after the last wait. `changed`: ids of the parameters whose
    gradients other code has replaced or removed in flight, which stay as they are now.
    """
    for bucket in buckets:
        bucket.finish(changed)
    partial = [bucket for bucket in buckets if bucket.waiting]
    for bucket, used in zip(partial, read_flags(partial), strict=True):
        bucket.give_absent(used, changed)
    for bucket in buckets:
        bucket.empty()


def read_flags(buckets: Sequence[CommBucket]) -> list[list[bool]]:
    """By bucket, and by parameter of it: True if any rank had a gradient. The collectives have been waited for.

    One copy reads all flags, because on a GPU the host waits for the device at each copy.
    """
    if not buckets:
        return []
    flags = [bucket.flags for bucket in buckets]
    values = iter((flags[0] if len(flags) == 1 else torch.cat(flags)).tolist())
    return [[value > 0 for value in itertools.islice(values, len(bucket.parameters))] for bucket in buckets]


def started(work: dist.Work | None) -> dist.Work:
    """The collective that was started: torch has none for a rank outside the group."""
    assert work is not None
    return work


def start_all_reduce(tensor: Tensor, group: dist.ProcessGroup | None) -> dist.Work:
    """Start an all-reduce of the tensor, in place."""
    return started(dist.all_reduce(tensor, group=group, async_op=True))


def grad_dtype(parameter: Tensor) -> torch.dtype:
    """The dtype of the parameter's gradients, which `Tensor.grad_dtype` may set."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def is_dense(tensor: Tensor) -> bool:
    """True if the tensor's elements fill one piece of memory, each once, in any order."""
    dense: bool = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    return dense
