"""Each namespace has a hosts file in which the machine's name is that host's address."""

from __future__ import annotations

from pathlib import Path

from xbench.fabrics import host_names

MACHINE = "127.0.0.1 localhost\n127.0.1.1 here.example here # ours\n::1 ip6-localhost\n\n# a comment\n127.0.0.1 here\n"


def test_the_machine_s_name_is_this_host_s_address() -> None:
    assert host_names.hosts_file("10.87.0.2", "here", MACHINE) == (
        "127.0.0.1 localhost\n127.0.1.1 here.example\n::1 ip6-localhost\n10.87.0.2 here\n"
    )


def test_a_file_is_made_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "netns"
    assert host_names.give("xb012345-0", "10.87.0.1", folder, tmp_path) == ()
    (folder / "other").mkdir()
    assert (folder / "xb012345-0" / "hosts").read_text().splitlines()[-1].startswith("10.87.0.1 ")
    assert host_names.left(folder) == ["xb012345-0"]
    host_names.take("xb012345-0", folder, tmp_path)
    host_names.take("xb012345-0", folder, tmp_path)
    assert host_names.left(folder) == []
    assert (folder / "other").exists()
    (folder / "other").rmdir()
    host_names.take("xb012345-1", folder, tmp_path)
    assert not folder.exists()


def test_where_etc_cannot_be_written_the_command_mounts_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    prefix = host_names.give("xb012345-0", "10.87.0.1", tmp_path / "file", tmp_path)
    assert prefix[1:] == ("-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(tmp_path / "xb012345-0.hosts"))
    host_names.take("xb012345-0", tmp_path / "file", tmp_path)
    assert not (tmp_path / "xb012345-0.hosts").exists()
