"""The address on which the rendezvous server of Horovod's ranks listens."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from xbench.horovod.rendezvous import listen_at


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
