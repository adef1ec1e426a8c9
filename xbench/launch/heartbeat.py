"""Heartbeat of ranks that another launcher started: detect a rank's end, and send its measurements to rank 0.

Under our own launcher the parent watches the ranks. Here every rank has a thread. Every BEAT_S it sends new events of
the rank's journal to rank 0, so that they are not lost with the rank, and reports at the store that the rank lives, and
its note. On rank 0 it lets the judge of every launch (`launch.monitor`) read the reports of all ranks. On all others it
ends its process when rank 0 reports the end, or has disappeared.

A rank that fails reports why, then waits until rank 0 has recorded it. Most launchers end every rank as soon as one has
ended badly. A rank is gone if it has not beaten for the user's --timeout, or for GONE_S if others have lost it.

A process that hangs in a collective does not react to a request to end, so the thread ends it. On rank 0, `abandon`
saves the record first. Signals interrupt Python code only, so they also reach the thread through a pipe. The module
needs no torch: any store with the methods of torch.distributed's works.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from xbench.errors import Interrupted, RankError, XbenchError
from xbench.launch.monitor import AgentWatch, Monitor, Probes, RankWatch, Reader, raised
from xbench.launch.rendezvous import RankAssignment
from xbench.rank.events import Event, RankFailed, parse
from xbench.rank.journal import JournalReader, Take

BEAT_S = 1.0
GONE_S = 4 * BEAT_S
"""A rank that its peers have lost is gone if it has not beaten for this long [s]."""

VANISHED = "disappeared: it, or its host, ended without a word"

SIGNAL_S = 0.5
"""Time for a signal's handler to act in the main thread before the thread ends the process [s]."""

TAKEN_S = 15.0
"""Time that a rank that failed waits for rank 0 to record its failure [s]."""

BYE_S = 10.0
"""Time that rank 0 keeps the store for ranks that have not yet read the result [s]."""


class StoredJournal:
    """Journal of another rank, as far as its reports at the store have come. Times are those of `clock`."""

    job = 0

    def __init__(self, store: Any, rank: int, clock: Callable[[], float]) -> None:
        self.rank = rank
        self.beat_s = clock()
        """Time of the last beat [s]."""
        self.done = False
        self._store, self._clock = store, clock
        self._beat, self._taken = -1, 0
        self._note: list[Any] | None = None
        self._noted: tuple[float, str] | None = None

    def poll(self) -> list[Event]:
        """Return the events since the last poll. Raises RuntimeError if the store is gone."""
        if not self._store.check([f"alive/{self.rank}"]):
            return []
        beat, note, sent, self.done = json.loads(self._store.get(f"alive/{self.rank}"))
        if beat != self._beat:
            self._beat, self.beat_s = beat, self._clock()
        if note != self._note:
            self._note, self._noted = note, (self._clock(), note[1])
        keys = [f"events/{self.rank}/{number}" for number in range(self._taken, sent)]
        events = [parse(text) for text in self._store.multi_get(keys)] if keys else []
        for key in keys:
            self._store.delete_key(key)
        self._taken = sent
        return events

    def state(self) -> tuple[float, str] | None:
        """Return the last note and the time of its arrival [s], or None before the first."""
        return self._noted


@dataclass
class HeartbeatMonitor:
    """Monitor in one rank. `start` begins the thread; `finish` or `fail` ends it. Tests call `beat` themselves."""

    rank: int
    seats: Sequence[RankAssignment]
    store: Any
    reader: JournalReader
    silence_s: float
    take: Take
    """Rank 0: takes (job, rank in the job, event) for every event of every rank, from the thread or the main thread."""
    abandon: Callable[[XbenchError], NoReturn]
    """Rank 0: saves the record and ends the process."""
    clock: Callable[[], float] = time.monotonic
    leave: Callable[[int], Any] = os._exit
    _beats: int = 0
    _sent: int = 0
    _done: bool = False
    _zero: tuple[int, float] = (-1, 0.0)
    _closing: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _pipe: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._zero = (-1, self.clock())
        self._others = [StoredJournal(self.store, rank, self.clock) for rank in range(1, len(self.seats))]
        readers: list[Reader] = [self.reader, *self._others]
        watches = [RankWatch(one, 0, seat.host_name) for one, seat in zip(readers, self.seats, strict=True)]
        probes = Probes(
            self.clock,
            alive=lambda rank: self._unseen_s(rank) <= self.silence_s,
            state=lambda rank: "T" if self._unseen_s(rank) >= GONE_S else None,
            notices_s=GONE_S,
            vanished=VANISHED,
        )
        agents = [AgentWatch(0, str, 0)]  # no log, and no end that we see
        self._monitor = Monitor(watches, agents, self.take, self.silence_s, probes, start_s=self.silence_s)

    def _unseen_s(self, rank: RankWatch) -> float:
        """Time since the last beat of a rank [s]; 0 for rank 0, whose beat this is."""
        return self.clock() - rank.reader.beat_s if isinstance(rank.reader, StoredJournal) else 0.0

    # --- the thread --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to beat. Call it from the main thread, where signals are handled."""
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="xbench-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.beat()
            except Exception as error:
                if self._stop.is_set():
                    return
                self._lost(error)
                return
            if self._signalled(BEAT_S):
                self._end_by_signal()

    def _signalled(self, seconds: float) -> bool:
        """Sleep, and return whether a signal that ends the process has arrived."""
        if self._pipe is None:
            self._stop.wait(seconds)
            return False
        ready, _, _ = select.select([self._pipe[0]], [], [], seconds)
        if not ready or self._stop.is_set():
            return False
        came = os.read(self._pipe[0], 64)
        return any(number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) for number in came)

    def _end_by_signal(self) -> None:
        """Give the main thread time to close by itself; else end the process."""
        if self._stop.wait(SIGNAL_S):
            return
        if not self._closing.acquire(blocking=False):
            return
        if self.rank == 0:
            self._over("rank 0 was interrupted")
            self.abandon(Interrupted("interrupted"))
        self.leave(130)

    def _lost(self, error: Exception) -> None:
        """Handle the loss of the store. On ranks other than 0 it means that rank 0 is gone."""
        if not self._closing.acquire(blocking=False):
            return
        said = f"the store at which the ranks meet is gone ({(str(error).splitlines() or [''])[0][:120]})"
        if self.rank == 0:
            self.abandon(RankError(said))
        self._say(said)
        self.leave(1)

    def beat(self) -> None:
        """Send and report once, then judge (rank 0) or obey. Raises RuntimeError if the store is gone."""
        self._post()
        if self.rank == 0:
            self._judge()
        else:
            self._obey()

    def _post(self, *failure: RankFailed) -> None:
        """Send new events of the journal, and report that the rank lives. Rank 0 reads its own journal."""
        for event in [*self.reader.poll(), *failure] if self.rank > 0 else []:
            self.store.set(f"events/{self.rank}/{self._sent}", event.line())
            self._sent += 1
        self._beats += 1
        said = [self._beats, self.reader.state(), self._sent, self._done]
        self.store.set(f"alive/{self.rank}", json.dumps(said))

    # --- rank 0 ------------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """End the launch if a rank failed or no rank moves."""
        error = self._verdict()
        if error is None or not self._closing.acquire(blocking=False):
            return  # the main thread may be closing already
        self._over(str(error))
        self.abandon(error)

    def _verdict(self) -> XbenchError | None:
        self._monitor.drain()  # reads the beats, so that a pause of this process makes nobody seem gone
        verdict = self._monitor.poll()
        return verdict.error if verdict is not None else None

    def _over(self, why: str) -> None:
        with contextlib.suppress(Exception):
            self.store.set("over", why)

    # --- all others --------------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        now = self.clock()
        if self.store.check(["over"]):
            if self._closing.acquire(blocking=False):
                self._bye()
                self.leave(1)
            return
        if self.store.check(["alive/0"]):
            beat = int(json.loads(self.store.get("alive/0"))[0])
            if beat != self._zero[0]:
                self._zero = (beat, now)
        if now - self._zero[1] > self.silence_s + GONE_S and self._closing.acquire(blocking=False):
            self._say(f"rank 0 gave no sign of life for {self.silence_s:g} s")
            self.leave(1)

    def _say(self, what: str) -> None:
        """Print one line from a rank that cannot report through the store."""
        print(f"xbench rank {self.rank}: {what}", file=sys.stderr, flush=True)

    # --- the end, from the main thread -------------------------------------------------------------------------------

    def finish(self) -> None:
        """End after the work is done. Rank 0 returns with all events; the others return when it has them.

        Raises RankError on rank 0 if a rank failed or did not finish, RuntimeError if the store is gone.
        """
        self._close()
        self._done = True
        self._post()
        if self.rank > 0:
            self._wait_for("over", self.silence_s + GONE_S)
            self._bye()
            return
        deadline = self.clock() + self.silence_s + GONE_S
        while True:
            error = self._verdict()
            if all(one.done for one in self._others):
                break
            if error is None and self.clock() > deadline:
                error = RankError("not every rank came to the end")
            if error is not None:
                self._over(str(error))
                raise error
            self._post()
            time.sleep(BEAT_S / 5)
        self._over("")
        self._wait_for_byes(BYE_S)

    def fail(self, failure: RankFailed) -> XbenchError:
        """Report that this rank's main thread failed, and return the error.

        On rank 0 the error is the cause, after all reports were collected. The others return once rank 0 has recorded
        the failure. If rank 0 is gone, they print it.
        """
        self._close()
        own = self._monitor.ranks[self.rank]
        own.error = failure
        error = raised(own, failure).error
        try:
            self._post(failure)
            if self.rank == 0:
                return self._heard()
            self._wait_for("over", TAKEN_S)
            self._bye()
        except Exception:
            if self.rank > 0:
                self._say(str(error))
        return error

    def interrupted(self) -> None:
        """Report to the others that the user stopped this rank."""
        self._close()
        with contextlib.suppress(Exception):
            self._post(RankFailed(message="KeyboardInterrupt", said="was interrupted"))
            if self.rank == 0:
                self._monitor.drain()
                self._over("interrupted")

    def _heard(self) -> XbenchError:
        """Collect reports for as long as others may send any, then end them."""
        while (error := self._verdict()) is None:
            time.sleep(BEAT_S / 5)
        self._over(str(error))
        self._wait_for_byes(BEAT_S + SIGNAL_S)
        return error

    def _bye(self) -> None:
        """Count this rank as finished with the store. The store ends with rank 0."""
        with contextlib.suppress(Exception):
            self.store.add("byes", 1)

    def _wait_for_byes(self, seconds: float) -> None:
        """Keep the store until the others have finished with it, or `seconds` have passed."""
        deadline = self.clock() + seconds
        with contextlib.suppress(Exception):
            while self.store.add("byes", 0) < len(self.seats) - 1 and self.clock() < deadline:
                time.sleep(BEAT_S / 20)

    def _wait_for(self, key: str, seconds: float) -> None:
        deadline = self.clock() + seconds
        while not self.store.check([key]) and self.clock() < deadline:
            time.sleep(BEAT_S / 20)

    def _close(self) -> None:
        """Give all decisions to the main thread. Block for ever if the thread is ending the process."""
        self._closing.acquire()
        self._stop.set()
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            os.write(self._pipe[1], b"\0")
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._pipe is not None:
            for end in self._pipe:
                os.close(end)
            self._pipe = None
