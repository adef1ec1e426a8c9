"""Build, cache and loading of the CUDA kernels, on first use.

The sources do not use torch: they export plain functions of addresses, sizes and a stream. So one call of nvcc makes
one shared library in seconds, and ctypes loads it into any Python with any torch. It is kept in $XBENCH_CACHE, else
$XDG_CACHE_HOME/xbench, else ~/.cache/xbench. Its name contains a hash of the sources, the flags and nvcc's version, so
an outdated library is never loaded. Ranks that start at once build once: the others wait for a lock. A build is written
to a temporary file and moved to its path.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xbench.errors import KernelError
from xbench.scratch import part_file

if TYPE_CHECKING:
    import torch

SUPPORTED = ("80", "90", "100")
"""Compute capabilities that the sources must compile for: A100, H100 and H200, B200."""

FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")
BUILD_S = 600.0
_PACKAGE = Path(__file__).parent.parent

_address = ctypes.c_void_p
_FUNCTIONS = {
    name: [_address, _address, _address, ctypes.c_int, _address, ctypes.c_int, ctypes.c_int, ctypes.c_double, _address]
    for name in ("xbench_pack", "xbench_unpack")
} | {
    "xbench_ready": [],
    "xbench_wait": [ctypes.c_uint64, ctypes.c_int, _address, ctypes.c_uint64, _address],
    "xbench_timer_step": [_address, _address],
    "xbench_error_text": [ctypes.c_int],
}
"""Functions of the library. All return a cudaError_t, except for the text of an error."""


def sources() -> list[Path]:
    """The .cu files: inside an installed package, next to it in a checkout. Raises KernelError without any."""
    for folder in (_PACKAGE / "cuda", _PACKAGE.parent / "cuda"):
        files = sorted(folder.glob("*.cu"))
        if files:
            return files
    raise KernelError("the CUDA sources are not installed beside xbench", hint="install it again, or use a checkout")


def find_nvcc() -> str | None:
    """Path of nvcc: of $CUDA_HOME or $CUDA_PATH, on the PATH, or of /usr/local/cuda; None without one."""
    homes = [home for variable in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(variable))]
    for candidate in [*(f"{home}/bin/nvcc" for home in homes), "nvcc", "/usr/local/cuda/bin/nvcc"]:
        path = shutil.which(candidate)
        if path is not None:
            return path
    return None


@functools.cache
def nvcc_version(nvcc: str) -> str:
    """Release from `nvcc --version`, on one line. Raises KernelError if nvcc cannot be run."""
    try:
        result = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{nvcc} cannot be run: {error}") from None
    lines = result.stdout.split("\n")
    release = next((line for line in lines if "release" in line), "")
    if result.returncode != 0 or not release:
        raise KernelError(f"{nvcc} does not tell its version", detail=result.stdout + result.stderr)
    return release.strip()


def cache_folder() -> Path:
    """Folder of the libraries: see the module's docstring. Raises KernelError for a user without a home."""
    folder = os.environ.get("XBENCH_CACHE")
    if folder:
        return Path(folder)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "xbench"
    except RuntimeError:
        raise KernelError("there is no home folder to keep the CUDA kernels in", hint="set XBENCH_CACHE") from None


def built(architectures: Sequence[str]) -> Path:
    """The library for these compute capabilities ('90' is 9.0), built if it is not in the cache yet.

    Raises KernelError in one sentence: no nvcc, no sources, no writable cache, or nvcc's first error.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise KernelError("there is no nvcc to build the CUDA kernels with", hint="set CUDA_HOME to a CUDA toolkit")
    files = sources()
    flags = [*FLAGS, *(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures)]
    digest = hashlib.sha256("\n".join([nvcc_version(nvcc), *flags]).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    folder = cache_folder()
    path = folder / f"kernels-{digest.hexdigest()[:16]}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                _compile([nvcc, *flags, *map(str, files)], path)
    except OSError as error:
        raise KernelError(f"the CUDA kernels cannot be kept in {folder}: {error.strerror or error}",
                          hint="set XBENCH_CACHE to a folder that can be written to") from None  # fmt: skip
    return path


def for_gpu(device: torch.device) -> ctypes.CDLL | KernelError:
    """The library for a GPU, built and tried once per process, or the error that prevents it."""
    import torch

    return _for_gpu(device.index if device.index is not None else torch.cuda.current_device())


@functools.cache
def _for_gpu(index: int) -> ctypes.CDLL | KernelError:
    import torch

    try:
        if torch.version.cuda is None:
            raise KernelError("this torch was not built for CUDA")
        major, minor = torch.cuda.get_device_capability(index)
        library = declared(built([f"{major}{minor}"]))
        with torch.cuda.device(index):
            check(library, library.xbench_ready(), "the CUDA kernels do not run here")
    except KernelError as error:
        return error
    return library


def declared(path: Path) -> ctypes.CDLL:
    """Load a library and declare its functions. Raises KernelError for another library."""
    try:
        library = ctypes.CDLL(str(path))
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_char_p if name == "xbench_error_text" else ctypes.c_int
    except (OSError, AttributeError) as error:
        raise KernelError(f"the built CUDA kernels cannot be loaded: {error}", hint=f"remove {path}") from None
    return library


def check(library: ctypes.CDLL, code: int, what: str) -> None:
    """Raise KernelError for a call that did not return cudaSuccess."""
    if code != 0:
        text = library.xbench_error_text(code)
        raise KernelError(f"{what}: {text.decode() if text else 'CUDA error'} (CUDA error {code})")


def _compile(command: Sequence[str], path: Path) -> None:
    """Run nvcc into a temporary file and move that to `path`. Raises KernelError and OSError."""
    handle, temporary = part_file(path)
    os.close(handle)
    try:
        try:
            result = subprocess.run([*command, "-o", temporary], capture_output=True, text=True, timeout=BUILD_S)
        except subprocess.TimeoutExpired:
            raise KernelError(f"nvcc did not build the CUDA kernels within {BUILD_S:.0f} s") from None
        if result.returncode != 0:
            raise KernelError(f"nvcc cannot build the CUDA kernels: {_first_error(result)}", detail=result.stderr)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _first_error(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (result.stderr + result.stdout).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else f"exit {result.returncode}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. A file system without locks has none, and the move is atomic all the same."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield
            return
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
