"""Deferral of signals that ask to stop: clean-up and saving always run to their end, and the signal takes effect then.

SIGTERM and SIGHUP become KeyboardInterrupt, as Ctrl-C is, so that `timeout 60 xbench compare` and a closed terminal
unwind in the same way. `interrupts_held` defers all three. A flow that measures holds them from its first launch to the
end of its save, and lets them through while it measures:

    with interrupts_held() as held:
        try:
            with held.let_through():
                measure()
        except KeyboardInterrupt:
            ...
        save()

Contexts nest. Signals deferred by an inner one are passed to the outer one when the inner one ends. Python delivers
signals to the main thread alone, so in any other thread these contexts do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from xbench.errors import Interrupted

_STOPPING = (signal.SIGTERM, signal.SIGHUP)
_ALL = (signal.SIGINT, *_STOPPING)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, unless they are ignored (as under nohup) or handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPPING}
    replaced = [number for number, handler in before.items() if handler in (signal.SIG_DFL, None)]
    for number in replaced:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def ignore_interrupts() -> None:
    """Ignore all of these signals from now on: the process is at its end, and its exit code is final."""
    for number in _ALL:
        signal.signal(number, signal.SIG_IGN)


class DeferredSignals:
    """The deferred signals of one `interrupts_held`."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._open = False

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Inside, the first signal raises KeyboardInterrupt. Later ones wait, so that nothing interrupts it."""
        self._open = True
        if self._received:
            self._open = False
            raise KeyboardInterrupt(signal.Signals(self._received[0]).name)
        try:
            yield
        finally:
            self._open = False

    @property
    def count(self) -> int:
        """Number of signals so far that nobody handled."""
        return len(self._received)

    def interrupted(self) -> Interrupted | None:
        """The error for a deferred signal, which counts as handled then; None without one."""
        received, self._received = self._received, []
        return Interrupted("interrupted") if received else None

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._open:
            self._open = False
            _interrupt(number, frame)
        self._received.append(number)


@contextmanager
def interrupts_held() -> Iterator[DeferredSignals]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP wait. Then the former handler gets them, or KeyboardInterrupt is raised."""
    held = DeferredSignals()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    before = {number: signal.getsignal(number) for number in _ALL}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, held._take)
    try:
        yield held
    except BaseException:
        outer = getattr(before[signal.SIGINT], "__self__", None)
        if isinstance(outer, DeferredSignals):  # it gets the signal, but the exception continues
            outer._received += held._received
        held._received.clear()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    if held._received:
        first = signal.Signals(held._received[0])
        handler = before[first]
        if not callable(handler) or handler is signal.default_int_handler:
            handler = _interrupt
        handler(first, None)
