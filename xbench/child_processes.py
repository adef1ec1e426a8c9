"""Processes that this one starts through `multiprocessing`, such as a data loader's workers."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os

ENDING_S = 1.0
"""Time for all of them to end by themselves, before they are killed [s]."""


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
