"""End of the processes that this one has started through `multiprocessing`, such as a data loader's workers."""

from __future__ import annotations

import multiprocessing

ENDING_S = 1.0
"""Time for all of them to end by themselves, before they are killed [s]."""


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
