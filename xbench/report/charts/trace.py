"""Steps of a comparison or a profile as processes of a trace.

The recorded step of a mode has one process per rank. The predicted step has one process below them. A process shows
what the device computes, and its waits for gradients. It shows each bucket in flight, with an arrow from the layer
whose gradient completed it. A counter shows the bytes in flight.

For two jobs in turns, processes show the recorded turns of the device, and below them the predicted ones. A process's
name gives the rank whose clock it uses, and the label real, emulated or simulated. `otherData` lists what the record
does not hold. Older records hold only rank 0's step, and no turns.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xbench.modes import mode_info
from xbench.planning.cost import CostCurve
from xbench.planning.turns import LETTERS, JobTimes, run_turns
from xbench.records import Comparison, Label, Layer, ModeResult, Plan, Profile, Slice, Timeline, TurnTaken
from xbench.report import sentences
from xbench.report.charts.steps import MIN_WAIT_S, waits_before
from xbench.text import and_of

Event = dict[str, Any]

JUST_BEFORE_NS = 1
"""Time [ns] before the end of a slice at which a flow may still leave it; at the end itself, the slice is over."""

MAX_TRACKS = 8
"""Most tracks of one kind in a process. A schedule with one bucket per tensor has dozens in flight at once."""

_FLOWS = 1_000_000
"""Range of flow numbers of each process. Flow numbers are global in a trace."""


class Bar(NamedTuple):
    """Drawn slice: its track, and its start and end [ns]."""

    track: int
    start_ns: int
    end_ns: int


@dataclass
class Process:
    """One process of the trace: a rank's step, or a prediction.

    Times are in seconds from the start of the process, which lies at `begins_s` in the trace.
    """

    name: str
    begins_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    _tracks: dict[str, int] = field(default_factory=dict)
    _busy_until_ns: dict[int, int] = field(default_factory=dict)
    _flows: int = 0

    def slice(self, track: str, name: str, start_s: float, end_s: float, category: str, **facts: Any) -> Bar:
        """Add a slice from `start_s` to `end_s` on `track`, or on 'track (2)' and so on while it is busy.

        There are at most `MAX_TRACKS` of a kind, except for a slice that ends before one is free. If all are busy, the
        slice begins when the first is free, and its fact `since_us` gives its real start. Slices of a track must be
        added in order of their start.
        """
        start_ns, end_ns = _ns(start_s), max(_ns(start_s), _ns(end_s))
        number = 1
        while self._busy_until_ns.get(tid := self._tid(track, number), start_ns) > start_ns:
            if number == MAX_TRACKS:
                tids = [self._tid(track, one) for one in range(1, MAX_TRACKS + 1)]
                first = min(tids, key=self._busy_until_ns.__getitem__)
                if self._busy_until_ns[first] < end_ns:
                    facts = facts | {"since_us": (start_ns + _ns(self.begins_s)) / 1000}
                    tid, start_ns = first, self._busy_until_ns[first]
                    break
            number += 1
        self._busy_until_ns[tid] = end_ns
        self._add("X", name, tid, start_ns, cat=category, dur=(end_ns - start_ns) / 1000, args=facts)
        return Bar(tid, start_ns, end_ns)

    def mark(self, name: str) -> None:
        """Add a note across the whole process, at its beginning."""
        self._add("i", name, self._tid("note", 1), 0, cat="note", s="p", args={})

    def counter(self, unit: str, what: str, changes: Iterable[tuple[float, float]]) -> None:
        """Add a curve from the change at each time [s]. Changes at one time make one step."""
        steps: dict[int, float] = {0: 0.0}
        for at_s, added in changes:
            steps[_ns(at_s)] = steps.get(_ns(at_s), 0.0) + added
        value = 0.0
        for at_ns in sorted(steps):
            value += steps[at_ns]
            self._add("C", unit, 0, at_ns, args={what: value})

    def flow(self, name: str, source: Bar, leaves_s: float, target: Bar) -> None:
        """Add an arrow from inside `source`, at `leaves_s` or earlier, to the start of `target`.

        No arrow is added if `source` is not before `target`, or if one of them took no time.
        """
        latest_ns = min(source.end_ns - JUST_BEFORE_NS, target.start_ns)
        leaves_ns = min(_ns(leaves_s), latest_ns) if math.isfinite(leaves_s) else latest_ns
        if leaves_ns < source.start_ns or target.end_ns == target.start_ns:
            return
        self._flows += 1
        self._add("s", name, source.track, leaves_ns, cat="flow", id=self._flows)
        self._add("f", name, target.track, target.start_ns, cat="flow", id=self._flows, bp="e")

    def described(self, order: int) -> list[Event]:
        """Return the metadata events: names of the process and its tracks, and the order of tracks."""

        def said(what: str, tid: int, **value: Any) -> Event:
            return {"ph": "M", "name": what, "tid": tid, "ts": 0, "args": value}

        found = [said("process_name", 0, name=self.name), said("process_sort_index", 0, sort_index=order)]
        for track, tid in self._tracks.items():
            found.append(said("thread_name", tid, name=track))
            found.append(said("thread_sort_index", tid, sort_index=tid))
        return found

    def _tid(self, track: str, number: int) -> int:
        name = track if number == 1 else f"{track} ({number})"
        return self._tracks.setdefault(name, len(self._tracks) + 1)

    def _add(self, phase: str, name: str, tid: int, at_ns: int, **more: Any) -> None:
        self.events.append({"ph": phase, "name": name, "tid": tid, "ts": (at_ns + _ns(self.begins_s)) / 1000, **more})


def document(processes: Iterable[Process], other: Mapping[str, Any]) -> str:
    """Return the trace as JSON text, one event a line: metadata first, then all events in order of time.

    Processes are numbered from 1, in the order given.
    """
    described: list[Event] = []
    happened: list[Event] = []
    for pid, process in enumerate(processes, start=1):
        described += [_placed(event, pid) for event in process.described(order=pid)]
        happened += [_placed(event, pid) for event in process.events]
    happened.sort(key=lambda event: event["ts"])
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in [*described, *happened])
    about = json.dumps(dict(other), ensure_ascii=False, indent=1)
    return f'{{"displayTimeUnit": "ms",\n"otherData": {about},\n"traceEvents": [\n{lines}\n]}}\n'


def _placed(event: Event, pid: int) -> Event:
    """Return the event with its process number, a unique flow number, and a track number unlike the process's own."""
    flow = {"id": pid * _FLOWS + event["id"]} if "id" in event else {}
    return {**event, "pid": pid, "tid": event["tid"] + (event["tid"] >= pid), **flow}


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


COMPUTE, COMMUNICATION, TURNS = "compute", "communication", "device turns"
IN_FLIGHT = "bytes", "in flight"
WAITING = "waits for gradients (exposed)"
SETTLED_ROUNDS, SHOWN_ROUNDS = 16, 2

RECORDED = (
    "A recorded step is the one that took rank 0 the median time of those that were recorded. Steps of modes were "
    "recorded one after the other, and each begins at 0 here, with the rank that began it first."
)
FIRST_RANKS = "The record holds the steps of the first ranks alone."
RANK_0 = "The record holds no other rank's steps than rank 0's."
ARROWS = (
    "Arrows lead from the layer whose gradient was the last of a bucket to the bucket's collective, where the record "
    "says which gradients the bucket holds; in predicted steps they leave when the profile saw that gradient ready."
)
TURNS_AS_SEEN = (
    "Recorded turns are those of the first device, as rank 0 of each job saw them. The model's are in the steady state."
)
MODEL_TURNS = "This record holds no turns: those shown are the model's (simulated), in the steady state."

_BUCKET = re.compile(r"bucket (\d+)(?: reduce-scatter| \d+ of \d+)?")


def comparison_trace(record: Comparison) -> tuple[list[Process], list[str]]:
    """Return the processes of a comparison, and notes for the reader of the trace."""
    return list(_comparison(record)), _missing(record)


def profile_trace(record: Profile) -> tuple[list[Process], list[str]]:
    """Return the predicted steps of a profile, and a note that it recorded none."""
    gradients = _Gradients(record.layers)
    processes = [_predicted(record.workload.title, plan, gradients) for plan in record.plans.values()
                 if plan.timeline is not None]  # fmt: skip
    return processes, ["A profile records no steps: those shown are what the model predicts of each schedule."]


def _missing(record: Comparison) -> list[str]:
    """Return notes for the reader of the trace, also on what the record does not hold."""
    notes = [RECORDED, ARROWS]
    ranks = record.fabric.hosts * record.fabric.ranks_per_host
    recorded = [1 + len(mode.other_ranks) for mode in record.modes.values() if mode.timeline is not None]
    if recorded and min(recorded) < ranks:
        notes.append(RANK_0 if max(recorded) == 1 else FIRST_RANKS)
    bare = [name for name, mode in record.modes.items() if mode.is_trusted and mode.timeline is None]
    if bare:
        notes.append(f"No step was recorded of {and_of(bare)}.")
    if any(mode.turns for mode in record.modes.values()):
        notes.append(TURNS_AS_SEEN)
    elif any(mode.pattern for mode in record.modes.values()):
        notes.append(MODEL_TURNS)
    return notes


def _comparison(record: Comparison) -> Iterator[Process]:
    job = record.jobs[0] if record.jobs else None
    title = job.workload.title if job else "nothing"
    gradients = _Gradients(job.layers if job else [])
    paired = {mode.text for mode in record.spec.modes if mode.paired}
    for name, result in record.modes.items():
        failure = sentences.failure_line(result)
        if failure is not None:
            process = Process(f"{title} · {name} · FAILED ({result.label})")
            process.mark(failure)
            yield process
        elif result.timeline is not None:
            yield from _recorded(record, title, result, result.timeline, gradients)
        if name in paired:
            if result.turns:
                yield _drawn_turns(record, name, "recorded turns", result.label, result.turns)
            yield from _predicted_turns(record, result)
        if result.plan is not None and result.plan.timeline is not None:
            alone = f"{name}, a job alone" if name in paired else name
            yield _predicted(title, result.plan, gradients, alone)


def _recorded(
    record: Comparison, title: str, result: ModeResult, first: Timeline, gradients: _Gradients
) -> Iterator[Process]:
    """Return the recorded step, one process per rank. Ranks are those of one job."""
    ranks = record.fabric.hosts * record.fabric.ranks_per_host
    earliest_s = min([0.0, *(other.starts_s for other in result.other_ranks)])
    seen = [(0, 0.0, first), *((other.rank, other.starts_s, other) for other in result.other_ranks)]
    for rank, starts_s, timeline in seen:
        name = f"{title} · {result.mode} · recorded step of rank {rank} of {ranks} ({timeline.label})"
        process = Process(name, begins_s=starts_s - earliest_s)
        _draw(process, timeline, result.plan, gradients)
        yield process


def _predicted(title: str, plan: Plan, gradients: _Gradients, mode: str | None = None) -> Process:
    assert plan.timeline is not None  # the caller checked it
    process = Process(f"{title} · {mode or plan.mode} · predicted step ({plan.timeline.label})")
    _draw(process, plan.timeline, plan, gradients)
    return process


def _draw(process: Process, timeline: Timeline, plan: Plan | None, gradients: _Gradients) -> None:
    """Draw one step: both lanes, the arrows between them, and the counter."""
    facts = {"label": timeline.label}
    computed: list[tuple[Slice, Bar]] = []
    now_s = 0.0
    for part in sorted(timeline.compute, key=lambda part: (part.start_s, part.end_s)):
        if part.start_s - now_s > MIN_WAIT_S:
            process.slice(COMPUTE, WAITING, now_s, part.start_s, "exposed", **facts)
        computed.append((part, process.slice(COMPUTE, part.name, part.start_s, part.end_s, "compute", **facts)))
        now_s = max(now_s, part.end_s)
    if computed and timeline.end_s - now_s > MIN_WAIT_S:
        process.slice(COMPUTE, WAITING, now_s, timeline.end_s, "exposed", **facts)
    backward_s = min((part.start_s for part, _ in computed if part.name.startswith("backward")), default=0.0)
    sizes = {part.name: part.nbytes for part in timeline.communication if part.nbytes is not None}
    for part in sorted(timeline.communication, key=lambda part: (part.start_s, part.end_s)):
        bucket = _bucket_of(part, plan, recorded=timeline.label != "simulated")
        held = {"gradients": bucket} if bucket else {}
        size = {"bytes": sizes[part.name]} if part.name in sizes else {}
        target = process.slice(
            COMMUNICATION, part.name, part.start_s, part.end_s, "communication", **facts, **size, **held
        )
        source = gradients.last_of(bucket, computed) if bucket and part.start_s >= backward_s else None
        if source is not None:
            ready_s = backward_s + gradients.ready_s(bucket) if source[0].name == "backward" else source[0].end_s
            process.flow("gradients ready", source[1], ready_s, target)
    if timeline.communication:
        sent = [(part.start_s, part.end_s, sizes.get(part.name, 0)) for part in timeline.communication]
        changes = [change for start_s, end_s, nbytes in sent for change in ((start_s, nbytes), (end_s, -nbytes))]
        process.counter(*IN_FLIGHT, changes)


def _bucket_of(sent: Slice, plan: Plan | None, *, recorded: bool) -> list[str]:
    """Return the parameters whose gradients a collective carries; empty if the record leaves it open.

    Recorded collectives are numbered in launch order. Those of `dear` begin with one all-gather per bucket. Recorded
    parts of `priority` are not assigned. The size found must be that of the plan.
    """
    match = _BUCKET.fullmatch(sent.name)
    if match is None or plan is None or (recorded and plan.parts is not None):
        return []
    number = int(match[1])
    if recorded and mode_info(plan.carrier or plan.mode).travels == "halves":
        number -= len(plan.buckets)
    if not 1 <= number <= len(plan.buckets):
        return []
    is_part = " of " in sent.name
    return plan.buckets[number - 1] if is_part or sent.nbytes == plan.bucket_bytes[number - 1] else []


class _Gradients:
    """Layer of each parameter, and the time at which its gradient was ready in the profile."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layer = {tensor.name: layer.name for layer in layers for tensor in layer.tensors}
        self._ready_s = {tensor.name: tensor.ready_s for layer in layers for tensor in layer.tensors}

    def ready_s(self, bucket: Sequence[str]) -> float:
        """Return the time [s] from the start of backward until the whole bucket was ready; inf if it is unknown."""
        return max((self._ready_s.get(name, float("inf")) for name in bucket), default=float("inf"))

    def last_of(self, bucket: Sequence[str], computed: Sequence[tuple[Slice, Bar]]) -> tuple[Slice, Bar] | None:
        """Return the slice of backward that accumulated the bucket's last gradient."""
        names = {f"backward {self._layer.get(name, name.rpartition('.')[0])}" for name in bucket}
        found = [one for one in computed if one[0].name in names or one[0].name == "backward"]
        return max(found, key=lambda one: one[0].end_s, default=None)


def _predicted_turns(record: Comparison, result: ModeResult) -> list[Process]:
    """Return two rounds of predicted turns; none if the record lacks data for them."""
    jobs = _job_times(record, result)
    if result.pattern is None or not jobs or any(letter not in LETTERS[: len(jobs)] for letter in result.pattern):
        return []
    pattern = [LETTERS.index(letter) for letter in result.pattern]
    taken = run_turns(jobs, pattern, SETTLED_ROUNDS + SHOWN_ROUNDS)
    shown = taken[-SHOWN_ROUNDS * len(pattern) :]
    begin_s = shown[0].start_s
    turns = [
        TurnTaken(
            job=turn.job,
            start_s=turn.start_s - begin_s,
            computed_s=turn.computed_s - begin_s,
            arrived_s=turn.arrived_s - begin_s,
        )
        for turn in shown
    ]
    return [_drawn_turns(record, result.mode, "predicted turns", "simulated", turns)]


def _drawn_turns(record: Comparison, mode: str, what: str, label: Label, turns: Sequence[TurnTaken]) -> Process:
    """Draw the device's turns on one track, and each job's gradients in flight after its turns on another."""
    titles = [f"{LETTERS[place]} ({job.workload.title})" for place, job in enumerate(record.jobs)]
    process = Process(f"{' + '.join(titles)} · {mode} · {what} ({label})")
    for turn, wait in zip(turns, waits_before(turns), strict=True):
        if wait is not None:
            process.slice(TURNS, "no turn: gradients are on their way", *wait, "exposed", label=label)
        source = process.slice(TURNS, f"turn of {titles[turn.job]}", turn.start_s, turn.computed_s, "turn", label=label)
        if turn.arrived_s is not None and turn.arrived_s > turn.computed_s:
            name = f"gradients of {LETTERS[turn.job]}"
            target = process.slice(
                name, "exposed gradients", turn.computed_s, turn.arrived_s, "communication", label=label
            )
            process.flow("gradients ready", source, turn.computed_s, target)
    return process


def _job_times(record: Comparison, result: ModeResult) -> list[JobTimes]:
    """Return the model's times of every job; for equal jobs, those of the first. Empty if the record lacks data."""
    twins = all(job.workload == record.jobs[0].workload for job in record.jobs)
    carrier = next((mode.carrier for mode in record.spec.modes if mode.text == result.mode), None)
    found = []
    for job in [record.jobs[0]] * len(record.jobs) if twins else record.jobs:
        plan = job.plans.get(carrier or "")
        if plan is None or job.step is None or record.cost_model is None:
            return []
        curve = CostCurve.of(record.cost_model)
        link_s = float(sum(curve(nbytes) for nbytes in plan.bucket_bytes))
        found.append(JobTimes(job.step.uninstrumented_step_s, max(0.0, plan.predicted_exposed_s), link_s=link_s))
    return found
