"""How ranks that somebody else started know of each other's end, and how what they measured gets to rank 0.

Under our own launcher the parent watches. Here nobody does, so every rank has a thread that once in a while (BEAT_S)

- sends what the rank has written to its journal to rank 0: what a rank measured is not lost with it;
- says at the store that it lives, and whether it has moved since (its journal or its note has changed);
- on rank 0: reads what the others say, and judges;
- on all others: ends its process when rank 0 says that it is over, or is gone itself.

A rank that fails says why, and waits for rank 0 to have taken that down, because most engines end every rank as soon as
one has ended badly. Rank 0 waits COLLECT_S for whoever else has something to say and prefers, as `launch.monitor`
does, a rank with an error of its own, then one that is gone without a word, and last one that lost its peers. Silence
is judged as there: no beat of a rank, or no move of any rank, for the user's --timeout.

A process that hangs in a collective cannot be told to end, so the thread ends it; on rank 0 after `abandon` has kept
the record. Signals interrupt Python code alone, too, so they reach the thread by a pipe. What is sent is small (a
block's stamps), between beats nothing runs, and no torch is needed: the store is whatever has these few methods.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from xbench.errors import Interrupted, RankError, XbenchError
from xbench.launch.agent_log import PEER_LOSS
from xbench.launch.placement import RankAssignment
from xbench.rank.journal import JournalReader

BEAT_S = 1.0
COLLECT_S = 1.5
GONE_S = 4 * BEAT_S
"""A rank whose peers have lost it, and that has not beaten for so long, is gone."""

SIGNAL_S = 0.5
"""How long a signal's handler gets to act in the main thread before the process is ended without it."""

TAKEN_S = 15.0
"""How long a rank that failed waits for rank 0 to have taken that down."""

BYE_S = 10.0
"""How long rank 0 keeps the store for ranks that have yet to read that all is well."""

OWN, GONE, LOST_PEERS = range(3)
"""How near to the root a sign of trouble is; the smallest wins."""


class Store(Protocol):
    """As much of torch.distributed's stores as is needed."""

    def set(self, key: str, value: str) -> None:
        """Put."""

    def get(self, key: str) -> bytes:
        """Wait for a key, and get it."""

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Get several that are there."""

    def add(self, key: str, value: int) -> int:
        """Count."""

    def delete_key(self, key: str) -> bool:
        """Remove."""


@dataclass
class _Seen:
    """What rank 0 knows of a rank."""

    beat: int = -1
    beat_s: float = 0.0
    moves: int = -1
    doing: str = ""
    taken: int = 0
    done: bool = False
    failure: tuple[int, str, str | None] | None = None


@dataclass
class HeartbeatMonitor:
    """One rank's side. `start` begins the thread; `finish` or `fail` end it. Tests call `beat` themselves."""

    rank: int
    seats: Sequence[RankAssignment]
    store: Store
    reader: JournalReader
    silence_s: float
    take: Callable[[int, int, Mapping[str, Any]], None]
    """Rank 0: gets (job, its rank in the job, event) of every rank's events, from the thread or from who ends it."""
    abandon: Callable[[XbenchError], NoReturn]
    """Rank 0: keep the record and end the process."""
    clock: Callable[[], float] = time.monotonic
    leave: Callable[[int], Any] = os._exit
    _seen: list[_Seen] = field(default_factory=list)
    _beats: int = 0
    _moves: int = 0
    _sent: int = 0
    _done: bool = False
    _failure: tuple[int, str, str | None] | None = None
    _note: tuple[float, str] | None = None
    _moved_s: float = 0.0
    _trouble_s: float | None = None
    _zero: tuple[int, float] = (-1, 0.0)
    _closing: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _pipe: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        now = self.clock()
        self._seen = [_Seen(beat_s=now) for _ in self.seats]
        self._moved_s = now
        self._zero = (-1, now)

    # --- the thread --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to beat. From the main thread, where signals are handled."""
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
        """Sleep; whether a signal that ends us has come."""
        if self._pipe is None:
            self._stop.wait(seconds)
            return False
        ready, _, _ = select.select([self._pipe[0]], [], [], seconds)
        if not ready or self._stop.is_set():
            return False
        came = os.read(self._pipe[0], 64)
        return any(number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) for number in came)

    def _end_by_signal(self) -> None:
        """The main thread closes by itself if it can; else we do."""
        if self._stop.wait(SIGNAL_S):
            return
        if not self._closing.acquire(blocking=False):
            return
        if self.rank == 0:
            self._over("rank 0 was interrupted")
            self.abandon(Interrupted("interrupted"))
        self.leave(130)

    def _lost(self, error: Exception) -> None:
        """The store is gone: on other ranks than 0 that means rank 0."""
        if not self._closing.acquire(blocking=False):
            return
        said = f"the store at which the ranks meet is gone ({(str(error).splitlines() or [''])[0][:120]})"
        if self.rank == 0:
            self.abandon(RankError(said))
        self._say(said)
        self.leave(1)

    def beat(self) -> None:
        """Send, say, judge or obey: once. Raises RuntimeError when the store is gone."""
        self._post()
        if self.rank == 0:
            self._survey()
            self._judge()
        else:
            self._obey()

    def _post(self) -> None:
        """Send the journal's news, and say that we live."""
        events = self.reader.poll()
        note = self.reader.state()
        if events or note != self._note:
            self._moves += 1
            self._note = note
        for event in events:
            self._send(event)
        self._beats += 1
        doing = note[1] if note else ""
        said = [self._beats, self._moves, doing, self._sent, self._done, self._failure]
        self.store.set(f"alive/{self.rank}", json.dumps(said))

    def _send(self, event: Mapping[str, Any]) -> None:
        if self.rank == 0:
            self.take(self.seats[0].job, self.seats[0].rank, event)
            return
        self.store.set(f"events/{self.rank}/{self._sent}", json.dumps(event))
        self._sent += 1

    # --- rank 0 ------------------------------------------------------------------------------------------------------

    def _survey(self) -> None:
        """Read what everybody says."""
        now = self.clock()
        come = [rank for rank in range(len(self.seats)) if self._seen[rank].beat >= 0 or self._has(f"alive/{rank}")]
        for rank, said in zip(come, self.store.multi_get([f"alive/{rank}" for rank in come]), strict=True):
            seen = self._seen[rank]
            beat, moves, doing, sent, seen.done, failure = json.loads(said)
            if beat != seen.beat:
                seen.beat, seen.beat_s = beat, now
            if moves != seen.moves:
                seen.moves, self._moved_s = moves, now
            seen.doing = doing
            seen.failure = tuple(failure) if failure is not None else None
            self._fetch(rank, sent)

    def _fetch(self, rank: int, sent: int) -> None:
        """Take the events of a rank that are not taken yet."""
        seen, seat = self._seen[rank], self.seats[rank]
        keys = [f"events/{rank}/{number}" for number in range(seen.taken, sent)]
        if not keys:
            return
        for key, text in zip(keys, self.store.multi_get(keys), strict=True):
            self.take(seat.job, seat.rank, json.loads(text))
            self.store.delete_key(key)
        seen.taken = sent

    def _has(self, key: str) -> bool:
        return bool(self.store.check([key]))

    def _judge(self) -> None:
        """End it all when somebody failed or nobody moves."""
        now = self.clock()
        silent = self._silent(now)
        if silent is None and all(seen.failure is None for seen in self._seen):
            return
        if self._trouble_s is None:
            self._trouble_s = now
        if silent is None and now - self._trouble_s < self._patience():
            return
        if not self._closing.acquire(blocking=False):
            return  # the main thread is at it
        failed = any(seen.failure is not None for seen in self._seen)
        error = (self.cause() if failed else silent) or silent
        assert error is not None
        self._over(str(error))
        self.abandon(error)

    def _patience(self) -> float:
        """Longer where all that was heard so far are effects: who is gone is known after a while only."""
        heard = [seen.failure[0] for seen in self._seen if seen.failure is not None]
        return COLLECT_S if OWN in heard else COLLECT_S + GONE_S

    def _silent(self, now: float) -> XbenchError | None:
        """The error for a rank that no longer beats, or for ranks of which none moves."""
        for rank, seen in enumerate(self._seen):
            if rank > 0 and not seen.done and now - seen.beat_s > self.silence_s:
                return RankError(f"{self._who(rank)} gave no sign of life for {self.silence_s:g} s")
        if now - self._moved_s > self.silence_s:
            late = min(range(len(self._seen)), key=lambda rank: ("waiting" in self._seen[rank].doing, rank))
            return RankError(
                f"{self._who(late)} hung: no sign of life for {self.silence_s:g} s",
                hint="--timeout allows a longer silence",
            )
        return None

    def _who(self, rank: int) -> str:
        seat, doing = self.seats[rank], self._seen[rank].doing
        return f"rank {rank} on {seat.host_name}" + (f" ({doing})" if doing else "")

    def cause(self) -> XbenchError | None:
        """The root of the trouble as far as it is known to rank 0."""
        signs: list[tuple[int, int, XbenchError]] = []
        now = self.clock()
        for rank, seen in enumerate(self._seen):
            if seen.failure is not None:
                weight, what, hint = seen.failure
                signs.append((weight, rank, RankError(f"{self._who(rank)} {what}", hint=hint)))
            elif rank > 0 and not seen.done and now - seen.beat_s >= GONE_S:
                gone = "disappeared: it, or its host, ended without a word"
                signs.append((GONE, rank, RankError(f"{self._who(rank)} {gone}")))
        return min(signs, key=lambda sign: sign[:2])[2] if signs else None

    def _over(self, why: str) -> None:
        with contextlib.suppress(Exception):
            self.store.set("over", why)

    # --- all others --------------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        now = self.clock()
        if self._has("over"):
            if self._closing.acquire(blocking=False):
                self._bye()
                self.leave(1)
            return
        if self._has("alive/0"):
            beat = int(json.loads(self.store.get("alive/0"))[0])
            if beat != self._zero[0]:
                self._zero = (beat, now)
        if now - self._zero[1] > self.silence_s + GONE_S and self._closing.acquire(blocking=False):
            self._say(f"rank 0 gave no sign of life for {self.silence_s:g} s")
            self.leave(1)

    def _say(self, what: str) -> None:
        """One line from a rank that is not heard otherwise."""
        print(f"xbench rank {self.rank}: {what}", file=sys.stderr, flush=True)

    # --- the end, from the main thread -------------------------------------------------------------------------------

    def finish(self) -> None:
        """The work is done: rank 0 returns with everybody's events, the others when it has them.

        Raises RankError on rank 0 when a rank failed or does not come, RuntimeError when the store is gone.
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
            self._survey()
            if all(seen.done for seen in self._seen):
                break
            failed = any(seen.failure is not None for seen in self._seen)
            if failed or self.clock() > deadline:
                error = self.cause() or RankError("not every rank came to the end")
                self._over(str(error))
                raise error
            self._post()
            time.sleep(BEAT_S / 5)
        self._over("")
        self._wait_for_byes(BYE_S)

    def fail(self, what: str, hint: str | None, *, peers_lost: bool = False) -> XbenchError:
        """This rank's main thread failed: `what` it did ('raised …'). On rank 0 the cause, all having been heard.

        On the others it returns when rank 0 has taken it down, or says it itself where rank 0 is gone.
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
        """The user stopped this rank: tell the others."""
        self._close()
        self._failure = (LOST_PEERS, "was interrupted", None)
        with contextlib.suppress(Exception):
            self._post()
            if self.rank == 0:
                self._survey()
                self._over("interrupted")

    def _heard(self, peers_lost: bool) -> XbenchError | None:
        """Listen on for as long as others may have something to say, then end them."""
        deadline = self.clock() + COLLECT_S + (GONE_S if peers_lost else 0.0)
        while self.clock() < deadline:
            self._survey()
            if any(seen.failure is not None and seen.failure[0] == OWN for seen in self._seen[1:]):
                break
            time.sleep(BEAT_S / 5)
        error = self.cause()
        self._over(str(error or ""))
        self._wait_for_byes(BEAT_S + SIGNAL_S)
        return error

    def _bye(self) -> None:
        """The last that we do at the store, which is gone once rank 0 is."""
        with contextlib.suppress(Exception):
            self.store.add("byes", 1)

    def _wait_for_byes(self, seconds: float) -> None:
        """Keep the store until the others need it no more, or are not heard of."""
        deadline = self.clock() + seconds
        with contextlib.suppress(Exception):
            while self.store.add("byes", 0) < len(self.seats) - 1 and self.clock() < deadline:
                time.sleep(BEAT_S / 20)

    def _wait_for(self, key: str, seconds: float) -> None:
        deadline = self.clock() + seconds
        while not self._has(key) and self.clock() < deadline:
            time.sleep(BEAT_S / 20)

    def _close(self) -> None:
        """From here on the main thread decides; waits for ever where the thread has begun to."""
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


def lost_peers(message: str) -> bool:
    """Whether an error says that others are gone."""
    return PEER_LOSS.search(message) is not None
