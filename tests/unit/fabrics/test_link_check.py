"""Changes of links, and the sentence for each, without a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xbench.errors import FabricError
from xbench.fabrics import link_check, links
from xbench.fabrics.link_check import SWITCH, Device, Reading, Space, difference, parse

TBF = ("8009:", "tbf at 1.00 Gbit/s (burst 87375, lat 39301)")
LINK = Device(
    index=2, is_up=True, carrier_changes=2, mtu=1500, gso_max_bytes=65535, bridge=None, addresses=(), qdiscs=(TBF,)
)
LOOPBACK = Device(1, True, 0, 65536, 65536, None, ("127.0.0.1/8",), (("0:", "noqueue"),))


def raised() -> dict[int | str, Space | None]:
    """Two hosts and their switch, as they were raised."""
    ends = {f"xb3f9a1c-{host}": replace(LINK, index=3 + host, bridge=links.BRIDGE) for host in (0, 1)}
    spaces: dict[int | str, Space | None] = {SWITCH: Space(100, {links.BRIDGE: replace(LINK, qdiscs=()), **ends})}
    for host in (0, 1):
        own = replace(LINK, addresses=(f"{links.address(host)}/24",))
        spaces[host] = Space(101 + host, {"lo": LOOPBACK, links.INTERFACE: own})
    return spaces


def with_device(place: int | str, name: str, **fields: Any) -> Reading:
    """The same with one device changed."""
    spaces = raised()
    space = spaces[place]
    return {**spaces, place: replace(space, devices={**space.devices, name: replace(space.devices[name], **fields)})}


def without(place: int | str, name: str) -> Reading:
    spaces = raised()
    space = spaces[place]
    return {**spaces, place: replace(space, devices={k: v for k, v in space.devices.items() if k != name})}


def own_end(**fields: Any) -> Reading:
    return with_device(1, links.INTERFACE, **fields)


CHANGES: list[tuple[Callable[[], Reading], str]] = [
    (
        lambda: own_end(qdiscs=(("8009:", "tbf at 20.0 Mbit/s (burst 16384, lat 1)"),)),
        "the shaping of host 1's end of its link changed from tbf at 1.00 Gbit/s (burst 87375, lat 39301) to tbf at "
        "20.0 Mbit/s (burst 16384, lat 1)",
    ),
    (
        lambda: own_end(qdiscs=()),
        "the shaping of host 1's end of its link changed from tbf at 1.00 Gbit/s (burst 87375, lat 39301) to none",
    ),
    (lambda: own_end(qdiscs=(("8011:", TBF[1]),)), "the shaping of host 1's end of its link was removed and set again"),
    (
        lambda: with_device(SWITCH, "xb3f9a1c-0", qdiscs=(("0:", "noqueue"),)),
        "the shaping of the switch's end of the link of host 0 changed from tbf at 1.00 Gbit/s (burst 87375, lat "
        "39301) to noqueue",
    ),
    (lambda: own_end(is_up=False, carrier_changes=3), "the link of host 1 is down"),
    (lambda: own_end(carrier_changes=4), "the link of host 1 went down and came up again"),
    (lambda: with_device(SWITCH, "xb3f9a1c-1", carrier_changes=4), "the link of host 1 went down and came up again"),
    (lambda: with_device(SWITCH, links.BRIDGE, is_up=False), "the bridge between the hosts is down"),
    (lambda: own_end(addresses=()), "the address of host 1's end of its link changed from 10.87.0.2/24 to none"),
    (lambda: own_end(mtu=900), "the MTU of host 1's end of its link changed from 1500 to 900"),
    (
        lambda: own_end(gso_max_bytes=1500),
        "the largest segment (GSO) of host 1's end of its link changed from 65535 to 1500",
    ),
    (
        lambda: with_device(SWITCH, "xb3f9a1c-1", bridge=None),
        "the bridge of the switch's end of the link of host 1 changed from xbbr0 to none",
    ),
    (lambda: own_end(index=9), "the link of host 1 was removed and made again"),
    (lambda: without(1, links.INTERFACE), "the link of host 1 was removed"),
    (lambda: with_device(0, "lo", is_up=False), "lo of host 0 is down"),
    (lambda: {**raised(), 1: None}, "the namespace of host 1 was deleted"),
    (lambda: {**raised(), 1: Space(999, {})}, "the namespace of host 1 was deleted and made again"),
    (lambda: {**raised(), SWITCH: None}, "the switch between the hosts was deleted"),
    (lambda: {**raised(), SWITCH: Space(999, {})}, "the switch between the hosts was deleted"),
]


@pytest.mark.parametrize(("after", "sentence"), CHANGES, ids=[sentence[:60] for _, sentence in CHANGES])
def test_every_change_is_one_sentence(after: Callable[[], Reading], sentence: str) -> None:
    assert difference(raised(), after()) == f"the links changed while ranks used them: {sentence}"


def test_links_that_are_as_they_were_are_no_difference() -> None:
    assert difference(raised(), raised()) is None


def test_a_change_that_both_ends_show_is_told_once_and_others_follow() -> None:
    after = dict(raised())
    for place, name in ((1, links.INTERFACE), (SWITCH, "xb3f9a1c-1")):
        space = after[place]
        after[place] = replace(
            space, devices={**space.devices, name: replace(space.devices[name], carrier_changes=4, mtu=900)}
        )
    assert difference(raised(), after) == (
        "the links changed while ranks used them: the link of host 1 went down and came up again; the MTU of the "
        "switch's end of the link of host 1 changed from 1500 to 900; the MTU of host 1's end of its link changed from "
        "1500 to 900"
    )


IP = {
    "ifindex": 2,
    "ifname": "xbeth0",
    "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
    "mtu": 1500,
    "operstate": "UP",
    "gso_max_size": 65535,
    "addr_info": [
        {"family": "inet", "local": "10.87.0.2", "prefixlen": 24},
        {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "tentative": True},
    ],
    "stats64": {"rx": {"bytes": 164}, "tx": {"bytes": 0, "carrier_changes": 2}},
}
TC = {
    "kind": "tbf",
    "handle": "8009:",
    "dev": "xbeth0",
    "root": True,
    "refcnt": 3,
    "options": {"rate": 125000000, "burst": 87375, "lat": 39301},
}


def test_the_tools_own_words_are_read() -> None:
    others = {**TC, "dev": "lo", "kind": "noqueue", "handle": "0:", "options": {}}
    assert parse([IP], [others, TC]) == {"xbeth0": replace(LINK, addresses=("10.87.0.2/24",))}
    down = {**IP, "flags": ["BROADCAST", "UP", "NO-CARRIER"], "master": "xbbr0"}
    assert parse([down], [others]) == {
        "xbeth0": replace(LINK, is_up=False, bridge="xbbr0", addresses=("10.87.0.2/24",), qdiscs=())
    }


def test_tools_that_speak_no_json_are_refused_with_the_version_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xb3f9a1c-sw").touch()
    monkeypatch.setattr(link_check, "NAMESPACES", tmp_path)
    monkeypatch.setattr(links, "run", lambda argv, text=None: "qdisc tbf 8009: dev xbeth0 root refcnt 2 rate 1Gbit")
    with pytest.raises(FabricError, match="ip and tc do not describe the links of xb3f9a1c-sw as JSON") as caught:
        link_check.read("3f9a1c", 2)
    assert "4.17" in (caught.value.hint or "")


def test_a_namespace_that_is_gone_is_read_as_none() -> None:
    assert link_check.read("000000", 2) == {SWITCH: None, 0: None, 1: None}
