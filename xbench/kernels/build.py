"""Build, cache and loading of the CUDA kernels, on first use.

The sources hold device code alone, without torch and without headers. So nvcc or NVRTC, which torch's wheels bring
along, compiles one to machine code in seconds, and the driver launches its kernels. Machine code is kept in
$XBENCH_CACHE, else $XDG_CACHE_HOME/xbench, else ~/.cache/xbench. Its name contains a hash of the source, the flags and
the compiler's version, so outdated code is never loaded. Ranks that start at once build once: the others wait for a
lock. What was built is written to a temporary file and moved to its path.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xbench.errors import KernelError
from xbench.kernels import nvrtc
from xbench.kernels.driver import Kernels
from xbench.scratch import Scratch, part_file

if TYPE_CHECKING:
    import torch

SUPPORTED = ("80", "90", "100")
"""Compute capabilities that the sources must compile for: A100, H100 and H200, B200."""

FIRST = {"pack": "pack_float32_float32_MANY", "wait": "wait_alone"}
"""The most demanding kernel of each source: a GPU and a driver that load it load the others."""

FLAGS = ("-std=c++17",)
BUILD_S = 600.0
_PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Compiler:
    """A compiler: `compile(source, flags)` gives machine code. Both functions raise KernelError."""

    name: str
    version: Callable[[], str]
    compile: Callable[[Path, tuple[str, ...]], bytes]


def source_of(name: str) -> Path:
    """A .cu file: inside an installed package, next to it in a checkout. Raises KernelError without it."""
    for folder in (_PACKAGE / "cuda", _PACKAGE.parent / "cuda"):
        path = folder / f"{name}.cu"
        if path.exists():
            return path
    raise KernelError("the CUDA sources are not installed beside xbench", hint="install it again, or use a checkout")


def compilers() -> list[Compiler]:
    """Compilers of this machine: nvcc, then NVRTC. Raises KernelError if there is none."""
    found = []
    nvcc = find_nvcc()
    if nvcc is not None:
        version, compiled = functools.partial(nvcc_version, nvcc), functools.partial(_compiled_by_nvcc, nvcc)
        found.append(Compiler("nvcc", version, compiled))
    library = nvrtc.find_nvrtc()
    if library is not None:
        version, compiled = functools.partial(nvrtc.version, library), functools.partial(nvrtc.compiled, library)
        found.append(Compiler("NVRTC", version, compiled))
    if not found:
        raise KernelError(
            "there is no nvcc and no NVRTC to build the CUDA kernels with",
            hint="set CUDA_HOME to a CUDA toolkit, or install the wheel nvidia-cuda-nvrtc of torch's CUDA version",
        )
    return found


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


def built(name: str, architecture: str, compiler: Compiler) -> Path:
    """Machine code of a source for a compute capability ('90' is 9.0), built if it is not in the cache yet.

    Raises KernelError in one sentence: no source, no writable cache, or the compiler's first error.
    """
    source = source_of(name)
    flags = (*FLAGS, f"-arch=sm_{architecture}")
    digest = hashlib.sha256("\n".join([compiler.name, compiler.version(), *flags]).encode() + source.read_bytes())
    folder = cache_folder()
    path = folder / f"{name}-{digest.hexdigest()[:16]}.cubin"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                _write(path, compiler.compile(source, flags))
    except OSError as error:
        raise KernelError(f"the CUDA kernels cannot be kept in {folder}: {error.strerror or error}",
                          hint="set XBENCH_CACHE to a folder that can be written to") from None  # fmt: skip
    return path


def for_gpu(name: str, device: torch.device) -> Kernels | KernelError:
    """Kernels of a source on a GPU, built and tried once per process, or the error that prevents it."""
    import torch

    return _for_gpu(name, device.index if device.index is not None else torch.cuda.current_device())


@functools.cache
def _for_gpu(name: str, index: int) -> Kernels | KernelError:
    """Kernels from the first compiler whose machine code runs, or the first one's error."""
    import torch

    errors = []
    try:
        if torch.version.cuda is None:
            raise KernelError("this torch was not built for CUDA")
        major, minor = torch.cuda.get_device_capability(index)
        for compiler in compilers():
            try:
                kernels = Kernels(built(name, f"{major}{minor}", compiler).read_bytes(), index)
                kernels.load(FIRST[name])
                return kernels
            except KernelError as error:
                errors.append(error)
    except KernelError as error:
        errors.append(error)
    return errors[0]


def _compiled_by_nvcc(nvcc: str, source: Path, flags: tuple[str, ...]) -> bytes:
    with Scratch("xb-nvcc-") as folder:
        output = Path(folder) / "kernels.cubin"
        command = [nvcc, "-O3", *flags, "--cubin", str(source), "-o", str(output)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
        except subprocess.TimeoutExpired:
            raise KernelError(f"nvcc did not build the CUDA kernels within {BUILD_S:.0f} s") from None
        if result.returncode != 0:
            raise KernelError(f"nvcc cannot build the CUDA kernels: {_first_error(result)}", detail=result.stderr)
        return output.read_bytes()


def _write(path: Path, code: bytes) -> None:
    """Write a temporary file and move it to `path`. Raises OSError."""
    handle, temporary = part_file(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
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
