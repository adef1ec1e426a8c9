"""Launches of compiled kernels through CUDA's driver, which every machine with a GPU has.

Machine code is loaded as a module of the device's primary context, the one that torch uses. Each launch makes that
context current for its own duration, because a thread that has used no GPU yet has none.
"""

from __future__ import annotations

import ctypes
import functools
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
