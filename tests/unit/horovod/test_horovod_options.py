"""Options of the mode `horovod`, and the environment and the server by which Horovod finds its ranks."""

from __future__ import annotations

import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from xbench.errors import SpecError
from xbench.horovod import RankPosition, Settings, checked, environment
from xbench.horovod.rendezvous import listen_at, plan
from xbench.schedules import parse_mode, parse_modes


def test_a_mode_with_settings_is_a_mode_of_its_own() -> None:
    modes = parse_modes("horovod,horovod:cycle=5.0,fusion=32,ddp")
    assert [mode.text for mode in modes] == ["horovod", "horovod:fusion=32,cycle=5", "ddp"]
    assert [mode.name for mode in modes] == ["horovod", "horovod", "ddp"]
    assert modes[1].options == (("fusion", "32"), ("cycle", "5"))


def test_what_is_left_out_is_horovod_s_default() -> None:
    assert Settings.of({}) == Settings(128.0, 1.0)
    assert Settings.of({"cycle": "5"}) == Settings(128.0, 5.0)
    assert str(Settings(32, 5)) == "a fusion buffer of 32 MiB, a cycle of 5 ms"
    assert str(Settings(0, 1)) == "no fusion, a cycle of 1 ms"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("fusoin=3", "unknown option 'fusoin'", "did you mean 'fusion'?"),
        ("fusion=many", "fusion=many is not a number of MiB", "0 to 4096 MiB"),
        ("fusion=nan", "fusion=nan is not a number of MiB", "0 to 4096 MiB"),
        ("fusion=5000", "fusion=5000 is out of range 0 to 4096 MiB", "try fusion=4096"),
        ("fusion=-1", "fusion=-1 is out of range 0 to 4096 MiB", "try fusion=0"),
        ("cycle=0", "cycle=0 is out of range 0.1 to 1000 ms", "try cycle=0.1"),
        ("cycle=inf", "cycle=inf is out of range 0.1 to 1000 ms", "try cycle=1000"),
        ("cycle=1,cycle=2", "'cycle' stands twice", "write cycle= once"),
    ],
)
def test_settings_that_cannot_be(options: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_mode(f"horovod:{options}")
    assert caught.value.hint == hint


def test_no_fusion_is_a_setting() -> None:
    assert checked("horovod:fusion=0", {"fusion": "0"}) == {"fusion": "0"}


def test_a_rank_s_environment_is_that_of_horovod_s_launcher() -> None:
    place = RankPosition.of(5, 8, {"LOCAL_WORLD_SIZE": "2"})
    env = environment(place, "10.87.0.1", 4242, Settings(32, 0.5), {"GLOO_SOCKET_IFNAME": "xbeth0"})
    assert env == {
        "HOROVOD_RANK": "5",
        "HOROVOD_SIZE": "8",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "2",
        "HOROVOD_CROSS_SIZE": "4",
        "HOROVOD_HOSTNAME": "2",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.87.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4242",
        "HOROVOD_GLOO_IFACE": "xbeth0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "3600",
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "HOROVOD_CYCLE_TIME": "0.5",
    }


@pytest.mark.parametrize("environ", [{}, {"LOCAL_WORLD_SIZE": "2"}, {"LOCAL_WORLD_SIZE": "x"}])
def test_ranks_of_unequal_hosts_are_hosts_of_their_own(environ: dict[str, str]) -> None:
    place = RankPosition.of(2, 3, environ)
    assert (place.local_size, place.local_rank, place.cross_rank, place.cross_size) == (1, 0, 2, 3)
    assert environment(place, "h", 1, Settings(), {})["HOROVOD_GLOO_IFACE"] is None


def test_the_server_knows_every_rank() -> None:
    slots = plan(2, 2)
    assert [(s["rank"], s["hostname"], s["local_rank"], s["cross_rank"]) for s in slots] == [
        (0, "0", 0, 0),
        (1, "0", 1, 0),
        (2, "1", 0, 1),
        (3, "1", 1, 1),
    ]
    assert {(s["size"], s["local_size"], s["cross_size"]) for s in slots} == {(4, 2, 2)}


def test_parsing_imports_neither_torch_nor_horovod() -> None:
    code = (
        "import sys; from xbench.schedules import parse_mode, obstacle; parse_mode('horovod:fusion=3'); "
        "obstacle('horovod'); assert not {'torch', 'horovod'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


class RendezvousHTTPServer(HTTPServer):
    """As Horovod's: its constructor names the class, so that nothing may stand in its place."""

    def __init__(self, address: tuple[str, int]) -> None:
        super(globals()["RendezvousHTTPServer"], self).__init__(address, BaseHTTPRequestHandler)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_server_listens_at_the_given_address_in_place_of_all(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if address == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    for name in ("server_bind", "address_family"):
        monkeypatch.setattr(RendezvousHTTPServer, name, getattr(RendezvousHTTPServer, name))
    listen_at(address, RendezvousHTTPServer)
    try:
        server = RendezvousHTTPServer(("", 0))
    except OSError:
        assert address == "::1"  # which a container may lack
        return
    with server:
        assert server.socket.getsockname()[0] == address
        with socket.create_connection((address, server.server_port)):
            pass
