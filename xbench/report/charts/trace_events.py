"""Trace events, as Perfetto and chrome://tracing read them: processes with tracks, slices, flows and counters.

The JSON object format: `traceEvents` and `otherData`. Times are microseconds, rounded to whole nanoseconds where a
slice starts and where it ends, so that slices which touch do not overlap by rounding. Slices of a track never overlap:
where several are under way at once, each gets the first track of its kind that is free.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Event = dict[str, Any]

JUST_BEFORE_NS = 1
"""A flow leaves a slice this long before its end: at the end itself the slice is over."""

MOST_TRACKS = 8
"""Tracks of one kind in a process: a schedule with a bucket a tensor has dozens under way at once."""

_FLOWS = 1_000_000
"""Numbers of flows that a process has for itself: in a trace they are one sequence."""


class Bar(NamedTuple):
    """A slice as it was drawn: on which track, and from when to when [ns]."""

    track: int
    start_ns: int
    end_ns: int


@dataclass
class Process:
    """One process of the trace: a rank's step, or what the model says of it.

    Times are seconds from the start of it, which is at `begins_s` of the trace.
    """

    name: str
    begins_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    _tracks: dict[str, int] = field(default_factory=dict)
    _busy_until_ns: dict[int, int] = field(default_factory=dict)
    _flows: int = 0

    def slice(self, track: str, name: str, start_s: float, end_s: float, category: str, **facts: Any) -> Bar:
        """Something that took from `start_s` to `end_s`, on `track` or, while that is busy, on 'track (2)', and so on.

        There are `MOST_TRACKS` of a kind, and more only for a slice that ends before one is free. Where all are busy
        the slice begins when the first is free, and its fact `since_us` says when it really began. Slices of a track
        have to come in order of their start.
        """
        start_ns, end_ns = _ns(start_s), max(_ns(start_s), _ns(end_s))
        number = 1
        while self._busy_until_ns.get(tid := self._tid(track, number), start_ns) > start_ns:
            if number == MOST_TRACKS:
                tids = [self._tid(track, one) for one in range(1, MOST_TRACKS + 1)]
                first = min(tids, key=self._busy_until_ns.__getitem__)
                if self._busy_until_ns[first] < end_ns:
                    facts = facts | {"since_us": (start_ns + _ns(self.begins_s)) / 1000}
                    tid, start_ns = first, self._busy_until_ns[first]
                    break
            number += 1
        self._busy_until_ns[tid] = end_ns
        self._add("X", name, tid, start_ns, cat=category, dur=(end_ns - start_ns) / 1000, args=facts)
        return Bar(tid, start_ns, end_ns)

    def mark(self, name: str, **facts: Any) -> None:
        """A word across the whole process, at its beginning."""
        self._add("i", name, self._tid("note", 1), 0, cat="note", s="p", args=facts)

    def counter(self, unit: str, what: str, changes: Iterable[tuple[float, float]]) -> None:
        """A curve from what is added at each time [s], named by both; changes at one time are one step."""
        steps: dict[int, float] = {0: 0.0}
        for at_s, added in changes:
            steps[_ns(at_s)] = steps.get(_ns(at_s), 0.0) + added
        value = 0.0
        for at_ns in sorted(steps):
            value += steps[at_ns]
            self._add("C", unit, 0, at_ns, args={what: value})

    def flow(self, name: str, source: Bar, leaves_s: float, target: Bar) -> None:
        """An arrow from inside `source`, at `leaves_s` or earlier, to the start of `target`.

        There is none where the one is not before the other, or where one of them took no time.
        """
        latest_ns = min(source.end_ns - JUST_BEFORE_NS, target.start_ns)
        leaves_ns = min(_ns(leaves_s), latest_ns) if math.isfinite(leaves_s) else latest_ns
        if leaves_ns < source.start_ns or target.end_ns == target.start_ns:
            return
        self._flows += 1
        self._add("s", name, source.track, leaves_ns, cat="flow", id=self._flows)
        self._add("f", name, target.track, target.start_ns, cat="flow", id=self._flows, bp="e")

    def described(self, order: int) -> list[Event]:
        """The metadata events: what the process and its tracks are called, and in which order tracks stand."""

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
    """The trace as JSON text, one event a line: metadata first, then everything in order of time.

    Processes are numbered as they come, from 1, and stand in that order.
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
    """The event in its process: no flow has another's number, and no track the process's own (of a main thread)."""
    flow = {"id": pid * _FLOWS + event["id"]} if "id" in event else {}
    return {**event, "pid": pid, "tid": event["tid"] + (event["tid"] >= pid), **flow}


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)
