"""Collectives that torch's own schedules call, observed one by one."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.schedules.engine import Watch

SHARDED = {
    "all_gather_single": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_single": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "all_reduce": "all-reduce",
}
"""Kind of collective by function of `torch.distributed`, for `fully_shard`. Versions of torch differ in some names."""

BROADCASTS = {"broadcast": "broadcast"}
"""The same for ZeroRedundancyOptimizer."""


def watch_calls(watch: Watch, kinds: Mapping[str, str]) -> Callable[[], None]:
    """Start the collectives of `kinds` through `watch` from now on, in the whole process. Returns what undoes this.

    A call that waits for its collective still does: it starts it, and waits. Its bytes are those of its largest tensor.
    """
    return _replaced(kinds, lambda name, inner: _watched(inner, kinds[name], watch))


@contextlib.contextmanager
def calls_timed(kinds: Iterable[str]) -> Iterator[Callable[[], float]]:
    """Time the host's calls of the collectives of `kinds` from now on. Gives a function of their time so far [s]."""
    spent_s = 0.0

    def timed(_name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*positional: Any, **named: Any) -> Any:
            nonlocal spent_s
            begin_s = time.perf_counter()
            result = inner(*positional, **named)
            spent_s += time.perf_counter() - begin_s
            return result

        return call

    undo = _replaced(kinds, timed)
    try:
        yield lambda: spent_s
    finally:
        undo()


def _replaced(names: Iterable[str], wrapped: Callable[[str, Callable[..., Any]], Any]) -> Callable[[], None]:
    """Put `wrapped(name, function)` in the place of functions of `torch.distributed`. Returns what undoes this."""
    there = {name: getattr(dist, name) for name in names if hasattr(dist, name)}

    def undo() -> None:
        for name, inner in there.items():
            setattr(dist, name, inner)

    for name, inner in there.items():
        setattr(dist, name, wrapped(name, inner))
    return undo


def _watched(inner: Callable[..., Any], kind: str, watch: Watch) -> Callable[..., Any]:
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def call(*positional: Any, **named: Any) -> Any:
        given = signature.bind(*positional, **named)
        given.apply_defaults()
        returns_work = given.arguments["async_op"]
        given.arguments["async_op"] = True
        nbytes = max(value.nbytes for value in given.arguments.values() if isinstance(value, Tensor))

        def start() -> Any:
            work = inner(*given.args, **given.kwargs)
            return work if returns_work else _AwaitedAtOnce(work)

        work = watch(nbytes, start, kind)
        if returns_work:
            return work
        work.wait()
        return None

    return call


class _AwaitedAtOnce:
    """A collective whose wait begins with it, and ends when it is complete. Gloo's all-gather has no future."""

    def __init__(self, work: dist.Work) -> None:
        self._work = work
        self._complete: torch.futures.Future[None] = torch.futures.Future()
        self.is_completed = work.is_completed

    def wait(self) -> bool:
        """Wait for the collective."""
        done = self._work.wait()
        self._complete.set_result(None)
        return done

    def get_future(self) -> torch.futures.Future[None]:
        """A future that is complete when the wait is over."""
        return self._complete
