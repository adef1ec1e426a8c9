"""A build of Horovod: its downloads, changes of its sources, where wheels are kept, and what is said if it fails."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

from xbench.errors import RunError, UsageError
from xbench.horovod import VERSION, build
from xbench.horovod.build import Target, cache_folder, last_error, patch

PINNED = re.findall(
    r"^(\S+)==(\S+) (\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", build.PINNED.read_text(), re.M
)
TORCH_PART = "elseif (Pytorch_CUDA AND NOT HAVE_CUDA)\n    add_cuda()\nendif()\nset(CMAKE_CXX_STANDARD 14)\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    (tmp_path / "horovod" / "common").mkdir()
    (tmp_path / "horovod" / "common" / "parameter_manager.cc").write_text(f"{{\n{build.REINITIALISE[0]}}}\n")
    (tmp_path / "CMakeLists.txt").write_text("set(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n")
    (tmp_path / "horovod" / "torch" / "CMakeLists.txt").write_text(TORCH_PART)
    return tmp_path


def test_a_standard_symbols_and_a_second_initialisation_are_changed(source: Path) -> None:
    patch(source, cuda=True)
    manager = (source / "horovod" / "common" / "parameter_manager.cc").read_text()
    assert manager == f"{{\n{build.REINITIALISE[1]}}}\n"
    assert (source / "CMakeLists.txt").read_text() == (
        f"set(CMAKE_CXX_STANDARD 20)\n{build.NO_SYMBOLS}\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n"
    )
    assert (source / "horovod" / "torch" / "CMakeLists.txt").read_text() == TORCH_PART.replace("14", "20")


def test_without_nvcc_a_torch_of_cuda_brings_none_in(source: Path) -> None:
    patch(source, cuda=False)
    assert (source / "horovod" / "torch" / "CMakeLists.txt").read_text() == "endif()\nset(CMAKE_CXX_STANDARD 20)\n"


def test_other_sources_are_refused(source: Path) -> None:
    (source / "horovod" / "common" / "parameter_manager.cc").write_text("")
    with pytest.raises(RunError, match=r"parameter_manager\.cc is not the one"):
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


def sdist(place: Path, members: dict[str, str]) -> Path:
    """A tar.gz of files by name; one whose text begins with '->' is a link."""
    with tarfile.open(place, "w:gz") as packed:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            if text.startswith("->"):
                info.type, info.linkname = tarfile.SYMTYPE, text[2:]
            info.size = 0 if text.startswith("->") else len(text)
            packed.addfile(info, io.BytesIO(text.encode()))
    return place


def test_everything_that_pip_gets_has_a_version_and_hashes() -> None:
    versions = {name: version for name, version, _ in PINNED}
    assert set(versions) == {*build.NEEDED, "cmake", "horovod"}
    assert versions["horovod"] == VERSION
    text = build.PINNED.read_text()
    assert sum(hashes.count("--hash=") for _, _, hashes in PINNED) == text.count("--hash=sha256:")


def test_only_the_packages_that_are_asked_for_are_written_down(tmp_path: Path) -> None:
    words = build.pinned(["cffi", "packaging"], tmp_path)
    assert words == ["--require-hashes", "--requirement", str(tmp_path / "pinned.txt")]
    text = (tmp_path / "pinned.txt").read_text()
    assert re.findall(r"^[a-z]\S*", text, re.M) == [f"{n}=={v}" for n, v, _ in PINNED if n in ("cffi", "packaging")]


def test_a_source_distribution_of_another_hash_is_refused_before_its_setup_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, ran = tmp_path / "links", tmp_path / "ran"
    links.mkdir()
    root = f"horovod-{VERSION}"
    members = {
        f"{root}/setup.py": f"open({str(ran)!r}, 'w')",
        f"{root}/PKG-INFO": f"Name: horovod\nVersion: {VERSION}\n",
    }
    sdist(links / f"{root}.tar.gz", members)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with pytest.raises(RunError, match=r"could not be downloaded: .*DO NOT MATCH THE HASHES"):
        build.fetch(tmp_path, tmp_path / "log", dict(os.environ))
    assert not ran.exists()


@pytest.mark.parametrize("filters", [True, False])
@pytest.mark.parametrize(
    "members", [{"../out": "x"}, {"a/../../out": "x"}, {"link": "->/etc", "link/out": "x"}, {"link": "->../out"}]
)
def test_a_member_that_would_lie_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, str], filters: bool
) -> None:
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python's tarfile has no filters")
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(RunError, match="is not unpacked"):
        build.unpack(sdist(tmp_path / "a.tar.gz", members), inside)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("filters", [True, False])
def test_files_and_folders_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: bool) -> None:
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    build.unpack(sdist(tmp_path / "a.tar.gz", {"a/b/c": "text", "a/d": "more"}), tmp_path)
    assert (tmp_path / "a" / "b" / "c").read_text() == "text"


def test_a_link_that_waits_in_the_temporary_folder_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"xbench-horovod-{os.getuid()}.log").symlink_to(victim)

    def fails(what: object, kept: Path, log: Path) -> Path:
        log.write_text("said")
        raise RunError("no", hint=f"see {log}")

    monkeypatch.setattr(build, "build", fails)
    with pytest.raises(RunError) as caught:
        build.run(rebuild=True)
    assert victim.read_text() == "mine"
    assert caught.value.hint is not None
    log = Path(caught.value.hint.removeprefix("see "))
    assert (log.parent, log.read_text(), log.stat().st_mode & 0o777) == (tmp_path, "said", 0o600)
