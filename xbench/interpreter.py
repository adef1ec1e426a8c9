"""Garbage collection of programs that have torch, and the children that they start through `multiprocessing`."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager

ENDING_S = 1.0
"""Time for all of them to end by themselves, before they are killed [s]."""


@contextmanager
def uncollected(*, program: bool) -> Iterator[None]:
    """Context for imports of a program in which no garbage is collected, and whose objects later collections leave out.

    Torch and its compiler make a million objects that stay. The collector would search them again and again: a fifth of
    the processor's time of a rank's start. If `program` is False, it does nothing: an interpreter that ends without
    `os._exit` would report the objects that were left out as leaks.
    """
    if not program:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def keep_garbage_from_children() -> None:
    """Keep objects that exist at a fork out of the child's garbage collection, from the first call on.

    Among them may be tensors on a GPU that nothing refers to. CUDA does not work in a forked process, so a child that
    frees such a tensor aborts.
    """
    os.register_at_fork(after_in_child=gc.freeze)


def end_children() -> None:
    """End all of them. A process that leaves by `os._exit` must: nothing else ends its children."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(ENDING_S)
        if child.is_alive():
            child.kill()
            child.join()
