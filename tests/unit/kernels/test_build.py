"""Building the CUDA sources: where nvcc is found, what is kept and under which name, and sentences for what fails."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xbench.errors import KernelError
from xbench.kernels import build

ROOT = Path(__file__).parents[3]
NVCC = pytest.mark.skipif(build.find_nvcc() is None, reason="there is no nvcc here")


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


SOURCES = [ROOT / "cuda" / name for name in ("errors.cu", "pack.cu", "wait.cu")]


def test_the_sources_are_those_of_the_checkout() -> None:
    assert build.sources() == SOURCES


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


def test_without_nvcc_the_reason_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    with pytest.raises(KernelError, match="there is no nvcc") as caught:
        build.built(["90"])
    assert caught.value.hint == "set CUDA_HOME to a CUDA toolkit"
    assert not cache.exists()


def test_it_is_built_once_for_one_machine(cache: Path, fake_nvcc: Path) -> None:
    first = build.built(["90"])
    assert first.parent == cache
    assert first.read_text() == "library\n"
    assert build.built(["90"]) == first
    (call,) = fake_nvcc.read_text().splitlines()
    assert "-gencode=arch=compute_90,code=sm_90" in call
    assert "-shared" in call
    assert call.split()[-5:-2] == list(map(str, SOURCES))
    assert sorted(file.suffix for file in cache.iterdir()) == [".lock", ".so"]


def test_another_machine_or_toolkit_or_source_is_another_library(
    cache: Path, fake_nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [build.built(["90"]), build.built(["80", "90"])]
    monkeypatch.setenv("FAKE_RELEASE", "12.8")
    build.nvcc_version.cache_clear()
    found.append(build.built(["90"]))
    other = tmp_path / "other.cu"
    other.write_text("// nothing\n")
    monkeypatch.setattr(build, "sources", lambda: [other])
    found.append(build.built(["90"]))
    assert len(set(found)) == 4


def test_ranks_that_start_at_once_build_once(cache: Path, fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.2")
    found: list[Path] = []
    ranks = [threading.Thread(target=lambda: found.append(build.built(["90"]))) for _ in range(4)]
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
        build.built(["90"])
    assert [file.suffix for file in cache.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XBENCH_CACHE", str(file / "cache"))
    with pytest.raises(KernelError, match=r"cannot be kept in .*: Not a directory") as caught:
        build.built(["90"])
    assert caught.value.hint == "set XBENCH_CACHE to a folder that can be written to"


def test_a_library_that_is_not_ours_is_refused(cache: Path, fake_nvcc: Path) -> None:
    with pytest.raises(KernelError, match="the built CUDA kernels cannot be loaded"):
        build.declared(build.built(["90"]))


def machine_codes(library: Path) -> set[int]:
    """The compute capabilities that a library holds machine code for, as the headers of its fat binaries say."""
    data = library.read_bytes()
    found: set[int] = set()
    at = data.find(struct.pack("<I", 0xBA55ED50))
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        entry = at + header
        while entry < at + header + size:
            kind, length, payload = struct.unpack_from("<HxxIQ", data, entry)
            if kind == 2:  # machine code; 1 is PTX
                found.add(struct.unpack_from("<I", data, entry + 28)[0])
            entry += length + payload
        at = data.find(struct.pack("<I", 0xBA55ED50), entry)
    return found


@NVCC
def test_the_kernels_compile_for_every_architecture(cache: Path, thorough: bool) -> None:
    """Without a GPU: one library with machine code for each, which exports what Python calls."""
    assert set(build.SUPPORTED) == {"80", "90", "100"}
    architectures = build.SUPPORTED if thorough else build.SUPPORTED[:1]
    path = build.built(architectures)
    assert machine_codes(path) == {int(architecture) for architecture in architectures}
    library = build.declared(path)
    assert library.xbench_error_text(1) == b"invalid argument"
    with pytest.raises(KernelError, match=r"trying it: invalid argument \(CUDA error 1\)"):
        build.check(library, 1, "trying it")


@NVCC
def test_bulk_is_moved_16_bytes_at_a_time(tmp_path: Path) -> None:
    nvcc = build.find_nvcc() or ""
    source = next(file for file in build.sources() if file.name == "pack.cu")
    place = tmp_path / "pack.ptx"
    subprocess.run([nvcc, "-O3", "-std=c++17", "-ptx", "-arch=compute_80", str(source), "-o", str(place)], check=True)
    entries = place.read_text().split(".entry ")[1:]
    assert len(entries) == 20  # five pairs of types, in and out, small and large table
    for entry in entries:
        assert re.search(r"ld\.global\.v(4\.[fbu]32|2\.f64)", entry)
        assert re.search(r"st\.global\.v(4\.[fbu]32|2\.f64)", entry)


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
    assert {"xbench/cuda/pack.cu", "xbench/cuda/wait.cu", "xbench/cuda/errors.cu"} <= names
    assert {"xbench/py.typed", "xbench/kernels/pack.py", "xbench/planning/plans.py"} <= names
