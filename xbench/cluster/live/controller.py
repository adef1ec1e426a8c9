"""Event loop of a live cluster: it observes the attempts, asks the policy, and starts and stops jobs accordingly.

Every decision and observation is written to the ledger before it takes effect (`ledger`, `state`). The grants fit the
slots, and every attempt of another size than granted is being stopped. So every job that waits for slots gets them: no
order of starts can cause a deadlock.

**A crash** of an attempt takes the job back to its checkpoint. The job keeps its grant and is started again at once, up
to `retries` times; after that it is given up. An attempt that cannot be built is given up at once. **A lost node**
(state `lost`) and **the end of the controller** also take jobs back, and do not count as crashes. The number of slots
is read again every turn; if it has changed, the policy begins anew (`state`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from xbench.cluster.live import ledger
from xbench.cluster.live.attempt import OVER, AttemptProgress, Engine, Running
from xbench.cluster.live.ledger import Ledger
from xbench.cluster.live.state import AttemptState, JobState, State
from xbench.errors import Interrupted, RunError, SpecError
from xbench.record_files import now
from xbench.text import counted
from xbench.units import format_duration

POLL_S = 0.05
PROGRESS_S = 2.0
"""Interval [s] at which progress is written to the ledger: the time that a resumed clock can lose."""

RETRY_DELAY_S = 1.0
"""Delay [s] between a failed launch and the next one."""

STOP_TIMEOUT_S = 120.0
"""Time [s] after a request to stop after which an attempt is killed if it has not ended or kept a checkpoint."""

SILENCE_S = 1800.0
"""Time [s] without any progress after which an attempt is killed as one that hangs: as long as collectives wait."""


class Clock:
    """The cluster's clock: seconds since the run began, without those in which no controller ran."""

    def __init__(self, from_s: float = 0.0) -> None:
        self._zero_s = time.monotonic() - from_s

    def now_s(self) -> float:
        """Present time [s]."""
        return time.monotonic() - self._zero_s

    def wait_until(self, at_s: float) -> None:
        """Wait until `at_s` at most. It returns earlier so that the attempts can be observed."""
        time.sleep(min(POLL_S, max(0.0, at_s - self.now_s())))


class Controller:
    """Runs the jobs of a state on an engine. `stopping()` returns how often the user has asked to stop.

    `say` gets a line of text on each event.
    """

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        engine: Engine,
        clock: Clock,
        say: Callable[[str], None] = lambda line: None,
        stopping: Callable[[], int] = lambda: 0,
    ) -> None:
        self.state, self.ledger, self.engine, self.clock = state, ledger, engine, clock
        self._print = say
        self._stopping = stopping
        self._running: dict[str, Running] = {}
        self._changed = False
        """True if the policy has to decide."""
        self._progress: dict[str, tuple[float, float, float]] = {}
        """Progress of jobs that is not in the ledger yet."""
        self._progress_written_s = -math.inf
        self._not_before_s: dict[str, float] = {}
        """Time before which a job is not started again, after a failed launch."""
        self._looks: dict[str, tuple[AttemptProgress, float]] = {}
        """Last look at each attempt, and the time since which it is the same."""
        self._wait_messages: dict[str, str] = {}
        """Last message to the user on what each job waits for."""

    def run(self) -> None:
        """Run to the end of the last job.

        Raises Interrupted if the user asked to stop, with all jobs stopped. Raises RuntimeError for a policy that
        grants more than there is or leaves jobs waiting forever, and OSError if the ledger cannot be written. No
        attempt runs any more then.
        """
        try:
            while not self.state.over:
                if self._stopping():
                    self._pause()
                self._run_once()
        finally:
            self.engine.close()

    def resume(self, retries: int | None = None) -> None:
        """Continue after another controller, whose attempts are over. It must be called once, before `run`.

        `retries`: try given-up jobs again, and allow that many further crashes of each job.
        """
        now_s = self.clock.now_s()
        for track in self.state.tracks.values():
            if (attempt := track.attempt) is not None:
                self._record_end(track, "lost", now_s, track.steps, track.kept, "its controller ended")
                self._say(track, f"ran on {_slots(attempt)} when its controller ended")
        self._record(ledger.RunResumed(at_s=now_s, created=now(), retries=retries))
        self._changed = True

    def _run_once(self) -> None:
        """Do everything that is due now, then wait."""
        state, now_s = self.state, self.clock.now_s()
        for name in list(self._running):
            self._observe(state.tracks[name], now_s)
        self._count_slots(now_s)
        for track in state.tracks.values():
            if not track.arrived and track.entry.arrival_s <= now_s:
                self._record(ledger.JobArrived(at_s=now_s, job=track.name))
                self._say(track, "arrives")
                self._changed = True
        self._decide(now_s)
        while True:
            self._reconcile(now_s)
            if not self._changed:
                break
            self._decide(now_s)  # a job has ended meanwhile
        if self._progress and now_s - self._progress_written_s >= PROGRESS_S:
            self._record(ledger.ProgressReported(at_s=now_s, jobs=self._progress))
            self._progress, self._progress_written_s = {}, now_s
        if state.over:
            return
        next_s = min(state.next_arrival_s(), math.inf if state.next_decision_s is None else state.next_decision_s)
        withheld = [track for track in state.tracks.values() if track.withheld and track.arrived and not track.over]
        for track in withheld:
            self._say_wait(track, f"waits: it needs more than {counted(state.cluster.gpus, 'slot')}")
        if withheld or any(track.active.gpus and track.attempt is None for track in state.tracks.values()):
            next_s = min(next_s, now_s + RETRY_DELAY_S)
        if math.isinf(next_s) and not self._running:
            waiting = sum(not track.over for track in state.tracks.values())
            raise RuntimeError(f"{state.began.policy} leaves {waiting} jobs waiting forever")
        self.clock.wait_until(next_s)

    def _count_slots(self, now_s: float) -> None:
        slots, before = self.engine.slots, self.state.cluster.gpus
        if slots != before:
            self._record(ledger.Resized(at_s=now_s, slots=slots))
            self._print(f"{now_s:8.1f} s  the engine has {counted(slots, 'slot')} now, and had {before}")
            self._wait_messages.clear()
            self._changed = True

    def _decide(self, now_s: float) -> None:
        state = self.state
        due = state.next_decision_s is not None and state.next_decision_s <= now_s
        if not self._changed and not due:
            return
        self._changed = False
        seen = state.seen(now_s)
        decided = ledger.PolicyDecided(at_s=now_s, seen=seen, grants=state.decide(now_s, seen))
        self.ledger.append(decided)
        state.grant(decided)

    def _reconcile(self, now_s: float) -> None:
        """Stop attempts of another size than granted, and start jobs that fit."""
        for track in self.state.tracks.values():
            attempt = track.attempt
            if attempt is not None and attempt.stopping_s is None and attempt.workers != track.active.gpus:
                action = f"go on with {counted(track.active.gpus, 'worker')}" if track.active.gpus else "wait"
                self._say(track, f"is to {action}, and stops on {_slots(attempt)}")
                self._stop(track, now_s)
                self._observe(track, now_s)
        for track in self.state.tracks.values():
            wanted = track.active.gpus
            free = self.state.free()
            too_early = now_s < self._not_before_s.get(track.name, now_s)
            if wanted and not track.over and not too_early and track.attempt is None and wanted <= len(free):
                self._start(track, tuple(free[:wanted]), now_s)

    def _start(self, track: JobState, slots: tuple[int, ...], now_s: float) -> None:
        try:
            handle = self.engine.start(track.entry, self.ledger.folder / ledger.JOBS / track.name, slots)
            try:
                steps = handle.look().steps
            except OSError:
                handle.kill()
                raise
        except SpecError as error:
            self._give_up(track, str(error), now_s)
            return
        except RunError as error:  # an earlier attempt is still ending
            self._say_wait(track, f"waits: {error}")
            return
        except OSError as error:
            self._not_before_s[track.name] = now_s + RETRY_DELAY_S
            self._record(ledger.Started(at_s=now_s, job=track.name, slots=list(slots), steps=track.kept))
            self._handle_failure(track, now_s, track.kept, track.kept, str(error))
            return
        self._running[track.name] = handle
        self._record(ledger.Started(at_s=now_s, job=track.name, slots=list(slots), steps=steps))
        self._say(track, f"starts on {_slots(track.present)}, from step {steps:g} of {track.entry.steps}")

    def _stop(self, track: JobState, now_s: float) -> None:
        """Stop with a checkpoint.

        An attempt that has not trained yet is killed: it has none to keep, and others wait.
        """
        self._record(ledger.JobStopping(at_s=now_s, job=track.name))
        handle = self._running[track.name]
        if track.present.first is None:
            handle.kill()
        else:
            handle.stop()

    def _observe(self, track: JobState, now_s: float) -> None:
        """Observe an attempt, and handle its end."""
        handle, attempt = self._running.get(track.name), track.attempt
        if handle is None or attempt is None:
            return
        look = handle.look()
        if look.state in OVER:
            self._handle_end(track, attempt, look, now_s)
            return
        if look.state == "starting" and look.reason:
            self._say_wait(track, look.reason)
        if look.state == "training" and attempt.first is None and attempt.stopping_s is None:
            self._record(ledger.Trained(at_s=now_s, job=track.name, steps=look.steps))
        if self.state.record_progress(track, now_s, look.steps, look.kept_steps):
            self._progress[track.name] = (look.steps, look.kept_steps, now_s)
        last, since_s = self._looks.get(track.name, (None, now_s))
        if look != last or look.reason:  # an attempt with a reason waits for its engine
            self._looks[track.name] = (look, now_s)
        elif now_s - since_s > SILENCE_S:
            self._looks[track.name] = (look, now_s)
            self._say(track, f"has made no progress for {format_duration(SILENCE_S)}, and is killed")
            handle.kill()
            self._observe(track, now_s)
            return
        if attempt.stopping_s is not None and now_s - attempt.stopping_s > STOP_TIMEOUT_S:
            handle.kill()

    def _handle_end(self, track: JobState, attempt: AttemptState, look: AttemptProgress, now_s: float) -> None:
        del self._running[track.name]
        self._progress.pop(track.name, None)
        self._looks.pop(track.name, None)
        is_stopping = attempt.stopping_s is not None
        killed = is_stopping and attempt.first is None  # by `_stop`
        steps, kept_steps, reason = look.steps, look.kept_steps, look.reason
        if look.state == "lost":
            self._record_end(track, "lost", now_s, max(steps, track.steps), kept_steps, reason)
            self._say(track, f"lost a worker after step {steps:g}: {reason} (step {kept_steps:g} is kept)")
        elif (look.state == "failed" and not killed) or (look.state == "stopped" and not is_stopping):
            self._handle_failure(track, now_s, steps, kept_steps, reason or "it stopped without being asked to")
        elif look.state == "finished":
            self._record_end(track, "finished", now_s, steps, kept_steps)
            self._say(track, f"is done, {now_s - track.entry.arrival_s:.1f} s after it arrived")
            self._changed = True
        else:
            self._record_end(track, "stopped", now_s, steps, kept_steps)
            self._say(track, f"has stopped after step {steps:g}")

    def _handle_failure(self, track: JobState, now_s: float, steps: float, kept_steps: float, reason: str) -> None:
        self._record_end(track, "failed", now_s, max(steps, track.steps), kept_steps, reason)
        retries = self.state.retries
        if track.retried > retries:
            times = "once" if track.retried == 1 else f"{track.retried} times"
            self._give_up(track, f"it failed {times}, at last: {reason}", now_s)
            return
        retry = f"retry {track.retried} of {retries}, from step {kept_steps:g}"
        self._say(track, f"failed after step {steps:g}: {reason} ({retry})")

    def _give_up(self, track: JobState, reason: str, now_s: float) -> None:
        self._record(ledger.RunAbandoned(at_s=now_s, job=track.name, reason=reason))
        command = f"{ledger.RESUME} {self.ledger.folder} --retries {max(1, self.state.retries)}"
        self._say(track, f"is given up: {reason} (after the run, {command} tries it again)")
        self._changed = True

    def _pause(self) -> None:
        """Stop everything with a checkpoint, and leave. A second request kills everything."""
        now_s = self.clock.now_s()
        self._record(ledger.RunPaused(at_s=now_s))
        self._print(f"{now_s:8.1f} s  stopping all jobs with a checkpoint (Ctrl-C again kills them)")
        for track in self.state.tracks.values():
            attempt = track.attempt
            if attempt is not None and attempt.stopping_s is None:
                self._stop(track, now_s)
        while self._running and self._stopping() < 2:
            now_s = self.clock.now_s()
            for name in list(self._running):
                self._observe(self.state.tracks[name], now_s)
            if self._running:
                self.clock.wait_until(math.inf)
        raise Interrupted(
            "interrupted; nothing runs, and all that was kept goes on", hint=f"{ledger.RESUME} {self.ledger.folder}"
        )

    def _record_end(
        self, track: JobState, how: ledger.Ending, now_s: float, steps: float, kept_steps: float, reason: str = ""
    ) -> None:
        self._record(
            ledger.JobEnded(
                at_s=now_s, job=track.name, how=how, steps=steps, kept_steps=kept_steps, last=track.present.last,
                reason=reason
            )
        )  # fmt: skip

    def _record(self, event: ledger.Event) -> None:
        """Write an event to the ledger, then apply it."""
        self.ledger.append(event)
        self.state.apply(event)

    def _say_wait(self, track: JobState, message: str) -> None:
        """Tell the user once what a job waits for."""
        if self._wait_messages.get(track.name) != message:
            self._wait_messages[track.name] = message
            self._say(track, message)

    def _say(self, track: JobState, message: str) -> None:
        self._print(f"{self.clock.now_s():8.1f} s  {track.name} {message}")


def _slots(attempt: AttemptState) -> str:
    numbers = ", ".join(str(slot) for slot in attempt.slots)
    return f"slot {numbers}" if attempt.workers == 1 else f"slots {numbers}"
