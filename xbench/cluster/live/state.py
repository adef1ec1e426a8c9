"""State of a live cluster, computed from the events of its ledger alone, and of each of its jobs.

The policy object is that of the simulator. It hears of arrivals and ends, and decides grants. Its observations and its
decisions are events. So a state that is computed again from a ledger has a policy with the same knowledge, which must
decide the same (policies are deterministic).

**A new number of slots** (`Resized`) begins with a new policy object. It first hears of the jobs that hold slots, and
grants what still fits; then of the others. A job that no longer fits is withheld from the policy, and waits until it
fits again. Knowledge and counts of the former policy object are lost.

**Two views of a job.** `JobState.active` is the policy's: it holds a grant from the moment of the decision on, as in
the simulator. `JobState.attempts` is the history: a grant of another size ends one attempt and starts another, which
takes its time. Before each decision the policy's view is updated from the history (`seen`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from xbench.cluster.jobs import Job, Speed
from xbench.cluster.live import ledger
from xbench.cluster.live.jobs_file import JobEntry, check_fit
from xbench.cluster.policies import facts_of, parse_policy
from xbench.cluster.policies.ordered import Order
from xbench.cluster.policy import Active, Cluster, Policy
from xbench.cluster.simulator import needed_gpus
from xbench.errors import RecordError, SpecError
from xbench.text import counted

MIN_STEPS = 5
"""Fewest steps in a measurement of speed. With fewer, the times of observation dominate."""


class LearnedSpeed(Speed):
    """Steps a second on w workers: the measurement there, or else the declared speed times its mean error elsewhere.

    Without a declared speed it is that on the largest measured number below (so that a guess never promises a gain),
    and one step a second before any measurement. `sizes` are the declared ones, or else the caller's.
    """

    def __init__(self, declared: Speed | None, sizes: tuple[int, ...] | None = None) -> None:
        self.declared = declared
        self.seen: dict[int, float] = {}
        self._sizes = sizes

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """See `Speed`."""
        return self._sizes if self.declared is None else self.declared.sizes

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        if gpus in self.seen:
            return self.seen[gpus]
        if self.declared is not None:
            known = self.declared.sizes
            errors = [
                math.log(speed / self.declared(size))
                for size, speed in self.seen.items()
                if known is None or size in known
            ]
            return self.declared(gpus) * (math.exp(math.fsum(errors) / len(errors)) if errors else 1.0)
        below = [size for size in self.seen if size < gpus]
        if below:
            return self.seen[max(below)]
        return self.seen[min(self.seen)] if self.seen else 1.0


@dataclass
class AttemptState:
    """One launch of a job. Times by the cluster's clock [s]; steps count from the job's beginning."""

    slots: tuple[int, ...]
    started_s: float
    from_steps: float
    first: tuple[float, float] | None = None
    """(time, steps) of the first observation of training; `last`: of the last one."""
    last: tuple[float, float] | None = None
    end_steps: float = 0.0
    stopping_s: float | None = None
    ended_s: float | None = None
    how: ledger.Ending | None = None

    @property
    def workers(self) -> int:
        """Number of workers, one per slot."""
        return len(self.slots)

    @property
    def measured(self) -> tuple[float, float] | None:
        """(steps, seconds) of the interval in which it was seen to train; None if that is too short."""
        if self.first is None or self.last is None:
            return None
        steps, seconds = self.last[1] - self.first[1], self.last[0] - self.first[0]
        return (steps, seconds) if steps >= MIN_STEPS and seconds > 0 else None

    @property
    def speed(self) -> float | None:
        """Steps a second, checkpoints included."""
        return self.measured[0] / self.measured[1] if self.measured is not None else None

    @property
    def overhead_s(self) -> float | None:
        """Time [s] from its launch to its end in which it did not train; None without a known speed."""
        if self.speed is None or self.ended_s is None:
            return None
        return self.ended_s - self.started_s - (self.end_steps - self.from_steps) / self.speed


class JobState:
    """One job: the policy's view of it, and its history."""

    def __init__(self, entry: JobEntry, number: int, learns: bool) -> None:
        self.entry = entry
        self.speed = LearnedSpeed(entry.speed, None if learns else (entry.gpus,))
        most = entry.batch_size if entry.most is None else min(entry.most, entry.batch_size)
        job = Job(entry.name, entry.arrival_s, entry.gpus, float(entry.steps), self.speed, entry.least, most)
        self.active = Active(job, number)
        self.attempts: list[AttemptState] = []
        self.arrived = False
        self.steps = 0.0
        """Completed steps as far as known. Steps lost in a crash are done again."""
        self.kept = 0.0
        self.lost_steps = 0.0
        self.crashes = 0
        self.retried = 0
        """Crashes since the limit on them was last set."""
        self.withheld = False
        """True while the policy does not know of it, because it does not fit the present slots."""
        self.finished_s: float | None = None
        self.gave_up: str | None = None
        """Reason."""
        self.learned = 0.0
        """Value of `steps` in the policy's view."""

    @property
    def name(self) -> str:
        """Name, unique in its cluster."""
        return self.entry.name

    @property
    def over(self) -> bool:
        """True once it has finished or was given up."""
        return self.finished_s is not None or self.gave_up is not None

    @property
    def attempt(self) -> AttemptState | None:
        """The attempt that runs, or None."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].ended_s is None else None

    @property
    def present(self) -> AttemptState:
        """The attempt that runs, where one has to."""
        assert self.attempt is not None
        return self.attempt

    def speeds(self) -> dict[int, float]:
        """Steps a second by workers, over all its attempts."""
        sums: dict[int, tuple[float, float]] = {}
        for attempt in self.attempts:
            if attempt.measured is not None:
                steps, seconds = sums.get(attempt.workers, (0.0, 0.0))
                sums[attempt.workers] = steps + attempt.measured[0], seconds + attempt.measured[1]
        return {workers: steps / seconds for workers, (steps, seconds) in sorted(sums.items())}


@dataclass
class State:
    """State of a cluster. Raises SpecError for jobs that do not fit or that the policy cannot serve."""

    began: ledger.RunStarted
    tracks: dict[str, JobState] = field(init=False)
    now_s: float = 0.0
    """Time [s] of the last event."""
    next_decision_s: float | None = None
    """Time [s] of the policy's next requested decision."""
    resumed: int = 0
    retries: int = 0
    """Crashes after which a job is started again."""
    resized: bool = False
    """True if the number of slots ever changed."""

    def __post_init__(self) -> None:
        began = self.began
        self.retries = began.retries
        check_fit(began.jobs, began.slots)
        check_known(began.policy, began.jobs)
        self.policy: Policy = parse_policy(began.policy)
        learns = bool(facts_of(began.policy).get("learns"))
        self.tracks = {job.name: JobState(job, number, learns) for number, job in enumerate(began.jobs)}
        self.cluster = Cluster(began.slots, began.restart_s, start_s=began.restart_s)
        self.policy.begin(self.cluster, [track.active.job for track in self.tracks.values()])

    @classmethod
    def of(cls, events: Iterable[ledger.Event]) -> State:
        """State after the events of a ledger. Raises RecordError if the policy does not decide as it did."""
        events = iter(events)
        began = next(events)
        assert isinstance(began, ledger.RunStarted)  # checked by `ledger.read`
        state = cls(began)
        for event in events:
            if isinstance(event, ledger.PolicyDecided):
                grants = state.decide(event.at_s, event.seen)
                if grants != event.grants:
                    raise RecordError(
                        f"the ledger says that {began.policy} decided {event.grants} at {event.at_s:g} s, and this "
                        f"xbench decides {grants}",
                        hint="go on with the xbench that began the run",
                    )
                state.grant(event)
            else:
                state.apply(event)
        return state

    @property
    def over(self) -> bool:
        """True if all jobs are over."""
        return all(track.over for track in self.tracks.values())

    def free(self) -> list[int]:
        """Free slots, ascending.

        After a loss of slots the numbers have no meaning, only the count of taken slots has: the lowest numbers are
        reused.
        """
        taken = {slot for track in self.tracks.values() if track.attempt for slot in track.attempt.slots}
        spare = [slot for slot in range(self.cluster.gpus + len(taken)) if slot not in taken]
        return spare[: max(0, self.cluster.gpus - len(taken))]

    def next_arrival_s(self) -> float:
        """Time [s] of the next arrival; infinite without one."""
        return next((track.entry.arrival_s for track in self.tracks.values() if not track.arrived), math.inf)

    def seen(self, now_s: float) -> dict[str, ledger.ProgressObserved]:
        """Observations for the policy's view before a decision."""
        observations = {}
        for track in self.tracks.values():
            active, attempt = track.active, track.attempt
            done = track.steps if attempt is not None else track.kept  # the next attempt begins there
            if not track.arrived or track.over or (not active.gpus and track.learned == done):
                continue
            if not active.gpus:
                observations[track.name] = ledger.ProgressObserved(done=done, speed=0.0, ready_s=now_s)
            elif attempt and attempt.first and not attempt.stopping_s and attempt.workers == active.gpus:
                speed = attempt.speed
                observations[track.name] = ledger.ProgressObserved(
                    done=track.steps, speed=speed or track.speed(active.gpus), ready_s=attempt.first[0],
                    measured=speed is not None
                )  # fmt: skip
            else:
                observations[track.name] = ledger.ProgressObserved(
                    done=track.steps, speed=track.speed(active.gpus), ready_s=max(active.ready_s, now_s)
                )
        return observations

    def decide(self, now_s: float, seen: dict[str, ledger.ProgressObserved]) -> dict[str, int]:
        """Let the policy decide: the numbers of workers that change, stops and shrinks first.

        Raises RuntimeError if it grants more than there is.
        """
        for name, observation in seen.items():
            track = self.tracks[name]
            track.active.learn(now_s, observation.done, observation.speed, observation.ready_s)
            track.learned = observation.done
            if observation.measured:
                track.speed.seen[track.active.gpus] = observation.speed
        changes = sorted(self.policy.decide(now_s), key=lambda change: change[1].gpus - change[0].gpus)
        for job, grant in changes:
            if grant.gpus < 0:
                raise RuntimeError(f"{self.began.policy} granted {grant} to job {job.job.name!r}")
        grants = {job.job.name: grant.gpus for job, grant in changes if grant.gpus != job.gpus}
        held = sum(grants.get(track.name, track.active.gpus) for track in self.tracks.values())
        if held > self.cluster.gpus:
            raise RuntimeError(f"{self.began.policy} granted {held} slots, and there are {self.cluster.gpus}")
        return grants

    def grant(self, decided: ledger.PolicyDecided) -> None:
        """Apply a decision, and store the time of the next requested one."""
        self.now_s = now_s = decided.at_s
        for name, gpus in decided.grants.items():
            active = self.tracks[name].active
            ready_s = now_s
            if gpus:
                ready_s += self.cluster.start_s if active.began_s is None else self.cluster.restart_s
                active.restarts += active.began_s is not None
            active.hold(now_s, gpus, 1.0, None, ready_s)
            if gpus and active.began_s is None:
                active.began_s = now_s
        self.next_decision_s = self.policy.look_again_s(now_s)

    def record_progress(self, track: JobState, now_s: float, steps: float, kept: float) -> bool:
        """Record an attempt's progress; True if it is further than known."""
        attempt = track.present
        has_progress = steps > track.steps or kept > track.kept
        if attempt.first is not None and (attempt.last is None or steps > attempt.last[1]):
            attempt.last = (now_s, steps)
        track.steps, track.kept = steps, kept
        return has_progress

    def apply(self, event: ledger.Event) -> None:
        """Apply an event other than a decision."""
        if isinstance(event, ledger.TimedEvent):
            self.now_s = max(self.now_s, event.at_s)
        match event:
            case ledger.RunResumed():
                self.resumed += 1
                if event.retries is not None:
                    self._retry(event.retries, event.at_s)
            case ledger.Resized():
                self._resize(event.slots, event.at_s)
            case ledger.ProgressReported():
                for name, (steps, kept, seen_s) in event.jobs.items():
                    self.record_progress(self.tracks[name], seen_s, steps, kept)
            case ledger.JobEvent():
                self._apply_to_job(self.tracks[event.job], event)

    def _apply_to_job(self, track: JobState, event: ledger.JobEvent) -> None:
        match event:
            case ledger.JobArrived():
                track.arrived = True
                self._add_to_policy(track, event.at_s)
            case ledger.Started():
                track.lost_steps += max(0.0, track.steps - event.steps)
                track.steps = track.kept = event.steps
                track.attempts.append(AttemptState(tuple(event.slots), event.at_s, event.steps))
            case ledger.RunAbandoned():
                track.gave_up = event.reason
                track.lost_steps += max(0.0, track.steps - track.kept)
                track.steps = track.kept
                self._release(track, event.at_s)
            case ledger.Trained():
                track.present.first = track.present.last = (event.at_s, event.steps)
                track.steps = event.steps
            case ledger.JobStopping():
                track.present.stopping_s = event.at_s
            case ledger.JobEnded():
                self._end_attempt(track, event)

    def _end_attempt(self, track: JobState, event: ledger.JobEnded) -> None:
        attempt = track.present
        attempt.ended_s, attempt.how, attempt.end_steps = event.at_s, event.how, event.steps
        attempt.last = event.last
        track.steps, track.kept = event.steps, event.kept_steps
        if attempt.speed is not None:
            track.speed.seen[attempt.workers] = attempt.speed
        active = track.active
        track.crashes += event.how == "failed"
        track.retried += event.how == "failed"
        if event.how == "finished":
            track.finished_s = event.at_s
            self._release(track, event.at_s)
        elif event.how in ("failed", "lost") and active.gpus:
            if attempt.first is not None:  # its computation until now counts as service
                active.learn(event.at_s, event.steps, track.speed(active.gpus), attempt.first[0])
            ready_s = event.at_s + self.cluster.restart_s
            active.learn(event.at_s, event.kept_steps, track.speed(active.gpus), ready_s)
            track.learned = event.kept_steps

    def _release(self, track: JobState, now_s: float) -> None:
        """Take the job from the policy. A job may end on slots that it has lost, while it waits for others."""
        waited = not track.active.gpus
        track.active.hold(now_s, 0, 1.0, None, now_s)
        if track.withheld:
            return
        if waited and isinstance(self.policy, Order):
            self.policy.withdrawn(track.active, now_s)
        else:
            self.policy.finished(track.active, now_s)

    def _add_to_policy(self, track: JobState, now_s: float) -> None:
        """Add a job without slots to the policy, or withhold it if it does not fit."""
        track.withheld = not self._fits(track.active.job)
        if not track.withheld:
            self.policy.arrived(track.active, now_s)

    def _fits(self, job: Job) -> bool:
        """True if the policy could serve this job on the present slots."""
        if needed_gpus(job, self.policy.elastic) > self.cluster.gpus:
            return False
        return not self.policy.elastic or bool(job.sizes_on(self.cluster.gpus))

    def _retry(self, retries: int, now_s: float) -> None:
        """Try given-up jobs again, and reset the count of crashes."""
        self.retries = retries
        for track in self.tracks.values():
            track.retried = 0
            if track.gave_up is not None:
                track.gave_up = None
                self._add_to_policy(track, now_s)

    def _resize(self, slots: int, now_s: float) -> None:
        """Begin with a new policy object on `slots` slots (see the module)."""
        self.resized = True
        self.cluster = replace(self.cluster, gpus=slots)
        self.policy = parse_policy(self.began.policy)
        fitting = [track.active.job for track in self.tracks.values() if self._fits(track.active.job)]
        self.policy.begin(self.cluster, fitting)
        present = [track for track in self.tracks.values() if track.arrived and not track.over]
        held = {track.name: (track.active.gpus, track.active.ready_s) for track in present}
        for track in present:
            track.active.hold(now_s, 0, 1.0, None, now_s)
        for track in present:
            if held[track.name][0]:
                self._add_to_policy(track, now_s)
        for job, grant in list(self.policy.decide(now_s)):
            gpus, ready_s = held[job.job.name]
            ready_s = ready_s if grant.gpus == gpus else now_s + self.cluster.restart_s
            job.hold(now_s, grant.gpus, 1.0, None, ready_s)
        self.next_decision_s = self.policy.look_again_s(now_s)
        for track in present:
            if not held[track.name][0]:
                self._add_to_policy(track, now_s)


def check_known(policy: str, jobs: Iterable[JobEntry]) -> None:
    """Refuse jobs whose speed the policy needs and no one declared, and a policy that shares slots.

    Raises SpecError with the first such job.
    """
    facts = facts_of(policy)
    if facts.get("steps"):
        raise SpecError(
            f"policy {policy!r} lets jobs share their slots, and real jobs do not yet",
            hint="xbench cluster compare simulates it",
        )
    jobs = list(jobs)
    for job in jobs:
        speed = job.speed
        if speed is not None and speed.sizes is not None and job.gpus not in speed.sizes:
            raise SpecError(
                f"job {job.name!r}: its speeds lack the gpus = {job.gpus} that it asks for",
                hint=f"add a speed for {job.gpus}",
            )
    unknown = [job for job in jobs if job.speed is None]
    needs = facts.get("durations") or facts["speeds"]
    if unknown and needs and not facts.get("learns"):
        others = f" and {counted(len(unknown) - 1, 'other')}" if len(unknown) > 1 else ""
        what = "speeds on several numbers of workers" if facts["speeds"] else "how long a job takes"
        raise SpecError(
            f"policy {policy!r} needs to know {what}, and no speed is known of job {unknown[0].name!r}{others}",
            hint="add speeds = { 1 = …, 2 = … } in steps a second, or take exploratory, which learns them, or las",
        )
