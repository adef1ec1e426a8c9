"""The address that a server of ours listens on."""

from __future__ import annotations

import pytest

from xbench.listening import LOOPBACK, listening_address


@pytest.mark.parametrize(
    ("place", "one_host", "address"),
    [
        ("127.0.0.1", True, LOOPBACK),
        ("localhost", True, LOOPBACK),
        ("127.0.0.1", False, None),  # told to rank 0 alone: others come from elsewhere
        ("localhost", False, None),
        ("192.0.2.1", True, None),  # an address, and not of this host: it is translated on the way
        ("node0", True, None),  # a name, whatever it resolves to here
        ("10.87.0", True, None),
        ("", True, None),
        ("::x", True, None),
    ],
)
def test_a_server_listens_where_it_is_reached_and_else_everywhere(
    place: str, one_host: bool, address: str | None
) -> None:
    assert listening_address(place, one_host=one_host) == address
