"""Hosts as network namespaces on one machine, joined by links with a limited rate: real sockets, a real bottleneck.

`xbench.fabrics.links` builds the links and explains the size of their buckets. This file gives them an owner and a
lifetime. The namespaces are always removed: at the end of the context, at the interpreter's exit, or after a `kill -9`
through `xbench clean`, which finds their owner by `xbench.fabrics.stale`.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

from xbench.errors import FabricError, SpecError
from xbench.fabrics import link_check, links, stale
from xbench.fabrics.fabric import MAX_RANKS, Fabric, HostSlot, pinned, rank_environment
from xbench.interrupts import interrupts_held
from xbench.spec import DeviceType, FabricSpec, known_options, parse_int
from xbench.units import format_rate, parse_rate

MIN_HOSTS, MAX_HOSTS = 2, 8
MIN_RATE_BPS, MAX_RATE_BPS = 1e6, 100e9
DEFAULT_RATE = "1gbit"
STREAM_PORT = 5201
FIRST_PORT = 20000  # below the ports that the kernel hands out
STREAM_S = 0.8


class ShapedFabric(Fabric):
    """`spec.hosts` namespaces; every direction of every link is limited to `spec.rate`.

    Construction raises FabricError.
    Raises ValueError for a run id that is not six hexadecimal digits.
    """

    def __init__(self, spec: FabricSpec, run_id: str, device: DeviceType = "cpu") -> None:
        super().__init__(spec, run_id, device)
        if not re.fullmatch(r"[0-9a-f]{6}", run_id):
            raise ValueError(f"a run id is six hexadecimal digits, and {run_id!r} is not")
        self._ports = itertools.count(FIRST_PORT)
        self._owner: Path | None = stale.claim(run_id)
        atexit.register(self.close)
        try:
            links.raise_links(run_id, spec.hosts, parse_rate(spec.rate or DEFAULT_RATE))
            controls = {links.set_congestion_control(links.namespace(run_id, host)) for host in range(spec.hosts)}
            self.notes.append(f"TCP congestion control: {', '.join(sorted(controls))}")
            self.hosts = self._slots()
            self._raised = link_check.read(run_id, spec.hosts)
        except BaseException:
            self.close()
            raise

    @classmethod
    def parse(cls, text: str, options: dict[str, str]) -> FabricSpec:
        """`shaped` (2 hosts, 1gbit) or `shaped:hosts=4,rate=317mbit,ranks=2`. Raises SpecError."""
        known_options(text, options, ("hosts", "rate", "ranks"))
        hosts = options.get("hosts", str(MIN_HOSTS))
        if hosts.isdecimal() and not MIN_HOSTS <= int(hosts) <= MAX_HOSTS:
            near = min(max(int(hosts), MIN_HOSTS), MAX_HOSTS)
            raise SpecError(
                f"a shaped fabric needs {MIN_HOSTS} to {MAX_HOSTS} hosts, and {text!r} asks for {hosts}",
                hint=f"try hosts={near}" if hosts != "1" else "try hosts=2, or --fabric local for one machine",
            )
        rate = options.get("rate", DEFAULT_RATE).lower()
        rate_bps = parse_rate(rate)
        if not MIN_RATE_BPS <= rate_bps <= MAX_RATE_BPS:
            near_bps = "1mbit" if rate_bps < MIN_RATE_BPS else "100gbit"
            raise SpecError(
                f"{text!r}: rate={rate} is out of range 1mbit to 100gbit, what links can be held to here",
                hint=f"try rate={near_bps}",
            )
        return FabricSpec(
            name="shaped",
            hosts=parse_int(text, "hosts", hosts, MIN_HOSTS, MAX_HOSTS),
            ranks=parse_int(text, "ranks", options.get("ranks", "1"), 1, MAX_RANKS),
            rate=rate,
        )

    def _slots(self) -> list[HostSlot]:
        slots = []
        for host, cores in enumerate(self._cores_by_host()):
            name, address = links.namespace(self.run_id, host), links.address(host)
            prefix = (
                *(links.tool("ip") or "ip", "netns", "exec", name),
                *links.give_hosts_file(name, address),
                *pinned(cores, links.tool("taskset")),
            )
            env = rank_environment(links.INTERFACE, cores)
            slots.append(HostSlot(host, name, prefix, address, links.INTERFACE, cores, env))
        return slots

    def measure_bandwidth(self) -> float:
        """Goodput [bit/s] of one TCP stream of about 0.8 s from host 1 to host 0, on the hosts' own cores.

        TCP/IP headers take 4.4 % of an Ethernet frame, so 0.956 of the rate is a full link. Well below that, this
        machine's cores are the limit, and a warning says so. Raises FabricError if the stream fails.
        """
        script = [sys.executable, "-I", "-S", str(Path(__file__).with_name("stream.py"))]
        endpoint = [self.hosts[0].address, str(STREAM_PORT)]
        quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
        command = [*self.hosts[0].prefix, *script, "receive", *endpoint, str(STREAM_S)]
        receiver = subprocess.Popen(command, stdin=quiet, stdout=pipe, stderr=pipe, text=True, process_group=0)
        sender: subprocess.Popen[str] | None = None
        try:
            assert receiver.stdout is not None
            if receiver.stdout.readline().strip() == "ready":
                command = [*self.hosts[1].prefix, *script, "send", *endpoint]
                sender = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, text=True, process_group=0)
            output, error_output = receiver.communicate(timeout=STREAM_S + 15)
            measured = float(output)
        except (ValueError, subprocess.TimeoutExpired) as error:
            detail = error_output if isinstance(error, ValueError) else None
            raise FabricError(
                self.diagnose() or "no data came through the link between host 0 and host 1", detail=detail
            ) from None
        finally:
            for process in (receiver, sender):
                if process is not None:
                    process.kill()
                    process.wait()
        self.measured_bps = measured
        requested = parse_rate(self.spec.rate or DEFAULT_RATE)
        if measured < 0.9 * requested:
            self.warnings.append(
                f"the links carry {format_rate(measured)} of the {format_rate(requested)} requested: this machine's "
                "cores limit them, so a lower rate is the more honest experiment"
            )
        return measured

    def free_ports(self, count: int) -> list[int]:
        """Ports never returned before. Only xbench's own processes listen inside host 0."""
        return list(itertools.islice(self._ports, count))

    def diagnose(self) -> str | None:
        """The host whose link is down, as one sentence, or None."""
        return links.link_fault(self.run_id, self.spec.hosts)

    def changed(self) -> str | None:
        """Changes of the links since they were made, as one sentence, or None. Takes about 20 ms."""
        try:
            return link_check.difference(self._raised, link_check.read(self.run_id, self.spec.hosts))
        except FabricError as error:
            return f"the links cannot be read any more: {error}"

    def close(self) -> None:
        """Kill what still runs in the namespaces and remove them; safe to call again, and not interrupted by Ctrl-C."""
        if self._owner is None:
            return
        with interrupts_held():
            remaining: list[str] = []
            for host in [*range(self.spec.hosts), "sw"]:
                name = links.namespace(self.run_id, host)
                if os.path.exists(f"/run/netns/{name}"):
                    try:
                        stale.remove(name)
                    except FabricError:
                        remaining.append(name)
                else:  # deleted by another process, which leaves its hosts file
                    links.remove_hosts_file(name)
            if not remaining:
                self._owner.unlink(missing_ok=True)
            self._owner = None
            atexit.unregister(self.close)
        if remaining:
            raise FabricError(f"{', '.join(remaining)} could not be removed", hint="xbench clean")


@functools.cache
def obstacle() -> str | None:
    """Reason why this process cannot make shaped links, as half a sentence ('iproute2 is not installed'), or None.

    If the tools are installed it makes a real fabric and removes it, because nothing else shows a container's limits.
    """
    for name in ("ip", "tc"):
        if links.tool(name) is None:
            return f"iproute2 is not installed ({name} is missing)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with ShapedFabric(FabricSpec(name="shaped", hosts=MIN_HOSTS, rate=DEFAULT_RATE), secrets.token_hex(3)):
            return None
    except (FabricError, OSError) as error:
        return f"network namespaces cannot be made here ({error})"
