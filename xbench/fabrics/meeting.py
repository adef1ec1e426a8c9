"""Where ranks that somebody else started meet: rank 0's address and port, and the interface that leads there.

torchrun says both. The other engines do not, so:

| engine | address | port |
| --- | --- | --- |
| any | MASTER_ADDR, if set | MASTER_PORT, if set |
| srun | the first host of the step | from the job's and the step's number |
| mpirun, mpiexec | this host, when all ranks are on it; else MASTER_ADDR must be set | from the job's name |
| horovodrun | what rank 0 leaves with horovodrun's rendezvous server (HTTP, /scope/key) | as the address |

A port that is derived lies below what the kernel hands out by itself. Two runs that derive the same one on one host are
told so by the one that comes second.

Gloo takes the interface of the address that the host's own name resolves to, which Debian makes a loopback address: no
other host reaches it. So unless the user chose one (GLOO_SOCKET_IFNAME), it is the interface that leads to rank 0.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import time
import zlib
from collections.abc import Callable, Mapping

import psutil

from xbench.errors import RunError, SpecError
from xbench.fabrics.engines import ClusterRank, whole_number

FIRST_PORT, PORTS = 20000, 10000
SCOPE, KEY = "xbench", "rank0"
POLL_S = 0.2
LOOPBACK = "127.0.0.1"

_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "HYDRA_BSTRAP_JOBID", "I_MPI_HYDRA_UUID")


def meeting_point(ours: ClusterRank, environ: Mapping[str, str], *, patience_s: float = 120.0) -> tuple[str, int]:
    """Rank 0's address and port. Blocks for horovodrun's ranks, until rank 0 has left them there.

    Raises SpecError where nothing says how rank 0 is reached, RunError when rank 0 does not come.
    """
    address = environ.get("MASTER_ADDR")
    port = whole_number(environ, "MASTER_PORT", 1, 65535) if environ.get("MASTER_PORT") else None
    if address:
        return address, port or derived_port(ours, environ)
    if ours.engine == "srun":
        return first_host(environ, ours), port or derived_port(ours, environ)
    if ours.engine == "horovodrun" and environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        return _by_rendezvous(ours, environ, port, patience_s)
    if ours.counted and ours.local_world_size == ours.world_size:
        return LOOPBACK, port or derived_port(ours, environ)
    how = {"mpirun": "mpirun -x MASTER_ADDR=node0 …", "mpiexec": "mpiexec -genv MASTER_ADDR node0 …"}
    raise SpecError(
        f"{ours.engine} does not tell the {ours.world_size} ranks on several hosts how to reach rank 0, and "
        "MASTER_ADDR is not set",
        hint=f"name the first host: {how.get(ours.engine, 'MASTER_ADDR=node0')}",
    )


def check_meeting_point(ours: ClusterRank, environ: Mapping[str, str]) -> None:
    """Raise the SpecError that `meeting_point` would, without asking anybody."""
    if environ.get("MASTER_ADDR") or ours.engine != "horovodrun" or not environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        meeting_point(ours, environ)


def derived_port(ours: ClusterRank, environ: Mapping[str, str]) -> int:
    """A port that all ranks of this job derive alike, and ranks of another job most likely not."""
    if ours.engine == "srun":
        name = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    else:
        name = next((environ[one] for one in _JOB_NAMES if environ.get(one)), "")
    if not name and ours.counted and ours.local_world_size == ours.world_size:
        name = str(os.getppid())  # of ranks on one host the launcher is the parent
    return FIRST_PORT + zlib.crc32(name.encode()) % PORTS


def first_host(environ: Mapping[str, str], ours: ClusterRank) -> str:
    """The first host of our Slurm step, where its rank 0 is. Raises SpecError when no variable names it."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if ours.counted and ours.local_world_size == ours.world_size:
        return LOOPBACK
    if not nodes:
        raise SpecError(
            "srun's environment lacks SLURM_STEP_NODELIST, so nothing says where rank 0 is",
            hint="export MASTER_ADDR=$(scontrol show hostnames | head -n 1)",
        )
    return expanded(nodes)[0]


def expanded(nodes: str) -> list[str]:
    """The hosts of a Slurm list: 'gpu[01-03,7],login' is gpu01, gpu02, gpu03, gpu7, login.

    Raises SpecError for what is no such list.
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
    for piece in match[1].split(","):
        low, dash, high = piece.partition("-")
        if not (low.isascii() and low.isdigit()) or (dash and not (high.isascii() and high.isdigit())):
            raise SpecError(f"{nodes!r} is not a list of hosts as Slurm writes them", hint="set MASTER_ADDR")
        last = int(high) if dash else int(low)
        numbers += [str(number).zfill(len(low)) for number in range(int(low), last + 1)]
    return [host for number in numbers for host in _hosts_of(f"{before}{number}{after}", nodes)]


def _by_rendezvous(
    ours: ClusterRank, environ: Mapping[str, str], port: int | None, patience_s: float
) -> tuple[str, int]:
    """Rank 0 leaves its address with horovodrun's server, and the others read it there."""
    server = environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    number = environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    if not number:
        raise SpecError("the ranks of horovodrun lack the environment variable HOROVOD_GLOO_RENDEZVOUS_PORT")
    where = (server, whole_number(environ, "HOROVOD_GLOO_RENDEZVOUS_PORT", 1, 65535))
    if ours.rank == 0:
        own = LOOPBACK if ours.local_world_size == ours.world_size else address_towards(server) or server
        port = port or free_port()
        _request(where, "PUT", f"{own} {port}".encode())
        return own, port
    deadline = time.monotonic() + patience_s
    while (said := _request(where, "GET")) is None:
        if time.monotonic() > deadline:
            raise RunError(f"rank 0 did not tell horovodrun's rendezvous server its address within {patience_s:g} s")
        time.sleep(POLL_S)
    own, _, text = said.decode().partition(" ")
    return own, int(text)


def _request(where: tuple[str, int], method: str, body: bytes | None = None) -> bytes | None:
    """The answer's content, None for a key that is not there. Raises RunError when nobody answers."""
    connection = http.client.HTTPConnection(*where, timeout=10)
    try:
        connection.request(method, f"/{SCOPE}/{KEY}", body=body)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise RunError(
            f"horovodrun's rendezvous server at {where[0]}:{where[1]} does not answer: {error}",
            hint="set MASTER_ADDR and MASTER_PORT to do without it",
        ) from None
    finally:
        connection.close()
    return content if answer.status == 200 else None


def free_port() -> int:
    """A port on which this host can listen now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def address_towards(target: str) -> str | None:
    """Our own address on the way to `target`, or None where there is no way; no packet is sent."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    """Whether only this host itself is reached by an address."""
    return address.startswith("127.") or address == "::1"


def interface_of(address: str, listing: Callable[[], Mapping[str, list[object]]] | None = None) -> str | None:
    """The network device that has an address, or None."""
    found: Mapping[str, list[object]] = (listing or psutil.net_if_addrs)()  # type: ignore[assignment]
    for name, entries in found.items():
        if any(str(getattr(entry, "address", "")).partition("%")[0] == address for entry in entries):
            return name
    return None


def chosen_interface(own: str | None, others: list[str]) -> str | None:
    """The interface for collectives, or None where Gloo's own choice will do.

    `own` is our address on the way to rank 0. Where that is loopback (on rank 0's own host) and `others`, the addresses
    of ranks on other hosts, say that there are such, it is the way to the first of them.
    """
    if own is not None and not is_loopback(own):
        return interface_of(own)
    there = next((address for address in others if not is_loopback(address)), None)
    towards = address_towards(there) if there is not None else None
    return interface_of(towards) if towards is not None and not is_loopback(towards) else None
