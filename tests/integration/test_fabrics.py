"""Shaped links for real: what they carry, what they leave, and how an ordinary user gets them."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from faults.case import has
from faults.family_environment import as_nobody

from xbench.errors import FabricError, SpecError
from xbench.fabrics import links, open_fabric, parse_fabric, shaped, stale
from xbench.units import parse_rate

pytestmark = [
    pytest.mark.integration,
    pytest.mark.netns,
    pytest.mark.skipif(shaped.obstacle() is not None, reason=f"shaped links: {shaped.obstacle()}"),
]


def ours(run_id):
    return [name for name in links.list_namespaces() if name.startswith(f"xb{run_id}-")]


@pytest.mark.parametrize("rate", ["20mbit", "100mbit", "317mbit", "1gbit"])
def test_a_stream_gets_the_rate_less_headers_and_no_more(rate):
    with open_fabric(parse_fabric(f"shaped:rate={rate}")) as fabric:
        share = fabric.measure_bandwidth() / parse_rate(rate)
        assert 0.8 < share < 0.97  # 0.956 of a frame is payload
        record = fabric.describe()
        assert record.measured_bps == fabric.measured_bps
        assert (record.rate_bps, record.label, record.hosts) == (parse_rate(rate), "real", 2)
        assert any("congestion control" in note for note in record.notes)


def test_every_host_reaches_every_other_and_nothing_is_left():
    with open_fabric(parse_fabric("shaped:hosts=4,rate=10gbit,ranks=2"), "a1b2c3") as fabric:
        assert ours("a1b2c3") == ["xba1b2c3-0", "xba1b2c3-1", "xba1b2c3-2", "xba1b2c3-3", "xba1b2c3-sw"]
        assert [len(host.cores) for host in fabric.hosts] == [2] * 4
        assert fabric.diagnose() is None
        script = str(Path(shaped.__file__).with_name("stream.py"))
        for host in fabric.hosts[1:]:
            argv = [sys.executable, "-S", script, "receive", host.address, "5201", "0.05"]
            receiver = subprocess.Popen([*host.prefix, *argv], stdout=subprocess.PIPE, text=True)
            assert receiver.stdout.readline() == "ready\n"
            sender = subprocess.run(
                [*fabric.hosts[0].prefix, sys.executable, "-S", script, "send", host.address, "5201"]
            )
            said, _ = receiver.communicate()
            assert sender.returncode == receiver.returncode == 0
            assert float(said) > 0
        code = "import os; print(sorted(os.sched_getaffinity(0)))"
        affinity = [*fabric.hosts[0].prefix, sys.executable, "-S", "-c", code]
        cores = sorted({core for rank in fabric.hosts[0].cores for core in rank})
        assert subprocess.run(affinity, capture_output=True, text=True).stdout.strip() == str(cores)
        assert len(set(fabric.free_ports(2) + fabric.free_ports(2))) == 4
    assert ours("a1b2c3") == []
    assert not (stale.owner_folder() / "a1b2c3.json").exists()
    fabric.close()


def test_a_namespace_that_somebody_deletes_leaves_no_hosts_file():
    with open_fabric(parse_fabric("shaped"), "a1b2c4"):
        assert "xba1b2c4-1" in links.hosts_files()
        links.remove_namespace("xba1b2c4-1")
    assert not [name for name in links.hosts_files() if name.startswith("xba1b2c4")]
    assert ours("a1b2c4") == []


def test_the_machines_own_network_is_not_touched():
    before = links.run(["ip", "link", "show"])
    with open_fabric(parse_fabric("shaped")):
        assert links.run(["ip", "link", "show"]) == before
    assert links.run(["ip", "link", "show"]) == before


@pytest.mark.parametrize("end", ["host", "switch", "gone"])
def test_a_link_that_is_down_is_told(end):
    with open_fabric(parse_fabric("shaped:hosts=3")) as fabric:
        host = fabric.hosts[1]
        switch = links.namespace(fabric.run_id, "sw")
        if end == "host":
            links.run(["ip", "-n", host.name, "link", "set", host.interface, "down"])
        elif end == "switch":
            links.run(["ip", "-n", switch, "link", "set", host.name, "down"])
        else:
            links.run(["ip", "-n", host.name, "link", "delete", host.interface])
        assert fabric.diagnose() == f"the link of host 1 is {'gone' if end == 'gone' else 'down'}"
        if end == "host":
            with pytest.raises(FabricError, match="the link of host 1 is down"):
                fabric.measure_bandwidth()


SHAPED = "tbf at 1.00 Gbit/s (burst 87375, lat 39301)"
TBF = "root tbf rate 20mbit burst 16kb limit 1mb"
CHANGES = [
    ([], None),
    (
        [f"tc -n HOST qdisc replace dev xbeth0 {TBF}"],
        f"the shaping of host 1's end of its link changed from {SHAPED} to",
    ),
    (
        ["tc -n HOST qdisc del dev xbeth0 root", f"tc -n HOST {links.shaping('xbeth0', 1e9)}"],
        "the shaping of host 1's end of its link was removed and set again",
    ),
    (
        ["ip -n HOST link set xbeth0 down", "ip -n HOST link set xbeth0 up"],
        "the link of host 1 went down and came up again",
    ),
    (
        ["ip -n SWITCH link set xbbr0 down", "ip -n SWITCH link set xbbr0 up"],
        "the bridge between the hosts went down and came up again",
    ),
    (["ip -n HOST link delete xbeth0"], "the link of host 1 was removed"),
    (["ip netns delete HOST"], "the namespace of host 1 was deleted"),
    (["ip netns delete HOST", "ip netns add HOST"], "the namespace of host 1 was deleted and made again"),
]


@pytest.mark.parametrize(("commands", "sentence"), CHANGES)
def test_what_changed_about_links_is_told_and_nothing_is_left(commands, sentence):
    with open_fabric(parse_fabric("shaped:hosts=2,rate=1gbit"), "a1b2c6") as fabric:
        for command in commands:
            links.run(command.replace("HOST", "xba1b2c6-1").replace("SWITCH", "xba1b2c6-sw").split())
        told = fabric.changed()
    if sentence is None:
        assert told is None
    else:
        assert told.startswith(f"the links changed while ranks used them: {sentence}")
    assert ours("a1b2c6") == []
    assert [name for name in links.hosts_files() if "a1b2c6" in name] == []


def test_traffic_is_no_change_of_a_link():
    with open_fabric(parse_fabric("shaped:rate=100mbit")) as fabric:
        fabric.measure_bandwidth()
        assert fabric.changed() is None


def test_processes_in_the_namespaces_die_with_the_fabric():
    with open_fabric(parse_fabric("shaped")) as fabric:
        sleeper = subprocess.Popen([*fabric.hosts[0].prefix, "sleep", "600"])
        while not links.namespace_pids(fabric.hosts[0].name):
            pass
    assert sleeper.wait(timeout=10) == -9


def test_a_fabric_that_cannot_be_finished_leaves_nothing(monkeypatch):
    def fail(space):
        raise FabricError("enough")

    monkeypatch.setattr(links, "set_congestion_control", fail)
    with pytest.raises(FabricError, match="enough"), open_fabric(parse_fabric("shaped"), "a1b2c4"):
        pass
    assert ours("a1b2c4") == []
    with pytest.raises(ValueError, match="six hexadecimal digits"), open_fabric(parse_fabric("shaped"), "run 1"):
        pass


EXITS = """
    import os, signal, sys
    from xbench.fabrics import open_fabric, parse_fabric
    from xbench.fabrics.shaped import ShapedFabric

    if sys.argv[1] == "atexit":
        fabric = ShapedFabric(parse_fabric("shaped"), "a1b2c5")
        sys.exit(5)
    with open_fabric(parse_fabric("shaped"), "a1b2c5"):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
"""


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize("how", ["atexit", "SIGTERM", "SIGHUP", "SIGINT"])
def test_however_the_parent_ends_nothing_is_left(how):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(EXITS), how], capture_output=True, text=True)
    assert done.returncode == (5 if how == "atexit" else -2)  # Python ends an unhandled KeyboardInterrupt by SIGINT
    assert ours("a1b2c5") == []


@pytest.mark.skipif(not has("another user"), reason="it takes root, setpriv, and a checkout that others may read")
def test_an_ordinary_user_gets_shaped_links_or_an_honest_answer(tmp_path):
    command = [*as_nobody(tmp_path), sys.executable, "-m", "xbench", "env", "--links", "shaped:rate=100mbit"]
    done = subprocess.run(command, env=os.environ | {"HOME": "/"}, cwd="/", capture_output=True, text=True)
    if done.returncode == 0:
        assert "as an ordinary user: in a user namespace" in done.stderr
        assert "asked 100 Mbit/s, measured 9" in done.stderr
    else:
        assert done.returncode == SpecError.exit_code
        assert "cannot be raised: network namespaces need root, and" in done.stderr
        assert "--fabric local:ranks=2" in done.stderr
