import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import FabricError
from xbench.fabrics import links, stale
from xbench.interrupts import stop_signals_interrupt

RATES = st.floats(1e6, 100e9)


@pytest.mark.parametrize(
    ("rate_bps", "burst", "queue", "gso"),
    [
        (1e6, 4096, 524288, 3072),
        (100e6, 8750, 524288, 6562),
        (317e6, 27738, 1585000, 20803),
        (1e9, 87381, 5000000, 65535),
        (10e9, 312500, 50000000, 65536),
        (100e9, 3125000, 67108864, 65536),
    ],
)
def test_the_bucket_follows_the_rate(rate_bps, burst, queue, gso):
    assert links.bucket(rate_bps) == (burst, queue, gso)


@given(RATES)
def test_no_packet_is_larger_than_the_bucket_or_the_queue(rate_bps):
    burst, queue, gso = links.bucket(rate_bps)
    assert 2 * 1514 <= gso < burst < queue


def test_shaping_is_one_line_for_tc():
    line = links.shaping("xbeth0", 1e9)
    assert line == "qdisc add dev xbeth0 root tbf rate 1000000000bit burst 87381b limit 5000000b"


def test_names_fit_what_the_kernel_takes():
    for host in (0, 7, "sw"):
        name = links.namespace("3f9a1c", host)
        assert len(name) <= 15
        assert links.NAMESPACE.fullmatch(name)
    for foreign in ("xb", "xb3f9a1c", "xb3f9a1c-", "xbox-1", "xb3f9a1c-0x", "axb3f9a1c-0", "xb3F9A1C-0"):
        assert links.NAMESPACE.fullmatch(foreign) is None


def _switch(*flags):
    return json.dumps([{"ifname": f"xb3f9a1c-{host}", "flags": each} for host, each in enumerate(flags)])


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (_switch(["UP", "LOWER_UP"], ["UP", "LOWER_UP"]), None),
        (_switch(["UP", "LOWER_UP"], ["UP", "NO-CARRIER"]), "the link of host 1 is down"),
        (_switch(["BROADCAST"], ["UP", "LOWER_UP"]), "the link of host 0 is down"),
        (_switch(["UP", "LOWER_UP"]), "the link of host 1 is gone"),
        ("nonsense", "the switch between the hosts (xb3f9a1c-sw) is gone"),
    ],
)
def test_a_fault_names_the_host(monkeypatch, said, fault):
    monkeypatch.setattr(links, "run", lambda argv, text=None: said)
    assert links.link_fault("3f9a1c", 2) == fault


def test_a_failed_command_says_its_own_words(tmp_path, monkeypatch):
    program = tmp_path / "ip"
    program.write_text(
        "#!/bin/sh\necho 'RTNETLINK answers: Operation not permitted' >&2\necho 'Command failed -:1' >&2\nexit 2\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(FabricError, match=r"'ip netns list' failed: RTNETLINK answers: Operation not permitted$"):
        links.list_namespaces()


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(links, "tool", lambda name: None)
    with pytest.raises(FabricError, match="'tc' is not installed") as caught:
        links.run(["tc", "qdisc"])
    assert "iproute2" in caught.value.hint


class Namespaces:
    """A machine with namespaces and processes in them, in place of ip(8)."""

    def __init__(self, monkeypatch, names):
        self.names = list(names)
        monkeypatch.setattr(links, "tool", lambda name: name)
        monkeypatch.setattr(links, "list_namespaces", lambda: sorted(self.names))
        monkeypatch.setattr(links, "namespace_pids", lambda name: [])
        monkeypatch.setattr(links, "remove_namespace", self.names.remove)


def _dead_owner(folder, run_id):
    done = subprocess.Popen([sys.executable, "-S", "-c", ""])
    done.wait()
    (folder / f"{run_id}.json").write_text(json.dumps({"run_id": run_id, "pid": done.pid, "started_ticks": 1}))


def test_clean_removes_what_nobody_owns_and_keeps_what_a_live_run_needs(tmp_path, monkeypatch):
    machine = Namespaces(monkeypatch, ["xbaaaaaa-0", "xbaaaaaa-sw", "xbbbbbbb-0", "xbcccccc-1"])
    stale.claim("aaaaaa", tmp_path)
    _dead_owner(tmp_path, "bbbbbb")
    done = stale.clean(folder=tmp_path)
    assert done.removed == ["xbbbbbbb-0", "xbcccccc-1"]
    assert done.kept == machine.names == ["xbaaaaaa-0", "xbaaaaaa-sw"]
    assert [path.name for path in tmp_path.iterdir()] == ["aaaaaa.json"]


@pytest.mark.parametrize("everything", [False, True])
def test_an_ordinary_user_s_clean_leaves_what_root_made(tmp_path, monkeypatch, everything):
    machine = Namespaces(monkeypatch, ["xbaaaaaa-0", "xbbbbbbb-0"])
    monkeypatch.setattr(links, "hosts_files", lambda: ["xbcccccc-0"])
    monkeypatch.setattr(stale.os, "geteuid", lambda: 1001)
    _dead_owner(tmp_path, "aaaaaa")
    done = stale.clean(everything, tmp_path)
    assert (done.removed, done.killed, done.files) == ([], [], [])
    assert done.left == machine.names == ["xbaaaaaa-0", "xbbbbbbb-0"]


def test_clean_all_removes_live_ones_too(tmp_path, monkeypatch):
    machine = Namespaces(monkeypatch, ["xbaaaaaa-0"])
    stale.claim("aaaaaa", tmp_path)
    assert stale.clean(True, tmp_path).removed == ["xbaaaaaa-0"]
    assert machine.names == []


def test_a_process_id_given_to_somebody_else_is_not_the_owner(tmp_path):
    stale.claim("aaaaaa", tmp_path)
    assert stale.owner_lives("aaaaaa", tmp_path)
    (tmp_path / "aaaaaa.json").write_text(json.dumps({"pid": os.getpid(), "started_ticks": 1}))
    assert not stale.owner_lives("aaaaaa", tmp_path)
    (tmp_path / "aaaaaa.json").write_text("{")
    assert not stale.owner_lives("aaaaaa", tmp_path)
    assert not stale.owner_lives("dddddd", tmp_path)


def test_clean_says_which_hosts_files_of_namespaces_that_are_gone_it_removed(tmp_path, monkeypatch):
    Namespaces(monkeypatch, ["xbaaaaaa-0"])
    hosts = tmp_path / "netns"
    for name in ("xbaaaaaa-0", "xbbbbbbb-1", "mine"):
        (hosts / name).mkdir(parents=True)
    monkeypatch.setattr(links, "hosts_files", lambda: ["xbaaaaaa-0", "xbbbbbbb-1"])
    monkeypatch.setattr(links, "remove_hosts_file", lambda name: (hosts / name).rmdir())
    stale.claim("aaaaaa", tmp_path)
    assert [path.name for path in stale.clean(folder=tmp_path).files] == ["xbbbbbbb-1"]
    assert sorted(path.name for path in hosts.iterdir()) == ["mine", "xbaaaaaa-0"]


def test_a_namespace_that_somebody_else_removes_first_is_no_error(monkeypatch):
    def gone(name):
        raise FabricError("Cannot remove namespace file: No such file or directory")

    Namespaces(monkeypatch, [])
    monkeypatch.setattr(links, "remove_namespace", gone)
    assert stale.remove("xbdddddd-9") == []


@pytest.mark.parametrize("planted", ["link", "open", "file"])
def test_a_folder_of_owners_that_others_may_write_to_is_refused(tmp_path, monkeypatch, planted):
    monkeypatch.setattr(stale.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(stale.os, "access", lambda *_: False)  # /run/xbench is root's
    place, elsewhere = tmp_path / f"xbench-{os.getuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if planted == "link":
        place.symlink_to(elsewhere)
    elif planted == "open":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.touch()
    with pytest.raises(FabricError, match="only this user can write to") as caught:
        stale.claim("aaaaaa")
    assert "TMPDIR" in caught.value.hint
    assert list(elsewhere.iterdir()) == []


def test_a_folder_of_owners_in_the_temporary_folder_is_private(tmp_path, monkeypatch):
    monkeypatch.setattr(stale.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(stale.os, "access", lambda *_: False)
    assert stale.owner_folder() == stale.owner_folder() == tmp_path / f"xbench-{os.getuid()}"
    assert stale.owner_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_stop_signals_interrupt_like_ctrl_c(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=number.name), stop_signals_interrupt():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_supervisor_ends_as_its_child_does(code, status):
    body = (
        "import os, signal, sys\n"
        "from xbench.fabrics.rootless import _PASSED, supervise\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)\n"
        "child = os.fork()\n"
        f"if child == 0: os.execv(sys.executable, [sys.executable, '-S', '-c', {code!r}])\n"
        "sys.exit(supervise(child))\n"
    )
    assert subprocess.run([sys.executable, "-c", body]).returncode == status


MACHINE = "127.0.0.1 localhost\n127.0.1.1 here.example here # ours\n::1 ip6-localhost\n\n# a comment\n127.0.0.1 here\n"


def test_the_machine_s_name_is_this_host_s_address() -> None:
    assert links.hosts_file("10.87.0.2", "here", MACHINE) == (
        "127.0.0.1 localhost\n127.0.1.1 here.example\n::1 ip6-localhost\n10.87.0.2 here\n"
    )


def test_a_file_is_made_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "netns"
    assert links.give_hosts_file("xb012345-0", "10.87.0.1", folder, tmp_path) == ()
    (folder / "other").mkdir()
    assert (folder / "xb012345-0" / "hosts").read_text().splitlines()[-1].startswith("10.87.0.1 ")
    assert links.hosts_files(folder) == ["xb012345-0"]
    links.remove_hosts_file("xb012345-0", folder, tmp_path)
    links.remove_hosts_file("xb012345-0", folder, tmp_path)
    assert links.hosts_files(folder) == []
    assert (folder / "other").exists()
    (folder / "other").rmdir()
    links.remove_hosts_file("xb012345-1", folder, tmp_path)
    assert not folder.exists()


def test_where_etc_cannot_be_written_the_command_mounts_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    prefix = links.give_hosts_file("xb012345-0", "10.87.0.1", tmp_path / "file", tmp_path)
    assert prefix[1:] == ("-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(tmp_path / "xb012345-0.hosts"))
    links.remove_hosts_file("xb012345-0", tmp_path / "file", tmp_path)
    assert not (tmp_path / "xb012345-0.hosts").exists()
