"""Imports without garbage collection, in programs that import torch."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
