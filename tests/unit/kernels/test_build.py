"""Building the CUDA sources: where nvcc is found, what is kept and under which name, and sentences for what fails."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from xbench.errors import KernelError
from xbench.kernels import build, driver, nvrtc

ROOT = Path(__file__).parents[3]
KERNELS = [
    f"{way}_{pair}_{size}"
    for way in ("pack", "unpack")
    for pair in ("float32_float32", "float32_bfloat16", "bfloat16_bfloat16", "float16_float16", "float64_float64")
    for size in ("FEW", "MANY")
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XBENCH_CACHE", str(folder))
    return folder


@pytest.fixture
def fake_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvcc that notes how it is called and, after FAKE_SECONDS, writes its last argument.

    FAKE_FAIL makes it fail.
    """
    home = tmp_path / "toolkit"
    script = home / "bin" / "nvcc"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "Cuda compilation tools, release $FAKE_RELEASE, V1"; exit 0; fi\n'
        f'echo "$@" >> {tmp_path}/calls\n'
        'if [ -n "$FAKE_FAIL" ]; then echo "warning: mind this" >&2; '
        'echo "pack.cu(3): error: expected a ;" >&2; echo "2 errors" >&2; exit 2; fi\n'
        "sleep ${FAKE_SECONDS:-0}\n"
        'for last; do :; done; echo library > "$last"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("FAKE_RELEASE", "13.0")
    build.nvcc_version.cache_clear()
    return tmp_path / "calls"


def nvcc() -> build.Compiler:
    """The stand-in, which comes before NVRTC."""
    found = build.compilers()[0]
    assert found.name == "nvcc"
    return found


def test_the_sources_are_those_of_the_checkout() -> None:
    assert build.source_of("pack") == ROOT / "cuda" / "pack.cu"
    with pytest.raises(KernelError, match="the CUDA sources are not installed beside xbench"):
        build.source_of("unknown")


def test_where_things_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XBENCH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for variable, value, folder in (
        ("HOME", "/somebody", "/somebody/.cache/xbench"),
        ("XDG_CACHE_HOME", "/else", "/else/xbench"),
        ("XBENCH_CACHE", "/own", "/own"),
    ):
        monkeypatch.setenv(variable, value)
        assert build.cache_folder() == Path(folder)


def test_without_a_compiler_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda: None)
    with pytest.raises(KernelError, match="there is no nvcc and no NVRTC") as caught:
        build.compilers()
    assert "nvidia-cuda-nvrtc" in str(caught.value.hint)


def test_it_is_built_once_for_one_machine(cache: Path, fake_nvcc: Path) -> None:
    first = build.built("pack", "90", nvcc())
    assert first.parent == cache
    assert first.read_text() == "library\n"
    assert build.built("pack", "90", nvcc()) == first
    (call,) = fake_nvcc.read_text().splitlines()
    assert "-arch=sm_90" in call
    assert "--cubin" in call
    assert call.split()[-3] == str(ROOT / "cuda" / "pack.cu")
    assert sorted(file.suffix for file in cache.iterdir()) == [".cubin", ".lock"]


def test_another_machine_or_toolkit_or_source_is_another_file(
    cache: Path, fake_nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [build.built("pack", "90", nvcc()), build.built("pack", "80", nvcc()), build.built("wait", "90", nvcc())]
    found.append(build.built("pack", "90", replace(nvcc(), name="other")))
    monkeypatch.setenv("FAKE_RELEASE", "12.8")
    build.nvcc_version.cache_clear()
    found.append(build.built("pack", "90", nvcc()))
    other = tmp_path / "other.cu"
    other.write_text("// nothing\n")
    monkeypatch.setattr(build, "source_of", lambda name: other)
    found.append(build.built("pack", "90", nvcc()))
    assert len(set(found)) == 6


def test_ranks_that_start_at_once_build_once(cache: Path, fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.2")
    found: list[Path] = []
    ranks = [threading.Thread(target=lambda: found.append(build.built("pack", "90", nvcc()))) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert (len(found), len(set(found))) == (4, 1)
    assert len(fake_nvcc.read_text().splitlines()) == 1


def test_a_failed_build_is_nvcc_s_first_error_and_leaves_nothing(
    cache: Path, fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "1")
    with pytest.raises(KernelError, match=r"^nvcc cannot build the CUDA kernels: pack.cu\(3\): error: expected a ;$"):
        build.built("pack", "90", nvcc())
    assert [file.suffix for file in cache.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XBENCH_CACHE", str(file / "cache"))
    with pytest.raises(KernelError, match=r"cannot be kept in .*: Not a directory") as caught:
        build.built("pack", "90", nvcc())
    assert caught.value.hint == "set XBENCH_CACHE to a folder that can be written to"


class Driver:
    """A driver that loads only machine code of `runs`, and notes what it loads and launches."""

    def __init__(self, runs: bytes) -> None:
        self.runs = runs
        self.loaded: list[bytes] = []
        self.launched: list[tuple[object, ...]] = []
        self.contexts = 0  # pushed and not popped

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: 0

    def cuCtxPushCurrent_v2(self, context: object) -> int:
        self.contexts += 1
        return 0

    def cuCtxPopCurrent_v2(self, context: object) -> int:
        self.contexts -= 1
        return 0

    def cuModuleLoadData(self, module: object, code: bytes) -> int:
        self.loaded.append(code)
        return 0 if code == self.runs else 209

    def cuLaunchKernel(self, kernel: object, *rest: Any) -> int:
        *numbers, addresses, extra = rest
        values = [ctypes.cast(address, ctypes.POINTER(ctypes.c_int)).contents.value for address in addresses]
        self.launched.append((*numbers, values, extra))
        return 0 if self.contexts == 1 else 201

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = {209: b"no kernel image", 201: b"invalid context"}[code]
        return 0


@pytest.fixture
def gpu(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    """A GPU whose driver runs some machine code, and compilers of names, each of which writes its name."""

    def given(runs: bytes, *names: str) -> Driver:
        found = Driver(runs)
        monkeypatch.setattr(driver, "driver", lambda: found)
        monkeypatch.setattr(torch.version, "cuda", "13.2")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
        made = [build.Compiler(name, lambda: "1", lambda source, flags, name=name: name.encode()) for name in names]
        monkeypatch.setattr(build, "compilers", lambda: made)
        build._for_gpu.cache_clear()
        return found

    yield given
    build._for_gpu.cache_clear()


def test_the_first_compiler_whose_code_runs_is_taken(gpu: Callable[..., Driver]) -> None:
    found = gpu(b"NVRTC", "nvcc", "NVRTC")
    assert isinstance(build.for_gpu("pack", torch.device("cuda", 0)), driver.Kernels)
    assert found.loaded == [b"nvcc", b"NVRTC"]


def test_where_no_code_runs_the_first_reason_is_said(gpu: Callable[..., Driver]) -> None:
    gpu(b"", "nvcc", "NVRTC")
    said = build.for_gpu("pack", torch.device("cuda", 0))
    assert str(said) == "the CUDA kernels do not run here: no kernel image (CUDA error 209)"


def test_a_launch_passes_on_addresses_of_its_arguments(gpu: Callable[..., Driver]) -> None:
    found = gpu(b"code", "code")
    kernels = build.for_gpu("wait", torch.device("cuda", 0))
    assert isinstance(kernels, driver.Kernels)
    kernels.launch("any", 5, 32, 77, ctypes.c_int(3), ctypes.c_int(4))
    assert found.launched == [(5, 1, 1, 32, 1, 1, 0, 77, [3, 4], None)]
    assert found.contexts == 0


def compiler_of(name: str) -> build.Compiler:
    found = next((each for each in build.compilers() if each.name == name), None) if torch.version.cuda else None
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


@pytest.mark.parametrize("name", ["nvcc", "NVRTC"])
def test_the_kernels_compile_for_every_architecture(name: str, cache: Path, thorough: bool) -> None:
    """Without a GPU: machine code for each, with the kernels that Python launches."""
    compiler = compiler_of(name)
    assert set(build.SUPPORTED) == {"80", "90", "100"}
    for architecture in build.SUPPORTED if thorough or name == "NVRTC" else build.SUPPORTED[:1]:
        for source, kernels in (("pack", KERNELS), ("wait", ["wait_alone", "wait_with_load", "timer_step"])):
            code = build.built(source, architecture, compiler).read_bytes()
            assert code.startswith(b"\x7fELF")
            assert set(re.findall(rb"\0\.text\.(\w+)\0", code.replace(b"\0", b"\0\0"))) == set(map(str.encode, kernels))
            assert f"sm_{architecture}".encode() in code
            assert build.FIRST[source] in kernels


def test_nvrtc_names_its_first_error(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("#warning mind this\n__global__ void wrong() { expected }\n")
    with pytest.raises(
        KernelError, match=r'^NVRTC cannot build the CUDA kernels: wrong.cu\(2\): error: identifier "exp'
    ):
        compiler_of("NVRTC").compile(source, ("-arch=sm_90",))


@pytest.mark.skipif(build.find_nvcc() is None, reason="there is no nvcc here")
def test_the_wider_type_is_moved_16_bytes_at_a_time(tmp_path: Path) -> None:
    """And the narrower one as many elements at a time, so that neighbouring threads leave no gaps."""
    place = tmp_path / "pack.ptx"
    source = str(build.source_of("pack"))
    words = [str(build.find_nvcc()), "-O3", "-std=c++17", "-ptx", "-arch=compute_80", source, "-o", str(place)]
    subprocess.run(words, check=True)
    entries = place.read_text().split(".entry ")[1:]
    assert len(entries) == len(KERNELS)
    wide, half = r"\.global\.v(4\.[fbu]32|2\.f64)", r"\.global\.v(2\.[fbu]32|4\.[bu]16)"
    for entry in entries:
        loads = half if entry.startswith("unpack_float32_bfloat16") else wide
        stores = half if entry.startswith("pack_float32_bfloat16") else wide
        assert re.search("ld" + loads, entry)
        assert re.search("st" + stores, entry)


def test_a_wheel_holds_the_sources(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "xbench", "cuda"):
        (tree / name).symlink_to(ROOT / name)
    asked = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", asked], cwd=tree, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    listed = subprocess.run([sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True).stdout
    names = {line.split()[0] for line in listed.splitlines()}
    assert {"xbench/cuda/pack.cu", "xbench/cuda/wait.cu"} <= names
    assert {"xbench/py.typed", "xbench/kernels/pack.py", "xbench/planning/plans.py"} <= names
