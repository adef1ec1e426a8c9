"""The event loop of a live cluster: looks at its incarnations, asks the policy, and starts and stops what it grants.

    look at all → arrivals → (something happened, or it is time) decide → stop what has another size → start what fits
    └──────────────────────── wait for the next arrival, the next decision or the next look ────────────────────────┘

Whatever is decided or seen is written to the ledger before anything follows from it (`ledger`, `state`). What was
granted adds up to no more than there is, and whoever has another size than granted is being stopped, so everybody who
waits for slots gets them: no order of starting can lock the others out.

**A crash** of an incarnation takes the job back to its checkpoint. It keeps what it was granted and is started again at
once, `retries` times; after that it is given up, and the others go on. One that cannot be built is given up at once.
**A lost node** (look state `lost`) takes its jobs back to their checkpoints too, and counts as no crash. The number of
slots is read again every turn; where it has changed, the policy begins anew with what there is (`state`). A job that
fits no longer waits, for as long as it takes: nothing is given up for want of room.
**The end of the controller**, by kill -9 or the machine's, ends its incarnations; the next controller of the folder
starts them again from their checkpoints, which counts as no crash.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from xbench.cluster.live.engine import OVER, Engine, Look, Running
from xbench.cluster.live.ledger import (
    JOBS,
    RESUME,
    Arrived,
    Decided,
    Ended,
    Event,
    GaveUp,
    Ledger,
    Paused,
    Resized,
    Resumed,
    Started,
    Stopping,
    Told,
    Trained,
)
from xbench.cluster.live.state import State
from xbench.cluster.live.track import Incarnation, Track
from xbench.errors import Interrupted, RunError, SpecError
from xbench.text import counted

POLL_S = 0.05
TOLD_S = 2.0
"""How often the ledger is told how far jobs are: what a resumed clock can lose."""

AGAIN_S = 1.0
"""How long after a launch that failed the next one comes."""

STOP_S = 120.0
"""Whoever does not end so long after it was asked to, and keeps no checkpoint meanwhile, is killed."""


class Clock(Protocol):
    """The cluster's: seconds since the run began, without those in which no controller ran."""

    def now_s(self) -> float:
        """As it stands."""

    def wait_until(self, at_s: float) -> None:
        """Until then at most; earlier to look at what runs."""


class RealClock:
    """Goes on from `from_s`."""

    def __init__(self, from_s: float = 0.0) -> None:
        self._zero_s = time.monotonic() - from_s

    def now_s(self) -> float:
        """See `Clock`."""
        return time.monotonic() - self._zero_s

    def wait_until(self, at_s: float) -> None:
        """See `Clock`."""
        time.sleep(min(POLL_S, max(0.0, at_s - self.now_s())))


class Controller:
    """Runs the jobs of a state on an engine. `stopping()` says how often the user has asked to stop.

    `say` is told what happens, a line each.
    """

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        engine: Engine,
        clock: Clock,
        say: Callable[[str], None] = lambda said: None,
        stopping: Callable[[], int] = lambda: 0,
    ) -> None:
        self.state, self.ledger, self.engine, self.clock = state, ledger, engine, clock
        self._say_line = say
        self._stopping = stopping
        self._running: dict[str, Running] = {}
        self._changed = False
        """Whether the policy has to be asked."""
        self._further: dict[str, tuple[float, float, float]] = {}
        """What the ledger has not been told of how far jobs are."""
        self._told_s = -math.inf
        self._waits: dict[str, str] = {}
        """By job: what the user was last told that it waits for."""

    def run(self) -> None:
        """To the end of the last job.

        Raises Interrupted when the user asked to stop, with all jobs stopped; SpecError for a policy that lets jobs
        share slots, RuntimeError for one that grants more than there is or leaves jobs waiting for ever, OSError when
        the ledger cannot be written. Nothing runs any more then.
        """
        try:
            while not self.state.over:
                if self._stopping():
                    self._pause()
                self._turn()
        finally:
            self.engine.close()

    def resume(self, retries: int | None = None) -> None:
        """Go on after another controller: what ran under it is over. To be called once, before `run`.

        `retries`: try given-up jobs again, and start each job that crashes so many times more.
        """
        now_s = self.clock.now_s()
        for track in self.state.tracks.values():
            running = track.incarnation
            if running is not None:
                self._record(
                    Ended(at_s=now_s, job=track.name, how="lost", steps=track.steps, kept_steps=track.kept,
                          last=running.last, reason="its controller ended")
                )  # fmt: skip
                self._say(track, f"ran on {_slots(running)} when its controller ended")
        created = datetime.now(UTC).isoformat(timespec="seconds")
        self._record(Resumed(at_s=now_s, created=created, retries=retries))
        self._changed = True

    def _turn(self) -> None:
        """Everything that there is to do now, and then a wait."""
        state, now_s = self.state, self.clock.now_s()
        for name in list(self._running):
            self._look(state.tracks[name], now_s)
        self._count_slots(now_s)
        for track in state.tracks.values():
            if not track.arrived and track.entry.arrival_s <= now_s:
                self._record(Arrived(at_s=now_s, job=track.name))
                self._say(track, "arrives")
                self._changed = True
        self._decide(now_s)
        while True:
            self._reconcile(now_s)
            if not self._changed:
                break
            self._decide(now_s)  # a job has ended meanwhile
        if self._further and now_s - self._told_s >= TOLD_S:
            self._record(Told(at_s=now_s, jobs=self._further))
            self._further, self._told_s = {}, now_s
        if state.over:
            return
        next_s = min(self._next_s(), math.inf if state.again_s is None else state.again_s)
        withheld = [track for track in state.tracks.values() if track.withheld and track.arrived and not track.over]
        for track in withheld:
            self._say_wait(track, f"waits: it needs more than {counted(state.cluster.gpus, 'slot')}")
        if withheld or any(track.active.gpus and track.incarnation is None for track in state.tracks.values()):
            next_s = min(next_s, now_s + AGAIN_S)
        if math.isinf(next_s) and not self._running:
            waiting = sum(not track.over for track in state.tracks.values())
            raise RuntimeError(f"{state.began.policy} leaves {waiting} jobs waiting for ever")
        self.clock.wait_until(next_s)

    def _count_slots(self, now_s: float) -> None:
        slots, before = self.engine.slots, self.state.cluster.gpus
        if slots != before:
            self._record(Resized(at_s=now_s, slots=slots))
            self._say_line(f"{now_s:8.1f} s  the engine has {counted(slots, 'slot')} now, and had {before}")
            self._waits.clear()
            self._changed = True

    def _next_s(self) -> float:
        arrival_s = self.state.next_arrival_s()
        return math.inf if arrival_s is None else arrival_s

    def _decide(self, now_s: float) -> None:
        state = self.state
        due = state.again_s is not None and state.again_s <= now_s
        if not self._changed and not due:
            return
        self._changed = False
        seen = state.seen(now_s)
        decided = Decided(at_s=now_s, seen=seen, grants=state.decide(now_s, seen))
        self.ledger.append(decided)
        state.grant(decided)

    def _reconcile(self, now_s: float) -> None:
        """Stop what has another size than granted, and start what fits."""
        for track in self.state.tracks.values():
            running = track.incarnation
            if running is not None and running.stopping_s is None and running.workers != track.active.gpus:
                self._record(Stopping(at_s=now_s, job=track.name))
                to = f"go on with {counted(track.active.gpus, 'worker')}" if track.active.gpus else "wait"
                self._say(track, f"is to {to}, and stops on {_slots(running)}")
                self._stop(self._running[track.name], running)
                self._look(track, now_s)
        for track in self.state.tracks.values():
            wanted = track.active.gpus
            free = self.state.free()
            if wanted and not track.over and track.incarnation is None and wanted <= len(free):
                self._start(track, tuple(free[:wanted]), now_s)

    def _start(self, track: Track, slots: tuple[int, ...], now_s: float) -> None:
        try:
            running = self.engine.start(track.job, self.ledger.folder / JOBS / track.name, slots)
            steps = running.look().steps
        except SpecError as error:
            self._give_up(track, str(error), now_s)
            return
        except RunError as error:  # what it ran as before is still dying
            self._say_wait(track, f"waits: {error}")
            return
        except OSError as error:
            self._record(Started(at_s=now_s, job=track.name, slots=list(slots), steps=track.kept))
            self._failed(track, Look("failed", int(track.kept), int(track.kept), str(error)), now_s)
            return
        self._running[track.name] = running
        self._record(Started(at_s=now_s, job=track.name, slots=list(slots), steps=steps))
        begun = track.incarnation
        assert begun is not None
        self._say(track, f"starts on {_slots(begun)}, from step {steps:g} of {track.job.steps}")

    def _stop(self, handle: Running, running: Incarnation) -> None:
        """With a checkpoint; one that has yet to train has none to keep, and others would wait until it could stop."""
        if running.first is None:
            handle.kill()
        else:
            handle.stop()

    def _look(self, track: Track, now_s: float) -> None:
        """See how an incarnation is doing, and what has become of it."""
        handle, running = self._running.get(track.name), track.incarnation
        if handle is None or running is None:
            return
        look = handle.look()
        if look.state in OVER:
            self._over(track, running, look, now_s)
            return
        if look.state == "starting" and look.reason:
            self._say_wait(track, look.reason)
        if look.state == "training" and running.first is None:
            self._record(Trained(at_s=now_s, job=track.name, steps=look.steps))
        if self.state.saw(track, now_s, look.steps, look.kept_steps):
            self._further[track.name] = (look.steps, look.kept_steps, now_s)
        if running.stopping_s is not None and now_s - running.stopping_s > STOP_S:
            handle.kill()

    def _over(self, track: Track, running: Incarnation, look: Look, now_s: float) -> None:
        del self._running[track.name]
        self._further.pop(track.name, None)
        asked = running.stopping_s is not None
        killed = asked and running.first is None  # by `_stop`
        if look.state == "lost":
            self._record(
                Ended(at_s=now_s, job=track.name, how="lost", steps=max(look.steps, track.steps),
                      kept_steps=look.kept_steps, last=running.last, reason=look.reason)
            )  # fmt: skip
            kept = f"step {look.kept_steps:g} is kept"
            self._say(track, f"lost a worker after step {look.steps:g}: {look.reason} ({kept})")
            return
        if (look.state == "failed" and not killed) or (look.state == "stopped" and not asked):
            self._failed(track, look._replace(reason=look.reason or "it stopped without being asked to"), now_s)
            return
        how = "finished" if look.state == "finished" else "stopped"
        self._record(
            Ended(at_s=now_s, job=track.name, how=how, steps=look.steps, kept_steps=look.kept_steps, last=running.last)
        )
        if how == "finished":
            took_s = now_s - track.entry.arrival_s
            self._say(track, f"is done, {took_s:.1f} s after it arrived")
            self._changed = True
        else:
            self._say(track, f"has stopped after step {look.steps:g}")

    def _failed(self, track: Track, look: Look, now_s: float) -> None:
        running = track.incarnation
        assert running is not None
        self._record(
            Ended(at_s=now_s, job=track.name, how="failed", steps=max(look.steps, track.steps),
                  kept_steps=look.kept_steps, last=running.last, reason=look.reason)
        )  # fmt: skip
        retries = self.state.retries
        if track.retried > retries:
            times = "once" if track.retried == 1 else f"{track.retried} times"
            self._give_up(track, f"it failed {times}, at last: {look.reason}", now_s)
            return
        again = f"retry {track.retried} of {retries}, from step {look.kept_steps:g}"
        self._say(track, f"failed after step {look.steps:g}: {look.reason} ({again})")

    def _give_up(self, track: Track, reason: str, now_s: float) -> None:
        self._record(GaveUp(at_s=now_s, job=track.name, reason=reason))
        again = f"{RESUME} {self.ledger.folder} --retries {max(1, self.state.retries)}"
        self._say(track, f"is given up: {reason} (after the run, {again} tries it again)")
        self._changed = True

    def _pause(self) -> None:
        """Stop everything with a checkpoint, and leave. Asked once more, kill everything."""
        now_s = self.clock.now_s()
        self._record(Paused(at_s=now_s))
        folder = self.ledger.folder
        self._say_line(f"{now_s:8.1f} s  stopping all jobs with a checkpoint (Ctrl-C again kills them)")
        for track in self.state.tracks.values():
            running = track.incarnation
            if running is not None and running.stopping_s is None:
                self._record(Stopping(at_s=now_s, job=track.name))
                self._stop(self._running[track.name], running)
        while self._running and self._stopping() < 2:
            now_s = self.clock.now_s()
            for name in list(self._running):
                self._look(self.state.tracks[name], now_s)
            if self._running:
                self.clock.wait_until(math.inf)
        raise Interrupted("interrupted; nothing runs, and all that was kept goes on", hint=f"{RESUME} {folder}")

    def _record(self, event: Event) -> None:
        """To the ledger, and then into effect."""
        self.ledger.append(event)
        self.state.apply(event)

    def _say_wait(self, track: Track, told: str) -> None:
        """Say what a job waits for, once."""
        if self._waits.get(track.name) != told:
            self._waits[track.name] = told
            self._say(track, told)

    def _say(self, track: Track, told: str) -> None:
        self._say_line(f"{self.clock.now_s():8.1f} s  {track.name} {told}")


def _slots(running: Incarnation) -> str:
    numbers = ", ".join(str(slot) for slot in running.slots)
    return f"slot {numbers}" if running.workers == 1 else f"slots {numbers}"
