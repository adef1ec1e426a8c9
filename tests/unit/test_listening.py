"""The address that a server of ours listens on."""

from __future__ import annotations

import socket

import pytest

from xbench.listening import LOOPBACK, listening_address

NAMES = {"node0": "127.0.1.1", "elsewhere": "192.0.2.1"}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that knows few names, its own among them as Debian has it."""
    real = socket.gethostbyname

    def lookup(name: str) -> str:
        if name and name[0].isdigit():
            return real(name)
        if name not in NAMES:
            raise socket.gaierror("Name or service not known")
        return NAMES[name]

    monkeypatch.setattr(socket, "gethostbyname", lookup)


@pytest.mark.parametrize(
    ("place", "one_host", "address"),
    [
        ("127.0.0.1", True, LOOPBACK),
        ("localhost", True, LOOPBACK),
        ("node0", True, "127.0.1.1"),
        ("127.0.0.1", False, None),  # told to rank 0 alone: others come from elsewhere
        ("localhost", False, None),
        ("::1", False, None),
        ("node0", False, None),  # a name, whatever it resolves to here
        ("192.0.2.1", True, None),  # not of this host: translated on the way
        ("192.0.2.1", False, None),
        ("elsewhere", True, None),
        ("unknown", True, None),
        ("", False, None),
        ("::x", True, None),
    ],
)
def test_a_server_listens_where_it_is_reached_and_else_everywhere(
    place: str, one_host: bool, address: str | None
) -> None:
    assert listening_address(place, one_host=one_host) == address


def test_an_address_of_this_host_that_others_reach_is_listened_on() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this host has no network but loopback")
        own = probe.getsockname()[0]
    assert listening_address(own, one_host=False) == own
