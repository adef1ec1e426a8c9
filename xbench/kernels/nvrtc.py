"""NVRTC, NVIDIA's compiler as a library, which torch's wheels for CUDA bring along.

It compiles device code alone, has no headers, and needs no C++ compiler. See NVIDIA's "NVRTC" guide, section 3.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from xbench.errors import KernelError

_SUCCESS, _COMPILATION = 0, 6  # of nvrtcResult


@functools.cache
def find_nvrtc() -> ctypes.CDLL | None:
    """The NVRTC of torch's own CUDA version: of NVIDIA's wheels, else on the loader's path; None without one."""
    import torch

    if torch.version.cuda is None:
        return None
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    wheels = importlib.util.find_spec("nvidia")
    folders = (wheels.submodule_search_locations or []) if wheels is not None else []
    for candidate in [*(str(path) for folder in folders for path in sorted(Path(folder).glob(f"*/lib/{name}"))), name]:
        with suppress(OSError):
            return ctypes.CDLL(candidate)
    return None


def compiled(library: ctypes.CDLL, source: Path, options: Sequence[str]) -> bytes:
    """Machine code of a source. Raises KernelError with the first error, and OSError for an unreadable source."""
    program = ctypes.c_void_p()
    text, name = source.read_bytes(), source.name.encode()
    _check(library, library.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None))
    try:
        words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        code = library.nvrtcCompileProgram(program, len(options), words)
        if code != _SUCCESS:
            log = _read(library, program, "ProgramLog").decode(errors="replace")
            raise KernelError(f"NVRTC cannot build the CUDA kernels: {_reason(library, code, log)}", detail=log)
        return _read(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """Bytes that nvrtcGet`what` gives."""
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    found = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, found))
    return found.raw


def _reason(library: ctypes.CDLL, code: int, log: str) -> str:
    """The first error of a compilation's log, or the error that a code stands for."""
    errors = [line.strip() for line in log.splitlines() if "error" in line.lower()]
    return errors[0] if code == _COMPILATION and errors else _text(library, code)


def _check(library: ctypes.CDLL, code: int) -> None:
    if code != _SUCCESS:
        raise KernelError(f"NVRTC cannot build the CUDA kernels: {_text(library, code)}")


def _text(library: ctypes.CDLL, code: int) -> str:
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    text: bytes | None = library.nvrtcGetErrorString(code)
    return text.decode() if text else f"NVRTC error {code}"
