"""Horovod's own rendezvous server, for one job: `python -m xbench.horovod.rendezvous HOSTS RANKS_A_HOST`.

Started and owned by the job's rank 0, on whose host it then listens. It prints its port. Each line that it reads makes
it forget the last meeting, so that the ranks can meet again, and is answered by the port again; it ends when there is
nothing more to read, which is when rank 0 has ended. Horovod's launcher does the same within its own process. Without
being cleared a second initialisation would find the first one's addresses: keys of a scope are removed when all its
ranks have left it, but the server loses count when two scopes end at once.
"""

from __future__ import annotations

import sys
from typing import Any

from xbench.horovod.options import Place, host_name


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


def main(argv: list[str]) -> None:
    """Serve until the end of input."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer

    slots = [SlotInfo(**slot) for slot in plan(int(argv[0]), int(argv[1]))]
    server = RendezvousServer()
    port = server.start()
    server.init(slots)
    print(port, flush=True)
    for _ in sys.stdin:
        server.init(slots)
        print(port, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
