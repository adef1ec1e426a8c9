"""Pieces that ranks send each other at the same time, in both directions of a link: what Gloo's all-to-all is not.

Before a large message Gloo's sender waits to hear that the receiver has a buffer for it, on the connection that carries
the data. Its all-to-all starts to send before it says that it can receive. Where one rank is some milliseconds behind
the other, the other's buffer is known to it already, so all of its data goes out before its own announcement, and the
link carries one direction and then the other: between shaped hosts at 1 Gbit/s an exchange of 4.7 MB each way takes 57
ms where one rank is 5 ms late, in place of 44, and four in a row take 286 ms in place of 160
(`python benchmarks/exchange.py`, results/exchange.json).

Here the receives are posted first, and then the sends, by Gloo's own point-to-point calls. Those tell nobody when they
are done, so one thread of the process waits for one exchange after the other, in the order of their launches.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.host.tuning import are_gloo_threads_raised, raise_thread

Share = tuple[int, Tensor]
"""A rank of the group, and what it is sent or what it fills."""


class PairwiseAllToAll:
    """Sends and receives of one launch, under way; see `bucket.Work`. `tag`: of nothing else under way."""

    def __init__(self, group: dist.ProcessGroup, sends: Sequence[Share], receives: Sequence[Share], tag: int) -> None:
        self._works = [group.recv([tensor], rank, tag) for rank, tensor in receives]
        self._works += [group.send([tensor], rank, tag) for rank, tensor in sends]
        self._future: torch.futures.Future[None] = torch.futures.Future()
        _WAITER.see_home(self)

    def arrive(self) -> None:
        """Wait for all of it, and tell: on the waiting thread."""
        try:
            for work in self._works:
                work.wait()
        except Exception as error:  # for whoever waits for the future
            self._future.set_exception(error)  # type: ignore[arg-type]
        else:
            self._future.set_result(None)

    def wait(self) -> bool:
        """Return when it has arrived. Raises what it failed with."""
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future[None]:
        """Done on arrival."""
        return self._future


class _CompletionThread:
    """The thread that waits: started with the first exchange, first where Gloo's threads are first, never stopped."""

    def __init__(self) -> None:
        self._coming: queue.SimpleQueue[PairwiseAllToAll] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def see_home(self, exchange: PairwiseAllToAll) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="xbench-exchange", daemon=True)
            self._thread.start()
            if self._thread.native_id is not None and are_gloo_threads_raised():
                with suppress(OSError):
                    raise_thread(self._thread.native_id)
        self._coming.put(exchange)

    def _run(self) -> None:
        while True:
            self._coming.get().arrive()


_WAITER = _CompletionThread()
