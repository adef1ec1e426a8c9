"""A live cluster that is played: jobs progress exactly at their speed, by a clock that jumps from event to event."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from xbench.cluster.live.attempt import OVER, AttemptProgress
from xbench.cluster.live.controller import Controller
from xbench.cluster.live.jobs_file import JobEntry
from xbench.cluster.live.ledger import Event, Ledger, PolicyDecided, RunStarted, read
from xbench.cluster.live.state import State
from xbench.cluster.metrics import Simulated
from xbench.cluster.policies import parse_policy
from xbench.cluster.policy import Change, Cluster
from xbench.cluster.simulator import simulate

POLICIES = (
    "fifo", "fifo-backfill", "sjf", "srtf", "srsf", "las:thresholds=16+64", "gittins:thresholds=16+64",
    "fixed-1", "fixed-2", "equal-share", "optimus", "doubling", "exploratory:trial=8",
)  # fmt: skip
SPEEDS = {"1": 1.0, "2": 2.0, "3": 2.0, "4": 2.0}


def entry(name: str, **values: object) -> JobEntry:
    given: dict[str, object] = {"name": name, "workload": "synthetic:layers=4,bytes=64k", "steps": 40, "batch_size": 16,
                                "speeds": SPEEDS, "checkpoint_steps": 10}  # fmt: skip
    return JobEntry.model_validate(given | values)


def some_jobs() -> list[JobEntry]:
    """Speeds are powers of two and times quarters, so that both clocks are exact."""
    return [
        entry("a", steps=64, gpus=2),
        entry("b", steps=24, arrival_s=6.25),
        entry("c", steps=96, arrival_s=8.5, gpus=2),
        entry("d", steps=8, arrival_s=20.75),
        entry("e", steps=12, arrival_s=20.75, gpus=2, least=2),
    ]


def began(jobs: Iterable[JobEntry], policy: str = "fifo", slots: int = 2, **values: object) -> RunStarted:
    given: dict[str, object] = {"created": "2026-03-01T12:00:00+00:00", "command": "xbench cluster run jobs.toml",
                                "engine": "local", "restart_s": 4.0, "retries": 1}  # fmt: skip
    return RunStarted.model_validate(given | {"policy": policy, "slots": slots, "jobs": list(jobs)} | values)


@dataclass
class Played:
    """The world: a clock and an engine. What a job has kept outlives controllers, as its folder does."""

    slots: int = 2
    cost_s: float = 4.0
    crash_at: dict[str, list[float]] = field(default_factory=dict)
    """Of jobs: steps at which it crashes, once each."""
    refuse: Mapping[str, Exception] = field(default_factory=dict)
    stop_s: float = 0.0
    speeds: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    sizes: dict[float, int] = field(default_factory=dict)
    """When how many slots are there; what runs on those that go is lost with them, the newest first."""
    poll_s: float = 2.0
    now: float = 0.0
    kept: dict[str, float] = field(default_factory=dict)
    launched: list[tuple[float, str, tuple[int, ...], float]] = field(default_factory=list)
    running: list[Playing] = field(default_factory=list)

    def now_s(self) -> float:
        return self.now

    def wait_until(self, at_s: float) -> None:
        upcoming = [one.next_s() for one in self.running]
        assert self.running or math.isfinite(at_s), "nothing will ever happen"
        assert self.now < 3e3, "it does not come to an end"
        self.now = max(self.now, min([at_s, self.now + self.poll_s, *upcoming, *self.sizes]))
        for size_s in [size_s for size_s in self.sizes if size_s <= self.now]:
            self.slots = self.sizes.pop(size_s)
            while sum(len(one.slots) for one in self.running) > self.slots:
                one = self.running[-1]
                one.end("lost", one.steps(), one.checkpoint())

    def start(self, job: JobEntry, folder: Path, slots: tuple[int, ...]) -> Playing:
        if job.name in self.refuse:
            raise self.refuse[job.name]
        busy = {slot for one in self.running for slot in one.slots}
        assert not busy & set(slots), "a slot was given twice"
        assert len(set(slots)) == len(slots)
        assert len(busy) + len(slots) <= self.slots
        one = Playing(self, job, slots, self.kept.get(job.name, 0.0))
        self.launched.append((self.now, job.name, slots, one.base))
        self.running.append(one)
        return one

    def close(self) -> None:
        for one in list(self.running):
            one.kill()


class Playing:
    """One attempt."""

    def __init__(self, world: Played, job: JobEntry, slots: tuple[int, ...], base: float) -> None:
        self.world, self.job, self.slots, self.base = world, job, slots, base
        self.ready = world.now + world.cost_s
        table = world.speeds.get(job.name) or {int(key): value for key, value in SPEEDS.items()}
        self.speed = table[len(slots)]
        self.stopping: float | None = None
        self.over: AttemptProgress | None = None
        crashes = [at for at in world.crash_at.get(job.name, []) if at > base]
        self.crash = min(crashes, default=math.inf)

    def end_s(self, steps: float) -> float:
        return self.ready + (steps - self.base) / self.speed

    def steps(self) -> float:
        for steps in sorted((self.crash, self.job.steps)):
            if self.world.now >= self.end_s(steps):
                return steps
        return self.base + self.speed * max(0.0, self.world.now - self.ready)

    def checkpoint(self) -> float:
        every = self.job.checkpoint_steps
        return max(self.base, self.steps() // every * every)

    def next_s(self) -> float:
        times = [self.ready, self.end_s(min(self.job.steps, self.crash))]
        if self.stopping is not None:
            times.append(self.stopping + self.world.stop_s)
        return min((at for at in times if at > self.world.now), default=math.inf)

    def look(self) -> AttemptProgress:
        if self.over is not None:
            return self.over
        now, steps = self.world.now, self.steps()
        if steps >= self.crash and now >= self.ready:
            self.world.crash_at[self.job.name].remove(self.crash)
            every = self.job.checkpoint_steps
            return self.end("failed", self.crash, max(self.base, self.crash // every * every))
        if steps >= self.job.steps and now >= self.ready:
            return self.end("finished", steps, steps)
        if self.stopping is not None and now >= self.stopping + self.world.stop_s:
            return self.end("stopped", steps, steps)
        return AttemptProgress("starting" if now < self.ready else "training", steps, self.checkpoint())

    def end(self, state: str, steps: float, kept: float) -> AttemptProgress:
        reason = {"failed": "rank 0: boom", "lost": "a node is gone"}.get(state, "")
        self.over = AttemptProgress(state, steps, kept, reason)
        assert self.over.state in OVER
        self.world.kept[self.job.name] = max(kept, self.world.kept.get(self.job.name, 0.0))
        self.world.running.remove(self)
        return self.over

    def stop(self) -> None:
        self.stopping = self.world.now

    def kill(self) -> None:
        if self.over is None:
            self.end("failed", self.steps(), self.checkpoint())


def simulated(asked: RunStarted) -> tuple[list[tuple[float, dict[str, int]]], Simulated]:
    """Simulation of the same jobs, in which a start costs as much as a restart."""
    policy, decided = parse_policy(asked.policy), []
    decide = policy.decide

    def recording(now_s: float) -> Iterator[Change]:
        changes = list(decide(now_s))
        grants = {job.job.name: grant.gpus for job, grant in changes if grant.gpus != job.gpus}
        if grants:
            decided.append((now_s, grants))
        yield from changes

    policy.decide = recording  # type: ignore[method-assign]
    jobs = [track.active.job for track in State(asked).tracks.values()]
    found = simulate(jobs, policy, Cluster(asked.slots, asked.restart_s, start_s=asked.restart_s))
    return decided, found


def played(
    asked: RunStarted, folder: Path, world: Played | None = None, say: Callable[[str], None] = lambda line: None,
    stopping: Callable[[], int] = lambda: 0,
) -> tuple[State, list[Event]]:  # fmt: skip
    """Run the jobs in a folder to the end; the state, and the ledger's events."""
    world = world or Played(asked.slots, asked.restart_s)
    state = State(asked)
    ledger = Ledger.begin(folder, asked)
    try:
        Controller(state, ledger, world, world, say, stopping).run()
    finally:
        ledger.close()
    return state, read(folder)[0]


def gone_on(folder: Path, world: Played, retries: int | None = None) -> State:
    """Another controller of a folder, to the end."""
    ledger, events = Ledger.resume(folder)
    state = State.of(events)
    world.now = state.now_s
    controller = Controller(state, ledger, world, world)
    controller.resume(retries)
    controller.run()
    ledger.close()
    return state


def replayed(folder: Path) -> State:
    """The state that a folder's ledger comes to."""
    return State.of(read(folder)[0])


def decisions(events: Iterable[Event]) -> list[tuple[float, dict[str, int]]]:
    return [(one.at_s, one.grants) for one in events if isinstance(one, PolicyDecided) and one.grants]


def digest(state: State) -> object:
    """Everything that matters of a state."""
    return [
        (
            track.name, track.arrived, track.steps, track.kept, track.lost_steps, track.crashes, track.finished_s,
            track.gave_up, track.active.gpus, track.active.restarts, track.active.remaining(state.now_s),
            track.active.attained_s(state.now_s), track.speed.seen,
            [(one.slots, one.started_s, one.from_steps, one.first, one.ended_s, one.how) for one in track.attempts],
        )
        for track in state.tracks.values()
    ]  # fmt: skip
