"""Sizes, dtypes and numbers from the arguments of a trace's events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "byte": 1, "char": 1, "bool": 1}
_BYTES |= {"float8_e4m3fn": 1, "float8_e5m2": 1, "short": 2, "c10::half": 2, "c10::bfloat16": 2}
_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "c10::half": "float16"}
_DTYPES |= {"bfloat16": "bfloat16", "c10::bfloat16": "bfloat16"}
_DTYPES |= {"c10::complex<float>": "complex64", "c10::complex<double>": "complex128"}


def size_of(args: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return bytes and dtype of a device collective, from the arguments that NCCL's kernels carry since torch 2.1."""
    counts = [integer_of(args.get(key)) for key in ("In msg nelems", "Out msg nelems", "In msg size", "Out msg size")]
    known = [count for count in counts if count is not None and 0 <= count < 2**48]
    dtype = str(args.get("dtype", "")).lower()
    if not known or dtype not in _BYTES:
        return None, None
    return max(known) * _BYTES[dtype], _DTYPES.get(dtype, dtype)


def shaped(args: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return bytes and dtype of a host collective, where shapes were recorded.

    A call does not tell its dtype. Its bytes are those of fp32 then, and its dtype is None.
    """
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list):
        return None, None
    elements = sum(_elements(one) for one in dims)
    dtype = str(types[0]).lower() if isinstance(types, list) and types else ""
    if not 0 < elements < 2**48:
        return None, None
    return elements * _BYTES.get(dtype, 4), _DTYPES.get(dtype, dtype if dtype in _BYTES else None)


def _elements(dims: Any) -> int:
    """Elements of one tensor's dims, or of a list of them."""
    if not isinstance(dims, list) or not dims:
        return 0
    if all(isinstance(size, int) for size in dims):
        return math.prod(dims)
    return sum(_elements(one) for one in dims)


def shape_of(args: Mapping[str, Any]) -> tuple[tuple[int, ...], str] | None:
    """Return shape and dtype of a gradient, where shapes were recorded."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list):
        return None
    if not all(isinstance(size, int) and 0 <= size < 2**40 for size in dims[0]):
        return None
    if is_undefined(args):
        return None
    dtype = (str(types[0]).lower() if isinstance(types, list) and types else "") or "float"
    return tuple(dims[0]), _DTYPES.get(dtype, dtype)


def is_undefined(args: Mapping[str, Any]) -> bool:
    """True for the recorded shape of no tensor: neither dims nor a dtype."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    return isinstance(dims, list) and isinstance(types, list) and dims[:1] == [[]] and types[:1] == [""]


def number_of(value: object) -> float | None:
    """Return a finite number, also from text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < 1e18 else None


def integer_of(value: object) -> int | None:
    """Return a whole number, also from digits in a string; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    number = number_of(value)
    return None if number is None else int(number)
