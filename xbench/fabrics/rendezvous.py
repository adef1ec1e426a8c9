"""Rendezvous of ranks that an engine started: rank 0's address and port, and the interface that leads there.

torchrun gives both. For the other engines:

| engine | address | port |
| --- | --- | --- |
| any | MASTER_ADDR, if set | MASTER_PORT, if set |
| srun | the first host of the step | from the job's and the step's number |
| mpirun, mpiexec | this host, if all ranks are on it; else MASTER_ADDR must be set | from the job's name |

A derived port is below the ports that the kernel hands out. If two runs derive the same port on one host, the second
reports it.

Gloo takes the interface of the address to which the host's own name resolves. Debian makes that a loopback address,
which no other host reaches. So the interface is the one that leads to rank 0, unless the user chose one
(GLOO_SOCKET_IFNAME).
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Callable, Mapping

import psutil

from xbench.errors import SpecError
from xbench.fabrics.cluster import ClusterRank, whole_number

FIRST_PORT, PORTS = 20000, 10000
LOOPBACK = "127.0.0.1"

_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "HYDRA_BSTRAP_JOBID", "I_MPI_HYDRA_UUID")


def meeting_point(process: ClusterRank, environ: Mapping[str, str]) -> tuple[str, int]:
    """Rank 0's address and port. Raises SpecError if nothing tells how to reach rank 0."""
    address = environ.get("MASTER_ADDR")
    port = whole_number(environ, "MASTER_PORT", 1, 65535) if environ.get("MASTER_PORT") else None
    if address:
        return address, port or derived_port(process, environ)
    if process.engine == "srun":
        return first_host(environ, process), port or derived_port(process, environ)
    if process.counted and process.local_world_size == process.world_size:
        return LOOPBACK, port or derived_port(process, environ)
    example = {"mpirun": "mpirun -x MASTER_ADDR=node0 …", "mpiexec": "mpiexec -genv MASTER_ADDR node0 …"}
    raise SpecError(
        f"{process.engine} does not tell the {process.world_size} ranks on several hosts how to reach rank 0, and "
        "MASTER_ADDR is not set",
        hint=f"name the first host: {example.get(process.engine, 'MASTER_ADDR=node0')}",
    )


def derived_port(process: ClusterRank, environ: Mapping[str, str]) -> int:
    """A port that all ranks of this job derive alike, and ranks of another job most likely not."""
    if process.engine == "srun":
        name = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    else:
        name = next((environ[variable] for variable in _JOB_NAMES if environ.get(variable)), "")
    if not name and process.counted and process.local_world_size == process.world_size:
        name = str(os.getppid())  # the launcher is the parent of ranks on one host
    return FIRST_PORT + zlib.crc32(name.encode()) % PORTS


def first_host(environ: Mapping[str, str], process: ClusterRank) -> str:
    """The first host of this Slurm step, where its rank 0 is. Raises SpecError if no variable names it."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if process.counted and process.local_world_size == process.world_size:
        return LOOPBACK
    if not nodes:
        raise SpecError(
            "srun's environment lacks SLURM_STEP_NODELIST, so nothing says where rank 0 is",
            hint="export MASTER_ADDR=$(scontrol show hostnames | head -n 1)",
        )
    return expanded(nodes)[0]


def expanded(nodes: str) -> list[str]:
    """The hosts of a Slurm list: 'gpu[01-03,7],login' is gpu01, gpu02, gpu03, gpu7, login.

    Raises SpecError for an invalid list.
    """
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes)
    if not parts or ",".join(parts) != nodes:
        raise SpecError(f"{nodes!r} is not a list of hosts as Slurm writes them", hint="set MASTER_ADDR")
    return [host for part in parts for host in _hosts_of(part, nodes)]


def _hosts_of(part: str, nodes: str) -> list[str]:
    match = re.search(r"\[([^\[\]]*)\]", part)
    if match is None:
        return [part]
    before, after = part[: match.start()], part[match.end() :]
    numbers: list[str] = []
    for span in match[1].split(","):
        low, dash, high = span.partition("-")
        if not (low.isascii() and low.isdigit()) or (dash and not (high.isascii() and high.isdigit())):
            raise SpecError(f"{nodes!r} is not a list of hosts as Slurm writes them", hint="set MASTER_ADDR")
        last = int(high) if dash else int(low)
        numbers += [str(number).zfill(len(low)) for number in range(int(low), last + 1)]
    return [host for number in numbers for host in _hosts_of(f"{before}{number}{after}", nodes)]


def address_towards(target: str) -> str | None:
    """This host's address on the way to `target`, or None without a way. No packet is sent."""
    try:
        family, kind, protocol, _, target_address = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target_address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    """True if only this host itself is reached by the address."""
    return address.startswith("127.") or address == "::1"


def interface_of(address: str, listing: Callable[[], Mapping[str, list[object]]] | None = None) -> str | None:
    """The network device that has an address, or None."""
    devices: Mapping[str, list[object]] = (listing or psutil.net_if_addrs)()  # type: ignore[assignment]
    for name, entries in devices.items():
        if any(str(getattr(entry, "address", "")).partition("%")[0] == address for entry in entries):
            return name
    return None


def chosen_interface(own_address: str | None, others: list[str]) -> str | None:
    """The interface for collectives, or None if Gloo's own choice works.

    `own_address` is this host's address on the way to rank 0. It is loopback on rank 0's own host. If `others`, the
    addresses of ranks on other hosts, then contain other hosts, the result is the interface that leads to the first of
    them.
    """
    if own_address is not None and not is_loopback(own_address):
        return interface_of(own_address)
    other_host = next((address for address in others if not is_loopback(address)), None)
    local_address = address_towards(other_host) if other_host is not None else None
    return interface_of(local_address) if local_address is not None and not is_loopback(local_address) else None
