"""Heartbeat of ranks that another launcher started: detect a rank's end, and send its measurements to rank 0.

Under our own launcher the parent watches the ranks. Here no parent does, so every rank has a thread. Every BEAT_S it

- sends new events of the rank's journal to rank 0, so that they are not lost with the rank;
- reports at the store that the rank lives, and whether it has moved (its journal or its note has changed);
- on rank 0: reads the reports of the others and judges them;
- on all others: ends its process when rank 0 reports the end, or has disappeared.

A rank that fails reports why, then waits until rank 0 has recorded it. Most launchers end every rank as soon as one has
ended badly. Rank 0 waits COLLECT_S for further reports. As `launch.monitor` does, it prefers a rank with an error of
its own, then one that disappeared without a report, and last one that lost its peers. Silence is judged as there: no
beat of a rank, or no move of any rank, for the user's --timeout.

A process that hangs in a collective does not react to a request to end, so the thread ends it. On rank 0, `abandon`
saves the record first. Signals interrupt Python code only, so they also reach the thread through a pipe. Messages are
small (a block's time stamps), and nothing runs between beats. The module needs no torch: any store with the methods of
torch.distributed's works.
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
from xbench.launch.monitor import silent_error
from xbench.launch.rendezvous import RankAssignment
from xbench.rank.events import parse
from xbench.rank.journal import JournalReader, Take

BEAT_S = 1.0
COLLECT_S = 1.5
GONE_S = 4 * BEAT_S
"""A rank that its peers have lost is gone if it has not beaten for this long [s]."""

SIGNAL_S = 0.5
"""Time for a signal's handler to act in the main thread before the thread ends the process [s]."""

TAKEN_S = 15.0
"""Time that a rank that failed waits for rank 0 to record its failure [s]."""

BYE_S = 10.0
"""Time that rank 0 keeps the store for ranks that have not yet read the result [s]."""

OWN, GONE, LOST_PEERS = range(3)
"""Distance of a sign of trouble from the root cause. The smallest wins."""


@dataclass
class _Seen:
    """State of a rank as rank 0 knows it."""

    beat: int = -1
    beat_s: float = 0.0
    moves: int = -1
    doing: str = ""
    taken: int = 0
    done: bool = False
    failure: tuple[int, str, str | None] | None = None


@dataclass
class Survey:
    """States of all ranks as rank 0 knows them. `read` reads the store once."""

    seats: Sequence[RankAssignment]
    store: Any
    silence_s: float
    take: Take
    """Takes (job, rank in the job, event) for every new event."""
    clock: Callable[[], float]
    seen: list[_Seen] = field(default_factory=list)
    moved_s: float = 0.0

    def __post_init__(self) -> None:
        self.moved_s = self.clock()
        self.seen = [_Seen(beat_s=self.moved_s) for _ in self.seats]

    @property
    def failed(self) -> bool:
        """True if any rank has reported a failure."""
        return any(seen.failure is not None for seen in self.seen)

    def read(self) -> None:
        """Read the reports of all ranks."""
        now = self.clock()
        come = [rank for rank, seen in enumerate(self.seen) if seen.beat >= 0 or self.store.check([f"alive/{rank}"])]
        for rank, said in zip(come, self.store.multi_get([f"alive/{rank}" for rank in come]), strict=True):
            seen = self.seen[rank]
            beat, moves, doing, sent, seen.done, failure = json.loads(said)
            if beat != seen.beat:
                seen.beat, seen.beat_s = beat, now
            if moves != seen.moves:
                seen.moves, self.moved_s = moves, now
            seen.doing = doing
            seen.failure = tuple(failure) if failure is not None else None
            self._fetch(rank, sent)

    def _fetch(self, rank: int, sent: int) -> None:
        """Take the new events of a rank."""
        seen = self.seen[rank]
        keys = [f"events/{rank}/{number}" for number in range(seen.taken, sent)]
        if not keys:
            return
        for key, text in zip(keys, self.store.multi_get(keys), strict=True):
            self.take(0, rank, parse(text))
            self.store.delete_key(key)
        seen.taken = sent

    def patience(self) -> float:
        """Return the time to wait for further reports [s]. It is longer if all reports so far are effects.

        A rank that disappeared is known only after GONE_S.
        """
        heard = [seen.failure[0] for seen in self.seen if seen.failure is not None]
        return COLLECT_S if OWN in heard else COLLECT_S + GONE_S

    def silent(self) -> XbenchError | None:
        """Return the error for a rank that no longer beats, or for ranks of which none moves."""
        now = self.clock()
        for rank, seen in enumerate(self.seen):
            if rank > 0 and not seen.done and now - seen.beat_s > self.silence_s:
                return silent_error(self._who(rank), self.silence_s)
        if now - self.moved_s > self.silence_s:
            late = min(range(len(self.seen)), key=lambda rank: ("waiting" in self.seen[rank].doing, rank))
            return silent_error(self._who(late), self.silence_s)
        return None

    def _who(self, rank: int) -> str:
        seat, doing = self.seats[rank], self.seen[rank].doing
        return f"rank {rank} on {seat.host_name}" + (f" ({doing})" if doing else "")

    def cause(self) -> XbenchError | None:
        """Return the root cause, as far as it is known."""
        signs: list[tuple[int, int, XbenchError]] = []
        now = self.clock()
        for rank, seen in enumerate(self.seen):
            if seen.failure is not None:
                weight, what, hint = seen.failure
                signs.append((weight, rank, RankError(f"{self._who(rank)} {what}", hint=hint)))
            elif rank > 0 and not seen.done and now - seen.beat_s >= GONE_S:
                gone = "disappeared: it, or its host, ended without a word"
                signs.append((GONE, rank, RankError(f"{self._who(rank)} {gone}")))
        return min(signs, key=lambda sign: sign[:2])[2] if signs else None


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
    _moves: int = 0
    _sent: int = 0
    _done: bool = False
    _failure: tuple[int, str, str | None] | None = None
    _note: tuple[float, str] | None = None
    _trouble_s: float | None = None
    _zero: tuple[int, float] = (-1, 0.0)
    _closing: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _pipe: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        now = self.clock()
        self._survey = Survey(self.seats, self.store, self.silence_s, self.take, self.clock)
        self._zero = (-1, now)

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
            self._survey.read()
            self._judge()
        else:
            self._obey()

    def _post(self) -> None:
        """Send new events of the journal, and report that the rank lives."""
        events = self.reader.poll()
        note = self.reader.state()
        if events or note != self._note:
            self._moves += 1
            self._note = note
        for event in events:
            if self.rank == 0:
                self.take(0, 0, event)
            else:
                self.store.set(f"events/{self.rank}/{self._sent}", event.line())
                self._sent += 1
        self._beats += 1
        doing = note[1] if note else ""
        said = [self._beats, self._moves, doing, self._sent, self._done, self._failure]
        self.store.set(f"alive/{self.rank}", json.dumps(said))

    # --- rank 0 ------------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """End the launch if a rank failed or no rank moves."""
        now = self.clock()
        silent = self._survey.silent()
        if silent is None and not self._survey.failed:
            return
        if self._trouble_s is None:
            self._trouble_s = now
        if silent is None and now - self._trouble_s < self._survey.patience():
            return
        if not self._closing.acquire(blocking=False):
            return  # the main thread is closing already
        error = (self._survey.cause() if self._survey.failed else silent) or silent
        assert error is not None
        self._over(str(error))
        self.abandon(error)

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
        deadline = self.clock() + self.silence_s
        while True:
            self._survey.read()
            if all(seen.done for seen in self._survey.seen):
                break
            if self._survey.failed or self.clock() > deadline:
                error = self._survey.cause() or RankError("not every rank came to the end")
                self._over(str(error))
                raise error
            self._post()
            time.sleep(BEAT_S / 5)
        self._over("")
        self._wait_for_byes(BYE_S)

    def fail(self, what: str, hint: str | None, *, peers_lost: bool = False) -> XbenchError:
        """Report that this rank's main thread failed, and return the error. `what` is a predicate ('raised …').

        On rank 0 the error is the cause, after all reports were collected. The others return once rank 0 has recorded
        the failure. If rank 0 is gone, they print it.
        """
        self._close()
        self._failure = (LOST_PEERS if peers_lost else OWN, what, hint)
        own = RankError(f"rank {self.rank} on {self.seats[self.rank].host_name} {what}", hint=hint)
        try:
            self._post()
            if self.rank == 0:
                return self._heard(peers_lost) or own
            self._wait_for("over", TAKEN_S)
            self._bye()
        except Exception:
            if self.rank > 0:
                self._say(what)
        return own

    def interrupted(self) -> None:
        """Report to the others that the user stopped this rank."""
        self._close()
        self._failure = (LOST_PEERS, "was interrupted", None)
        with contextlib.suppress(Exception):
            self._post()
            if self.rank == 0:
                self._survey.read()
                self._over("interrupted")

    def _heard(self, peers_lost: bool) -> XbenchError | None:
        """Collect reports for as long as others may send any, then end them."""
        deadline = self.clock() + COLLECT_S + (GONE_S if peers_lost else 0.0)
        while self.clock() < deadline:
            self._survey.read()
            if any(seen.failure is not None and seen.failure[0] == OWN for seen in self._survey.seen[1:]):
                break
            time.sleep(BEAT_S / 5)
        error = self._survey.cause()
        self._over(str(error or ""))
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
