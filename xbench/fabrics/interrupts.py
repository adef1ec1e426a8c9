"""Signals while a fabric is up: asking to stop always runs the clean-up, and never cuts it short.

SIGTERM and SIGHUP become KeyboardInterrupt, as Ctrl-C is, so that `timeout 60 xbench compare` and a closed terminal
unwind the same way. During clean-up all three wait until it is done. Python delivers signals to the main thread alone,
so in any other thread both context managers do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGTERM, signal.SIGHUP)
_ALL = (signal.SIGINT, *_STOPPING)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt (one that was ignored, as under nohup, stays ignored)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPPING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP wait; one that came is raised as KeyboardInterrupt at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _ALL}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    if came:
        raise KeyboardInterrupt(signal.Signals(came[0]).name)
