"""Imports without garbage collection, in processes that import torch."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Context for imports in which no garbage is collected, and whose objects later collections leave out.

    Torch and its compiler make a million objects that stay. The collector would search them again and again: a fifth of
    the processor's time of a rank's start.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
