"""What is changed in Horovod's sources, where wheels are kept, and what is said when a build cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from xbench.errors import RunError, UsageError
from xbench.horovod import build
from xbench.horovod.build import Target, cache_folder, last_error, patch

TORCH_PART = "elseif (Pytorch_CUDA AND NOT HAVE_CUDA)\n    add_cuda()\nendif()\nset(CMAKE_CXX_STANDARD 14)\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    (tmp_path / "horovod" / "common").mkdir()
    (tmp_path / "horovod" / "common" / "parameter_manager.cc").write_text(f"{{\n{build.REINITIALISE[0]}}}\n")
    (tmp_path / "CMakeLists.txt").write_text("set(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n")
    (tmp_path / "horovod" / "torch" / "CMakeLists.txt").write_text(TORCH_PART)
    return tmp_path


def test_three_lines_are_changed(source: Path) -> None:
    patch(source, cuda=True)
    manager = (source / "horovod" / "common" / "parameter_manager.cc").read_text()
    assert manager == f"{{\n{build.REINITIALISE[1]}}}\n"
    assert (source / "CMakeLists.txt").read_text() == (
        "set(CMAKE_CXX_STANDARD 20)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n"
    )
    assert (source / "horovod" / "torch" / "CMakeLists.txt").read_text() == TORCH_PART.replace("14", "20")


def test_without_nvcc_a_torch_of_cuda_brings_none_in(source: Path) -> None:
    patch(source, cuda=False)
    assert (source / "horovod" / "torch" / "CMakeLists.txt").read_text() == "endif()\nset(CMAKE_CXX_STANDARD 20)\n"


def test_other_sources_are_refused(source: Path) -> None:
    with pytest.raises(RunError, match=r"parameter_manager\.cc is not the one"):
        patch_twice(source)


def patch_twice(source: Path) -> None:
    patch(source, cuda=True)
    (source / "horovod" / "common" / "parameter_manager.cc").write_text("")
    patch(source, cuda=True)


def test_a_newer_standard_is_refused(source: Path) -> None:
    (source / "CMakeLists.txt").write_text("set(CMAKE_CXX_STANDARD 17)\n")
    with pytest.raises(RunError, match="nothing in it asks for C\\+\\+14"):
        patch(source, cuda=True)


def test_the_setup_reads_only_what_we_say() -> None:
    environ = {"HOROVOD_WITH_MPI": "1", "PATH": "/bin", "MAKEFLAGS": "-j3"}
    env = Target("2.15.0", Path("/cuda")).environment(environ)
    assert "HOROVOD_WITH_MPI" not in env
    assert env["HOROVOD_WITHOUT_MPI"] == env["HOROVOD_WITH_GLOO"] == env["HOROVOD_WITH_PYTORCH"] == "1"
    assert (env["HOROVOD_CUDA_HOME"], env["CUDA_HOME"], env["MAKEFLAGS"]) == ("/cuda", "/cuda", "-j3")
    assert "HOROVOD_GPU_OPERATIONS" not in env
    assert Target("2.15.0", Path("/cuda"), Path("/usr")).environment({})["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert "CUDA_HOME" not in Target("2.15.0").environment({})


def test_a_wheel_is_kept_by_what_it_depends_on() -> None:
    folders = {Target("2.15.0").folder, Target("2.11.0").folder, Target("2.15.0", Path("/cuda")).folder}
    assert len(folders) == 3
    assert cache_folder({"XBENCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a/horovod")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/xbench/horovod")
    assert cache_folder({}) == Path.home() / ".cache" / "xbench" / "horovod"


def test_a_kept_wheel_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XBENCH_CACHE", str(tmp_path))
    wheel = tmp_path / "horovod" / build.target().folder / "horovod-0.28.1+xbench-cp311-cp311-linux_x86_64.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    monkeypatch.setattr(build, "build", lambda *_: pytest.fail("built"))
    assert build.run(wheel_only=True, log=tmp_path / "log") == wheel


def test_no_compiler_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="there is no g\\+\\+ to build it with"):
        build.run(log=tmp_path / "log")
    assert build.main(["--wheel-only", "--log", str(tmp_path / "log")]) == UsageError.exit_code
    assert capsys.readouterr().err == (
        "error: Horovod is C++, and there is no g++ to build it with (apt-get install g++ make)\n"
    )


def test_no_registry_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    words = ["download", "--no-index", "--no-deps", "--dest", str(tmp_path), "horovod==0.28.1"]
    with pytest.raises(RunError, match=r"no Horovod: .*horovod==0\.28\.1") as caught:
        build.pip(words, tmp_path / "log", what="no Horovod")
    assert caught.value.hint == f"see {tmp_path / 'log'}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nx.h:4: error: #error C++20\nx.h:9: error: other\nERROR: Failed", "x.h:4: error: #error C++20"),
        ("CMake Error at CMakeLists.txt:3\nERROR: Failed building wheel", "CMake Error at CMakeLists.txt:3"),
        ("WARNING: x\nERROR: No matching distribution found for horovod", "No matching distribution found for horovod"),
        ("this and\nthat", "that"),
        ("", "it said nothing"),
    ],
)  # fmt: skip
def test_the_first_error_says_most(text: str, line: str) -> None:
    assert last_error(text) == line
