"""Detection of changes of shaped links: compares what ip(8) and tc(8) report now with an earlier report.

The kernel counts every loss of carrier, numbers every new device, and gives every queueing discipline a handle. So a
link that went down and came back, or was removed and made again, differs from before. A rate that was changed and
changed back between two readings leaves no trace here; steps that it slowed down do.

A reading starts two processes per namespace, about 3 ms each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xbench.errors import FabricError
from xbench.fabrics import links
from xbench.units import format_rate

SWITCH = "sw"
NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class Device:
    """One network device: an end of a link, the bridge, or a loopback device."""

    index: int
    """The kernel's number of it. A device that is made again gets another one, or the same in another namespace."""
    is_up: bool
    """True if administratively up and with a carrier."""
    carrier_changes: int
    """Number of times that the carrier was lost or found since the device was made."""
    mtu: int
    gso_max_bytes: int | None
    bridge: str | None
    addresses: tuple[str, ...]
    """IPv4 addresses, with the length of their prefix."""
    qdiscs: tuple[tuple[str, str], ...]
    """(handle, description) of every queueing discipline, in tc's order."""


@dataclass(frozen=True)
class Space:
    """One namespace. `inode` identifies it: a new namespace of the same name has another one."""

    inode: int
    devices: Mapping[str, Device]


Reading = Mapping[int | str, Space | None]
"""Namespaces by host, and by SWITCH for the switch; None for a namespace that is gone."""


def read(run_id: str, hosts: int) -> Reading:
    """State of all links of a fabric. Raises FabricError if a command fails in a namespace that exists."""
    return {host: _read_space(links.namespace(run_id, host)) for host in [SWITCH, *range(hosts)]}


def _read_space(name: str) -> Space | None:
    try:
        inode = (NAMESPACES / name).stat().st_ino
    except OSError:
        return None
    output = links.run(["ip", "-n", name, "-j", "-d", "-s", "-s", "addr", "show"])
    queues = links.run(["tc", "-n", name, "-j", "qdisc", "show"])
    try:
        return Space(inode, parse(json.loads(output), json.loads(queues)))
    except (ValueError, KeyError, TypeError) as error:
        raise FabricError(
            f"ip and tc do not describe the links of {name} as JSON ({error})", hint="iproute2 4.17 or later does"
        ) from None


def parse(addresses: list[dict[str, Any]], qdiscs: list[dict[str, Any]]) -> dict[str, Device]:
    """Devices by name, from the JSON of `ip -d -s -s addr` and of `tc qdisc`. Raises KeyError for other JSON."""
    devices = {}
    for device in addresses:
        name = str(device["ifname"])
        devices[name] = Device(
            index=device["ifindex"],
            is_up={"UP", "LOWER_UP"} <= set(device["flags"]),
            carrier_changes=device.get("stats64", {}).get("tx", {}).get("carrier_changes", 0),
            mtu=device["mtu"],
            gso_max_bytes=device.get("gso_max_size"),
            bridge=device.get("master"),
            addresses=tuple(
                f"{entry['local']}/{entry['prefixlen']}"
                for entry in device["addr_info"]
                if entry.get("family") == "inet"
            ),
            qdiscs=tuple((str(qdisc["handle"]), _described(qdisc)) for qdisc in qdiscs if qdisc["dev"] == name),
        )
    return devices


def _described(qdisc: Mapping[str, Any]) -> str:
    """'tbf at 1 Gbit/s (burst 87375, lat 39301)': kind, rate and other options of a queueing discipline."""
    options = dict(qdisc.get("options") or {})
    rate = options.pop("rate", None)
    at_rate = f" at {format_rate(8 * rate)}" if isinstance(rate, int | float) else f" at {rate}" if rate else ""
    others = ", ".join(f"{name} {value}" for name, value in options.items())
    return f"{qdisc['kind']}{at_rate}{f' ({others})' if others else ''}"


def difference(before: Reading, after: Reading) -> str | None:
    """Changes between two readings as one sentence, or None without any."""
    changes = list(dict.fromkeys(_differences(before, after)))
    return f"the links changed while ranks used them: {'; '.join(changes)}" if changes else None


def _differences(before: Reading, after: Reading) -> Iterator[str]:
    switch, switch_now = before[SWITCH], after[SWITCH]
    assert switch is not None
    if switch_now is None or switch_now.inode != switch.inode:
        yield "the switch between the hosts was deleted"
        return
    bridge = "the bridge between the hosts"
    yield from _device(bridge, bridge, switch.devices[links.BRIDGE], switch_now.devices.get(links.BRIDGE))
    for host, space in before.items():
        if host == SWITCH:
            continue
        assert space is not None
        link, space_now = f"the link of host {host}", after[host]
        if space_now is None:
            yield f"the namespace of host {host} was deleted"
            continue
        if space_now.inode != space.inode:
            yield f"the namespace of host {host} was deleted and made again"
            continue
        for name, device in switch.devices.items():
            if name.endswith(f"-{host}"):
                yield from _device(link, f"the switch's end of {link}", device, switch_now.devices.get(name))
        for name, device in space.devices.items():
            other = f"{name} of host {host}"
            whole, end = (link, f"host {host}'s end of its link") if name == links.INTERFACE else (other, other)
            yield from _device(whole, end, device, space_now.devices.get(name))


def _device(link: str, end: str, before: Device, after: Device | None) -> Iterator[str]:
    """Changes of one device. A change at both ends is reported for the `link`, all others for the `end`."""
    if after is None:
        yield f"{link} was removed"
        return
    if after.index != before.index:
        yield f"{link} was removed and made again"
        return
    if before.is_up and not after.is_up:
        yield f"{link} is down"
    elif after.carrier_changes != before.carrier_changes:
        yield f"{link} went down and came up again"
    if after.qdiscs != before.qdiscs:
        was, is_now = (
            ", ".join(description for _, description in device.qdiscs) or "none" for device in (before, after)
        )
        if was == is_now:
            yield f"the shaping of {end} was removed and set again"
        else:
            yield f"the shaping of {end} changed from {was} to {is_now}"
    if after.addresses != before.addresses:
        was, is_now = (", ".join(device.addresses) or "none" for device in (before, after))
        yield f"the address of {end} changed from {was} to {is_now}"
    for what, was_value, value in (
        ("MTU", before.mtu, after.mtu),
        ("largest segment (GSO)", before.gso_max_bytes, after.gso_max_bytes),
        ("bridge", before.bridge, after.bridge),
    ):
        if value != was_value:
            yield f"the {what} of {end} changed from {was_value or 'none'} to {value or 'none'}"
