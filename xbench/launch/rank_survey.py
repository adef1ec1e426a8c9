"""Survey of all ranks by rank 0: read their states from the store, and find the cause of a failure.

Of torch.distributed's store it needs `check`, `multi_get` and `delete_key`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xbench.errors import RankError, XbenchError
from xbench.launch.rendezvous import RankAssignment
from xbench.rank.events import parse
from xbench.rank.journal import Take

BEAT_S = 1.0
COLLECT_S = 1.5
GONE_S = 4 * BEAT_S
"""A rank that its peers have lost is gone if it has not beaten for this long [s]."""

USUAL_S = 120.0
"""Least silence [s] that a hint suggests: the default of `--timeout`."""

OWN, GONE, LOST_PEERS = range(3)
"""Distance of a sign of trouble from the root cause. The smallest wins."""


def silent_error(who: str, limit_s: float, *, chosen: bool = True) -> RankError:
    """Return the error for a rank that was silent for too long [s]. `chosen`: the limit is that of `--timeout`."""
    limit = ", the limit of --timeout" if chosen else ""
    hint = f"it hangs, or needs longer: --timeout {max(USUAL_S, 2 * limit_s):g}s"
    return RankError(f"{who} gave no sign of life for {limit_s:g} s{limit}", hint=hint)


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
