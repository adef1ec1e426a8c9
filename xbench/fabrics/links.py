"""Shaped links between network namespaces, as ip(8) and tc(8) commands.

    xb3f9a1c-0 ── xbeth0 ═══ xb3f9a1c-0 ─┐
    xb3f9a1c-1 ── xbeth0 ═══ xb3f9a1c-1 ─┤ bridge, in the namespace xb3f9a1c-sw
    (one namespace per host) (veth pairs) ┘

The bridge has its own namespace, so the machine's network, firewall and NetworkManager never see these links. A token
bucket (tbf) limits the egress of every veth end: a host's end what the host sends, the bridge's end what it receives.

A token bucket lets `burst` bytes pass at once after an idle moment, unlike a real link: a bucket of 1 ms would hide the
cost of every collective below 1 ms. A packet larger than the bucket would never pass, so the link's segmentation
offload (GSO) is limited to three quarters of it; packets below 64 KiB cost processor time that training needs. So the
bucket holds 700 µs of the rate until packets of 64 KiB fit, at 1 Gbit/s. It then keeps that size until 250 µs of the
rate are more, and is never below 4 KiB. The queue before the bucket holds 40 ms of the rate, so that TCP fills the link
without constant loss, and hosts that send to one host do not all drop.

TCP's congestion control in the namespaces is CUBIC, or Reno without CUBIC: BBR would keep the flow below the link's
rate and drain it every ten seconds to probe.

In a namespace the machine's own name has the address of that host, because Horovod (0.28.1) finds the device of its
process sets by that address. `ip netns exec` mounts /etc/netns/NAME/hosts over /etc/hosts for the command that it runs.
In a user namespace /etc belongs to another user, and the command mounts its file itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xbench.errors import FabricError

INTERFACE = "xbeth0"
BRIDGE = "xbbr0"
CONGESTION_CONTROL = ("cubic", "reno")
COMMAND_TIMEOUT_S = 30.0
NAMESPACE = re.compile(r"xb(?P<run>[0-9a-f]{6})-(\d+|sw)")
"""Name of a namespace: the run's id, and the host or the switch."""

BUCKET_S = 250e-6
LONG_BUCKET_S = 700e-6
MIN_BUCKET_BYTES = 4096
QUEUE_S = 40e-3
MIN_QUEUE_BYTES = 512 * 1024
MAX_QUEUE_BYTES = 64 * 1024**2
MAX_GSO_BYTES = 65536

HOSTS_FILES = Path("/etc/netns")
SPARE = Path("/run")
"""Folder of hosts files that cannot be in HOSTS_FILES. In a user namespace it is an empty folder of that namespace."""

_MOUNT = 'mount --bind "$0" /etc/hosts && exec "$@"'


def tool(name: str) -> str | None:
    """Path of a system tool. The sbin folders count even if an ordinary user's PATH lacks them."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def namespace(run_id: str, host: int | str) -> str:
    """Name of the namespace of a host, or of the switch ('sw')."""
    return f"xb{run_id}-{host}"


def address(host: int) -> str:
    """IPv4 address of a host on its fabric. All fabrics use the same addresses, because they are never connected."""
    return f"10.87.0.{host + 1}"


def bucket(rate_bps: float) -> tuple[int, int, int]:
    """(burst, queue limit, largest GSO packet) [B] of a link of `rate_bps` bits per second. See the module."""
    bytes_per_s = rate_bps / 8
    burst = round(
        max(MIN_BUCKET_BYTES, min(LONG_BUCKET_S * bytes_per_s, MAX_GSO_BYTES * 4 / 3), BUCKET_S * bytes_per_s)
    )
    queue = min(max(MIN_QUEUE_BYTES, round(rate_bps / 8 * QUEUE_S)), MAX_QUEUE_BYTES)
    return burst, queue, min(MAX_GSO_BYTES, burst * 3 // 4)


def shaping(device: str, rate_bps: float) -> str:
    """The tc(8) batch line that limits a device's egress to the rate."""
    burst, queue, _ = bucket(rate_bps)
    return f"qdisc add dev {device} root tbf rate {round(rate_bps)}bit burst {burst}b limit {queue}b"


def run(argv: Sequence[str], text: str | None = None) -> str:
    """Run a network command and return its stdout. Raises FabricError with the first line of the command's error."""
    program = tool(argv[0])
    if program is None:
        raise FabricError(f"{argv[0]!r} is not installed", hint="apt-get install iproute2")
    try:
        # Its own process group: Ctrl-C in the terminal must not kill the command that cleans up.
        result = subprocess.run(
            [program, *argv[1:]],
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            process_group=0,
        )
    except subprocess.TimeoutExpired:
        raise FabricError(f"{' '.join(argv)!r} did not end within {COMMAND_TIMEOUT_S:.0f} s") from None
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip() and not line.startswith("Command failed")]
        raise FabricError(
            f"{' '.join(argv)!r} failed: {lines[0].strip() if lines else f'exit {result.returncode}'}",
            detail=f"{text or ''}{result.stderr}",
        )
    return result.stdout


def raise_links(run_id: str, hosts: int, rate_bps: float) -> None:
    """Make the namespaces, the bridge and the shaped links of a fabric.

    Raises FabricError, and may leave some of them.
    """
    switch = namespace(run_id, "sw")
    spaces = [namespace(run_id, host) for host in range(hosts)]
    _, _, gso = bucket(rate_bps)
    run(["ip", "-batch", "-"], "".join(f"netns add {name}\n" for name in [switch, *spaces]))
    # addrgenmode none: no IPv6 address, so that Gloo, which takes a device's first address, always finds the IPv4 one.
    lines = [f"link add {BRIDGE} type bridge", f"link set {BRIDGE} addrgenmode none up"]
    for space in spaces:
        lines.append(f"link add {space} type veth peer name {INTERFACE} netns {space}")
        lines.append(f"link set {space} addrgenmode none gso_max_size {gso} master {BRIDGE} up")
    run(["ip", "-n", switch, "-batch", "-"], "\n".join(lines) + "\n")
    run(["tc", "-n", switch, "-batch", "-"], "".join(shaping(space, rate_bps) + "\n" for space in spaces))
    for host, space in enumerate(spaces):
        lines = [
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none gso_max_size {gso} up",
            f"addr add {address(host)}/24 dev {INTERFACE}",
        ]
        run(["ip", "-n", space, "-batch", "-"], "\n".join(lines) + "\n")
        run(["tc", "-n", space, "-batch", "-"], shaping(INTERFACE, rate_bps) + "\n")


def set_congestion_control(space: str) -> str:
    """Choose TCP's congestion control in a namespace; return the active one ('unknown' if /proc does not tell)."""
    path = "/proc/sys/net/ipv4/tcp_congestion_control"
    tries = " || ".join(f"echo {name} > {path}" for name in CONGESTION_CONTROL)
    try:
        output = run(["ip", "netns", "exec", space, "sh", "-c", f"{{ {tries}; }} 2>/dev/null; cat {path}"])
    except FabricError:
        return "unknown"
    return output.strip() or "unknown"


def link_fault(run_id: str, hosts: int) -> str | None:
    """The host whose link is down or gone, as one sentence, or None. Costs one process."""
    switch = namespace(run_id, "sw")
    try:
        veths: list[dict[str, Any]] = json.loads(run(["ip", "-n", switch, "-j", "link", "show", "type", "veth"]))
    except (FabricError, ValueError):
        return f"the switch between the hosts ({switch}) is gone"
    flags = {link.get("ifname"): link.get("flags", []) for link in veths}
    for host in range(hosts):
        name = namespace(run_id, host)
        if name not in flags:
            return f"the link of host {host} is gone"
        # Carrier (LOWER_UP) needs both ends up, so the switch's end also shows the state of the host's end.
        if "UP" not in flags[name] or "LOWER_UP" not in flags[name]:
            return f"the link of host {host} is down"
    return None


def list_namespaces() -> list[str]:
    """Names of all xbench namespaces on this machine, of any owner. Raises FabricError."""
    names = [line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line.strip()]
    return sorted(name for name in names if NAMESPACE.fullmatch(name))


def namespace_pids(name: str) -> list[int]:
    """Processes inside a namespace; none if it is gone."""
    try:
        return [int(word) for word in run(["ip", "netns", "pids", name]).split()]
    except FabricError:
        return []


def remove_namespace(name: str) -> None:
    """Delete a namespace and its links. Raises FabricError."""
    run(["ip", "netns", "delete", name])


def hosts_file(address: str, name: str, machine: str) -> str:
    """/etc/hosts of a host: the machine's own lines without its name, and the name at this host's address."""
    lines = []
    for line in machine.splitlines():
        words = line.partition("#")[0].split()
        others = [word for word in words[1:] if word != name]
        if others:
            lines.append(" ".join([words[0], *others]))
    return "\n".join([*lines, f"{address} {name}", ""])


def give_hosts_file(space: str, address: str, folder: Path = HOSTS_FILES, spare: Path = SPARE) -> tuple[str, ...]:
    """Give the namespace a hosts file; returns the prefix of commands in it. Raises FabricError."""
    try:
        machine = Path("/etc/hosts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()  # nothing to mount over
    text = hosts_file(address, socket.gethostname(), machine)
    try:
        space_folder = folder / space
        space_folder.mkdir(parents=True, exist_ok=True)
        (space_folder / "hosts").write_text(text, encoding="utf-8")
        return ()
    except OSError:
        pass
    spare_file = spare / f"{space}.hosts"
    try:
        spare_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FabricError(f"{space} can have no hosts file: {error.strerror}") from None
    return (shutil.which("sh") or "/bin/sh", "-c", _MOUNT, str(spare_file))


def remove_hosts_file(space: str, folder: Path = HOSTS_FILES, spare: Path = SPARE) -> None:
    """Remove the namespace's hosts file, if there is one, and the folder of all such files when it is empty."""
    shutil.rmtree(folder / space, ignore_errors=True)
    with contextlib.suppress(OSError):
        (spare / f"{space}.hosts").unlink()
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def hosts_files(folder: Path = HOSTS_FILES) -> list[str]:
    """Namespaces of xbench, existing or not, that have a hosts file."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if NAMESPACE.fullmatch(entry.name))
    except OSError:
        return []
