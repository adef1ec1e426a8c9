"""CUDA kernels by ctypes: built by NVRTC, launched through CUDA's driver.

NVRTC is NVIDIA's compiler as a library, which torch's wheels for CUDA bring along. It compiles device code alone, has
no headers, and needs no C++ compiler. See NVIDIA's "NVRTC" guide, section 3. Every machine with a GPU has the driver.

Machine code is loaded as a module of the device's primary context, the one that torch uses. Each launch makes that
context current for its own duration, because a thread that has used no GPU yet has none.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from xbench.errors import KernelError

_handle, _int, _unsigned = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint
_FUNCTIONS: dict[str, list[Any]] = {
    "cuInit": [_unsigned],
    "cuDeviceGet": [ctypes.POINTER(_int), _int],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(_handle), _int],
    "cuCtxPushCurrent_v2": [_handle],
    "cuCtxPopCurrent_v2": [ctypes.POINTER(_handle)],
    "cuModuleLoadData": [ctypes.POINTER(_handle), ctypes.c_char_p],
    "cuModuleGetFunction": [ctypes.POINTER(_handle), _handle, ctypes.c_char_p],
    "cuLaunchKernel": [_handle, *[_unsigned] * 7, _handle, ctypes.POINTER(_handle), ctypes.POINTER(_handle)],
    "cuGetErrorString": [_int, ctypes.POINTER(ctypes.c_char_p)],
}
"""Functions of the driver and their arguments. All return a CUresult."""


_SUCCESS, _COMPILATION = 0, 6  # of nvrtcResult


class Kernels:
    """Kernels of one module on one GPU. Raises KernelError if the GPU or its driver cannot run them."""

    def __init__(self, code: bytes, device_index: int) -> None:
        self._driver = driver()
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._context, self._module, device = _handle(), _handle(), _int()
        self._check(self._driver.cuInit(0), "CUDA's driver does not start")
        self._check(self._driver.cuDeviceGet(ctypes.byref(device), device_index), f"there is no GPU {device_index}")
        retained = self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device)
        self._check(retained, f"GPU {device_index} cannot be used")
        with self:
            loaded = self._driver.cuModuleLoadData(ctypes.byref(self._module), code)
        self._check(loaded, "the CUDA kernels do not run here")

    def load(self, name: str) -> ctypes.c_void_p:
        """A kernel's handle. Raises KernelError if the driver does not load it."""
        if name not in self._functions:
            found = _handle()
            with self:
                code = self._driver.cuModuleGetFunction(ctypes.byref(found), self._module, name.encode())
            self._check(code, f"the CUDA kernel {name} does not run here")
            self._functions[name] = found
        return self._functions[name]

    def launch(self, name: str, blocks: int, threads: int, stream: int, *arguments: Any) -> None:
        """Queue a kernel of `blocks` × `threads` threads on a stream. `arguments`: ctypes objects, in its order.

        Raises KernelError for a failed launch.
        """
        kernel = self.load(name)
        addresses = (_handle * len(arguments))(*map(ctypes.addressof, arguments))
        with self:
            code = self._driver.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, None)
        self._check(code, f"the CUDA kernel {name} of {blocks} blocks")

    def __enter__(self) -> None:
        self._check(self._driver.cuCtxPushCurrent_v2(self._context), "the GPU's context")

    def __exit__(self, *_: object) -> None:
        self._driver.cuCtxPopCurrent_v2(ctypes.byref(_handle()))

    def _check(self, code: int, what: str) -> None:
        if code != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            said = text.value.decode() if text.value else "unknown"
            raise KernelError(f"{what}: {said} (CUDA error {code})")


@functools.cache
def driver() -> Any:
    """CUDA's driver with its functions declared. Raises KernelError without one."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _FUNCTIONS.items():
            getattr(library, name).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise KernelError(f"CUDA's driver cannot be loaded: {error}") from None
    return library


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
    return errors[0] if code == _COMPILATION and errors else _nvrtc_error(library, code)


def _check(library: ctypes.CDLL, code: int) -> None:
    if code != _SUCCESS:
        raise KernelError(f"NVRTC cannot build the CUDA kernels: {_nvrtc_error(library, code)}")


def _nvrtc_error(library: ctypes.CDLL, code: int) -> str:
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    text: bytes | None = library.nvrtcGetErrorString(code)
    return text.decode() if text else f"NVRTC error {code}"
