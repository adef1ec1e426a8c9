"""Packing of gradients into a bucket and out of it: one kernel launch on a GPU, torch operations elsewhere.

A bucket is one flat buffer, and a `Layout` gives the offset of each tensor's slice. Elements are in memory order, so a
channels-last tensor stays channels-last in its slice. `pack` writes slice = tensor · scale, `unpack` writes tensor =
slice · scale. fp32 tensors may use a bf16 buffer. The product is rounded to the tensor's own precision (bf16 and fp16:
to fp32), then to the destination's, to nearest even; NaN stays NaN. Kernel (`cuda/pack.cu`) and twin agree bit for bit,
except for the payload of a NaN.

A GPU without nvcc, or whose nvcc cannot build, uses the twin, and one warning gives the reason.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xbench.errors import KernelError
from xbench.kernels import build

WIDE_BYTES = 16
"""Alignment [B] of a slice from which it is read and written this many bytes at a time."""

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
_NARROWED = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Layout:
    """Layout of tensors in a flat buffer: `elements[i]` from `offsets[i]` on, in a buffer of `length` elements."""

    elements: tuple[int, ...]
    offsets: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, elements: Sequence[int], align: int = 1) -> Layout:
        """Consecutive slices, each beginning on a multiple of `align` elements. Raises ValueError below 1."""
        if align < 1:
            raise ValueError(f"slices cannot be aligned to {align} elements")
        ends = itertools.accumulate(elements, lambda end, count: -(-end // align) * align + count, initial=0)
        offsets = [-(-end // align) * align for end in ends]
        last = offsets[len(elements) - 1] + elements[-1] if elements else 0
        return cls(tuple(elements), tuple(offsets[: len(elements)]), last)

    @functools.cached_property
    def arrays(self) -> tuple[Any, Any]:
        """`elements` and `offsets` as C arrays."""
        numbers = ctypes.c_longlong * len(self.elements)
        return numbers(*self.elements), numbers(*self.offsets)


def pack(tensors: Sequence[Tensor], flat: Tensor, layout: Layout, scale: float = 1.0) -> None:
    """Write each tensor, times `scale`, into its slice of `flat`; a tensor may be its slice.

    `tensors`: dense, of one dtype, on the device of `flat`, with the layout's numbers of elements. `flat` (length,), of
    the same dtype, or bf16 for fp32 tensors. Raises ValueError for anything else, KernelError for a failed launch.
    """
    if not _launched("pack", tensors, flat, layout, scale):
        pack_twin(tensors, flat, layout, scale)


def unpack(flat: Tensor, tensors: Sequence[Tensor], layout: Layout, scale: float = 1.0) -> None:
    """Write each slice of `flat`, times `scale`, into its tensor. Shapes, dtypes and errors are those of `pack`."""
    if not _launched("unpack", tensors, flat, layout, scale):
        unpack_twin(flat, tensors, layout, scale)


def pack_twin(tensors: Sequence[Tensor], flat: Tensor, layout: Layout, scale: float = 1.0) -> None:
    """`pack` in torch operations."""
    for tensor, part in zip(tensors, slices(flat, layout, tensors), strict=True):
        torch.mul(tensor, scale, out=part)


def unpack_twin(flat: Tensor, tensors: Sequence[Tensor], layout: Layout, scale: float = 1.0) -> None:
    """`unpack` in torch operations."""
    for tensor, part in zip(tensors, slices(flat, layout, tensors), strict=True):
        tensor.copy_(part)  # the tensor is the wider of the two, and the product is computed there
        if scale != 1.0:
            tensor.mul_(scale)


def slices(flat: Tensor, layout: Layout, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of the slices with the shapes and strides of `like`, which are dense."""
    regions = zip(layout.offsets, layout.elements, like, strict=True)
    return [flat[offset : offset + count].as_strided(t.size(), t.stride()) for offset, count, t in regions]


def describe_pack_backend(device: torch.device) -> str:
    """The implementation that `pack` and `unpack` use on this device, for a reader of the record."""
    if device.type != "cuda":
        return "gradients are packed by torch operations"
    library = build.for_gpu(device)
    if isinstance(library, KernelError):
        return f"gradients are packed by torch operations: {library}"
    return "gradients are packed by the CUDA kernel"


def _check(tensors: Sequence[Tensor], flat: Tensor, layout: Layout) -> None:
    if len(tensors) != len(layout.elements):
        raise ValueError(f"{len(tensors)} tensors do not fit a layout of {len(layout.elements)}")
    if flat.dim() != 1 or not flat.is_contiguous() or flat.numel() < layout.length:
        raise ValueError(f"the buffer must be flat and hold {layout.length} elements: it is {tuple(flat.shape)}")
    if not tensors:
        return
    dtype = tensors[0].dtype
    if flat.dtype not in _KINDS or not (dtype == flat.dtype or (dtype, flat.dtype) == _NARROWED):
        raise ValueError(f"{dtype} tensors do not travel in a {flat.dtype} buffer")
    for tensor, count in zip(tensors, layout.elements, strict=True):
        if tensor.numel() != count or tensor.dtype != dtype or tensor.device != flat.device:
            raise ValueError(
                f"a tensor of {tensor.numel()} {tensor.dtype} elements on {tensor.device} is no slice of {count} "
                f"{dtype} elements on {flat.device}"
            )
        if not (tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor)):
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not dense")


@functools.cache
def _warn(reason: str) -> None:
    """Warn once per process."""
    warnings.warn(f"xbench uses torch operations in place of its CUDA kernels: {reason}", stacklevel=2)


def _launched(name: str, tensors: Sequence[Tensor], flat: Tensor, layout: Layout, scale: float) -> bool:
    """Check the tensors, and launch the kernel 'pack' or 'unpack'; False if the twin is to be used."""
    _check(tensors, flat, layout)
    if not flat.is_cuda:
        return False
    library = build.for_gpu(flat.device)
    if isinstance(library, KernelError):
        _warn(str(library))
        return False
    if tensors:
        elements, offsets = layout.arrays
        addresses = (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
        kinds = _KINDS[tensors[0].dtype], _KINDS[flat.dtype]
        stream = torch.cuda.current_stream(flat.device).cuda_stream
        launch = getattr(library, f"xbench_{name}")
        with torch.cuda.device(flat.device):
            code = launch(addresses, elements, offsets, len(tensors), flat.data_ptr(), *kinds, scale, stream)
        build.check(library, code, f"{name} of {len(tensors)} gradients")
    return True
