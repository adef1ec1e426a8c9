"""Packing of gradients into a bucket and out of it: one kernel launch on a GPU, torch operations elsewhere.

A bucket is one flat buffer, and a `Layout` gives the offset of each tensor's slice. Elements are in memory order, so a
channels-last tensor stays channels-last in its slice. `pack` writes slice = tensor · scale, `unpack` writes tensor =
slice · scale. fp32 tensors may use a bf16 buffer. The product is rounded to the tensor's own precision (bf16 and fp16:
to fp32), then to the destination's, to nearest even; NaN stays NaN. Kernel (`cuda/pack.cu`) and twin agree bit for bit,
except for the payload of a NaN.

A GPU whose kernels cannot be built uses the twin, and one warning gives the reason.
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
from xbench.kernels.driver import Launcher

WIDE_BYTES = 16
"""Alignment [B] of a slice from which it is read and written this many bytes at a time."""

_SUPPORTED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NARROWED = (torch.float32, torch.bfloat16)

_THREADS = 256
_BLOCK_BYTES = _THREADS * 4 * WIDE_BYTES
"""Bytes of the narrower type that one block moves: THREADS, IN_FLIGHT and WIDE of `cuda/pack.cu`."""


def _table_of(size: int) -> Any:
    """The type Table<size> of `cuda/pack.cu`. Addresses are numbers here."""
    numbers, counts = ctypes.c_longlong * size, ctypes.c_int * (size + 1)
    fields = [("tensor", numbers), ("offset", numbers), ("elements", numbers), ("first_block", counts)]
    return type("Table", (ctypes.Structure,), {"_fields_": [*fields, ("count", ctypes.c_int)]})


_TABLES = {"FEW": (144, _table_of(144)), "MANY": (1160, _table_of(1160))}
"""Tensors that a table holds, and its type, by the end of the kernel's name."""


@dataclass(frozen=True)
class Part:
    """Tensors of one launch, from `first` on. `table` lacks their addresses."""

    first: int
    size: str
    blocks: int
    table: Any


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

    def parts(self, chunk: int) -> list[Part]:
        """Launches for all tensors that have elements, with blocks of `chunk` elements. Computed once."""
        if chunk not in self._parts:
            most = _TABLES["MANY"][0]
            parts = [self._part(first, most, chunk) for first in range(0, len(self.elements), most)]
            self._parts[chunk] = [part for part in parts if part.blocks]
        return self._parts[chunk]

    @functools.cached_property
    def _parts(self) -> dict[int, list[Part]]:
        return {}

    def _part(self, first: int, most: int, chunk: int) -> Part:
        elements = self.elements[first : first + most]
        size = "FEW" if len(elements) <= _TABLES["FEW"][0] else "MANY"
        ends = list(itertools.accumulate((-(-count // chunk) for count in elements), initial=0))
        table = _TABLES[size][1](count=len(elements))
        table.offset[: len(elements)] = self.offsets[first : first + most]
        table.elements[: len(elements)] = elements
        table.first_block[: len(ends)] = ends
        return Part(first, size, ends[-1], table)


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
    kernels = build.for_gpu("pack", device)
    if isinstance(kernels, KernelError):
        return f"gradients are packed by torch operations: {kernels}"
    return "gradients are packed by the CUDA kernel"


def _check(tensors: Sequence[Tensor], flat: Tensor, layout: Layout) -> None:
    if len(tensors) != len(layout.elements):
        raise ValueError(f"{len(tensors)} tensors do not fit a layout of {len(layout.elements)}")
    if flat.dim() != 1 or not flat.is_contiguous() or flat.numel() < layout.length:
        raise ValueError(f"the buffer must be flat and hold {layout.length} elements: it is {tuple(flat.shape)}")
    if not tensors:
        return
    dtype = tensors[0].dtype
    if flat.dtype not in _SUPPORTED or not (dtype == flat.dtype or (dtype, flat.dtype) == _NARROWED):
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
    kernels = build.for_gpu("pack", flat.device)
    if isinstance(kernels, KernelError):
        _warn(str(kernels))
        return False
    launch(kernels, torch.cuda.current_stream(flat.device).cuda_stream, name, tensors, flat, layout, scale)
    return True


def launch(
    kernels: Launcher, stream: int, name: str, tensors: Sequence[Tensor], flat: Tensor, layout: Layout, scale: float
) -> None:
    """Queue 'pack' or 'unpack' of suitable tensors on a stream. Raises KernelError for a failed launch."""
    if not tensors:
        return
    dtype = tensors[0].dtype
    types = "_".join(str(each).removeprefix("torch.") for each in (dtype, flat.dtype))
    number = ctypes.c_double(scale) if dtype == torch.float64 else ctypes.c_float(scale)
    address = ctypes.c_void_p(flat.data_ptr())
    addresses = [tensor.data_ptr() for tensor in tensors]
    for part in layout.parts(_BLOCK_BYTES // min(dtype.itemsize, flat.dtype.itemsize)):
        table = type(part.table).from_buffer_copy(part.table)  # another thread may launch the same layout
        table.tensor[: table.count] = addresses[part.first : part.first + table.count]
        kernels.launch(f"{name}_{types}_{part.size}", part.blocks, _THREADS, stream, table, address, number)
