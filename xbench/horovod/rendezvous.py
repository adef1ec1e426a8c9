"""Horovod's own rendezvous server, for one job: `python -m xbench.horovod.rendezvous HOSTS RANKS_A_HOST ADDRESS`.

The job's rank 0 starts and owns it, on its host. It listens at ADDRESS, by which the ranks reach it, if that is an
address of this host (see `xbench.listening`), else at all addresses, as Horovod's launcher does. It prints its port.
Each input line makes it forget the last rendezvous, so that the ranks can meet again, and it prints the port again. It
ends at the end of its input, which is the end of rank 0. Horovod's launcher does the same within its own process.
Without being cleared, a second initialisation would find the first one's addresses: keys of a scope are removed when
all its ranks have left it, but the server miscounts when two scopes end at once.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from xbench.horovod import RankPosition
from xbench.listening import listening_address


def plan(hosts: int, ranks: int) -> list[dict[str, Any]]:
    """Fields of Horovod's SlotInfo for every rank."""
    placements = [RankPosition(rank, hosts * ranks, ranks) for rank in range(hosts * ranks)]
    return [
        {
            "hostname": placement.host_name,
            "rank": placement.rank,
            "local_rank": placement.local_rank,
            "cross_rank": placement.cross_rank,
            "size": placement.size,
            "local_size": placement.local_size,
            "cross_size": placement.cross_size,
        }
        for placement in placements
    ]


def listen_at(address: str, server: Any) -> None:
    """Let every server of this class listen at `address`, on the port that it is constructed with (IPv4 and IPv6).

    The class itself is changed: Horovod's constructor names it in `super()`, so a subclass would recurse.
    """
    bind = server.server_bind

    def server_bind(self: Any) -> None:
        self.server_address = (address, self.server_address[1])
        bind(self)

    server.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server.server_bind = server_bind


def main(argv: list[str]) -> None:
    """Serve until the end of input."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http import http_server

    bind_address = listening_address(argv[2], one_host=int(argv[0]) == 1)
    if bind_address is not None:
        listen_at(bind_address, http_server.RendezvousHTTPServer)
    slots = [SlotInfo(**slot) for slot in plan(int(argv[0]), int(argv[1]))]
    server = http_server.RendezvousServer()
    port = server.start()
    server.init(slots)
    print(port, flush=True)
    for _ in sys.stdin:
        server.init(slots)
        print(port, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
