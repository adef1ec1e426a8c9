"""Downloads of pip for Horovod are pinned by hash, unpacked below its folder, and logged in a new file."""

from __future__ import annotations

import io
import os
import re
import tarfile
import tempfile
from pathlib import Path

import pytest

from xbench.errors import RunError
from xbench.horovod import build
from xbench.horovod.available import VERSION

PINNED = re.findall(
    r"^(\S+)==(\S+) (\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", build.PINNED.read_text(), re.M
)


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
