"""Horovod's own rendezvous server, for one job: `python -m xbench.horovod.rendezvous HOSTS RANKS_A_HOST ADDRESS`.

Started and owned by the job's rank 0, on whose host it then listens: at ADDRESS, by which the ranks reach it, where
that is an address of this host (see `xbench.listening`), else at all of them, as Horovod's launcher does. It prints its
port. Each line that it reads makes it forget the last meeting, so that the ranks can meet again, and is answered by the
port again; it ends when there is nothing more to read, which is when rank 0 has ended. Horovod's launcher does the same
within its own process. Without being cleared a second initialisation would find the first one's addresses: keys of a
scope are removed when all its ranks have left it, but the server loses count when two scopes end at once.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from xbench.horovod.options import Place, host_name
from xbench.listening import listening_address


def plan(hosts: int, ranks: int) -> list[dict[str, Any]]:
    """The fields of Horovod's SlotInfo for every rank."""
    places = [Place(rank, hosts * ranks, ranks) for rank in range(hosts * ranks)]
    return [
        {
            "hostname": host_name(place.cross_rank),
            "rank": place.rank,
            "local_rank": place.local_rank,
            "cross_rank": place.cross_rank,
            "size": place.size,
            "local_size": place.local_size,
            "cross_size": place.cross_size,
        }
        for place in places
    ]


def listen_at(address: str, server: Any) -> None:
    """Let every server of this class listen at `address`, on the port that it is constructed with (IPv4 and IPv6).

    The class itself is changed: Horovod's constructor names it in `super()`, so a subclass in its place would recurse.
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

    own = listening_address(argv[2], one_host=int(argv[0]) == 1)
    if own is not None:
        listen_at(own, http_server.RendezvousHTTPServer)
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
