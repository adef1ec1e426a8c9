"""Pairwise exchange between ranks, in both directions of a link at the same time, unlike Gloo's all-to-all.

Before a large message Gloo's sender waits until the receiver has announced a buffer for it, on the connection that
carries the data. Gloo's all-to-all starts to send before it announces its own buffer. Suppose one rank is some
milliseconds behind the other. The other already knows its buffer, so all of the other's data is sent before the other's
own announcement, and the link carries one direction after the other. Between shaped hosts at 1 Gbit/s, an exchange of
4.7 MB each way takes 57 ms instead of 44 where one rank is 5 ms late. Four in a row take 286 ms instead of 160 (`python
benchmarks/exchange.py`, results/exchange.json).

Here the receives are posted first, and then the sends, by Gloo's own point-to-point calls. Those have no callback on
completion. So one thread of the process waits for one exchange after the other, in launch order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.host_tuning import are_gloo_threads_raised, raise_thread

Share = tuple[int, Tensor]
"""A rank of the group, and the tensor that it is sent or that it fills."""


class PairwiseAllToAll:
    """Sends and receives of one launch, in flight; see `bucket.Work`. `tag` is unique among those in flight."""

    def __init__(self, group: dist.ProcessGroup, sends: Sequence[Share], receives: Sequence[Share], tag: int) -> None:
        self._works = [group.recv([tensor], rank, tag) for rank, tensor in receives]
        self._works += [group.send([tensor], rank, tag) for rank, tensor in sends]
        self._future: torch.futures.Future[None] = torch.futures.Future()
        _WAITER.watch_to_completion(self)

    def arrive(self) -> None:
        """Wait for all transfers and complete the future; runs on the waiting thread."""
        try:
            for work in self._works:
                work.wait()
        except Exception as error:  # raised in the thread that waits for the future
            self._future.set_exception(error)  # type: ignore[arg-type]
        else:
            self._future.set_result(None)

    def wait(self) -> bool:
        """Return when all transfers have completed. Raises their error."""
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """True if `wait` would return at once."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future[None]:
        """A future that is done on arrival."""
        return self._future


class _CompletionThread:
    """The waiting thread. It starts with the first exchange, never stops, and has the priority of Gloo's threads."""

    def __init__(self) -> None:
        self._coming: queue.SimpleQueue[PairwiseAllToAll] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch_to_completion(self, exchange: PairwiseAllToAll) -> None:
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
