"""Whether CUDA's Multi-Process Service runs, from its socket."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from xbench.host import mps


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # a short path
    return Path()


def runs(directory: Path) -> bool:
    return mps.is_running({mps.VARIABLE: str(directory)})


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_daemon_listens_until_it_ends(directory: Path, kind: socket.SocketKind) -> None:
    assert not runs(directory)
    with socket.socket(socket.AF_UNIX, kind) as daemon:
        daemon.bind("control")
        daemon.listen()
        daemon.setblocking(False)
        assert runs(directory)
        with pytest.raises(BlockingIOError):  # it was not disturbed
            daemon.accept()
    assert (directory / "control").exists()
    assert not runs(directory)


def test_another_file_of_that_name_is_no_daemon(directory: Path) -> None:
    (directory / "control").write_text("")
    assert not runs(directory)


def test_the_directory_is_cuda_s_own_unless_the_environment_names_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "DIRECTORY", ".")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.bind("control")
        daemon.listen()
        assert mps.is_running({})
        assert mps.is_running({mps.VARIABLE: ""})
        assert not mps.is_running({mps.VARIABLE: "elsewhere"})
