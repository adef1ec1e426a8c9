"""The rules of the trace event format, as Perfetto and chrome://tracing hold them; what breaks one is told in words."""

from __future__ import annotations

import bisect
import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


def broken_rules(text: str) -> list[str]:
    """Every rule that a trace breaks."""
    trace = json.loads(text)
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["a trace is an object with traceEvents"]
    events = trace["traceEvents"]
    missing = [f"{event} has no {key}" for event in events for key in ("ph", "name", "pid", "tid", "ts")
               if key not in event]  # fmt: skip
    return missing or list(_keys(events)) or [*_order(events), *_names(events), *_slices(events), *_flows(events)]


def _keys(events: list[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        phase, told = event["ph"], f"{event['ph']} {event['name']!r}"
        if not _is_number(event["ts"]) or event["ts"] < 0:
            yield f"{told} has no time"
        if phase == "X":
            if not _is_number(event.get("dur")) or event["dur"] < 0:
                yield f"{told} has no duration"
            if event.get("args", {}).get("label") not in ("real", "emulated", "simulated"):
                yield f"{told} has no label"
        elif phase == "M":
            key, kind = METADATA.get(event["name"], ("", object))
            if not isinstance(event.get("args", {}).get(key), kind):
                yield f"{told} is no metadata"
        elif phase == "C":
            values = list(event.get("args", {}).values())
            if not values or not all(_is_number(value) and value >= 0 for value in values):
                yield f"{told} counts no number"
        elif phase == "i":
            if event.get("s") not in ("g", "p", "t"):
                yield f"{told} has no scope"
        elif phase in ("s", "f"):
            if not isinstance(event.get("id"), int) or not event.get("cat"):
                yield f"{told} has no id or no category"
            if phase == "f" and event.get("bp") != "e":
                yield f"{told} does not bind to the slice that it is in"
        else:
            yield f"{told} is of no phase that is written"


def _order(events: list[dict[str, Any]]) -> Iterator[str]:
    """Metadata first, then never back in time."""
    now, begun = 0.0, False
    for event in events:
        if event["ph"] == "M":
            if begun:
                yield "metadata stands among events"
            continue
        begun = True
        if event["ts"] < now:
            yield f"{event['name']!r} at {event['ts']} comes after {now}"
        now = max(now, event["ts"])


def _names(events: list[dict[str, Any]]) -> Iterator[str]:
    """Every process and every track with slices has one name, and a process's says what kind of numbers it holds."""
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    tracks = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for pid, name in processes.items():
        if not name.endswith(("(real)", "(emulated)", "(simulated)")):
            yield f"process {pid} has no label: {name}"
    if len(set(processes.values())) < len(processes):
        yield "two processes have one name"
    yield from (f"track {tid} is its process's main thread" for pid, tid in tracks if pid == tid)
    for event in events:
        if event["pid"] not in processes:
            yield f"{event['name']!r} is in a process without a name"
        if event["ph"] in "Xisf" and (event["pid"], event["tid"]) not in tracks:
            yield f"{event['name']!r} is on a track without a name"


def _slices(events: list[dict[str, Any]]) -> Iterator[str]:
    """On a track no slice begins before the one before it has ended, to the nanosecond."""
    ends: dict[tuple[int, int], int] = {}
    for event in events:
        if event["ph"] == "X":
            start, end = _span(event)
            if start < ends.get((event["pid"], event["tid"]), 0):
                yield f"{event['name']!r} overlaps the slice before it"
            ends[event["pid"], event["tid"]] = end


def _flows(events: list[dict[str, Any]]) -> Iterator[str]:
    """Each id begins once and then ends once, inside a slice, and where it ends that slice begins."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X" and event["dur"] > 0:
            spans.setdefault((event["pid"], event["tid"]), []).append(_span(event))
    found = Counter((event["ph"], event["id"]) for event in events if event["ph"] in "sf")
    ids = {number for _, number in found}
    if any(found[phase, number] != 1 for number in ids for phase in "sf"):
        yield "a flow does not begin once and end once"
    left: dict[int, float] = {}
    for event in events:
        if event["ph"] not in ("s", "f"):
            continue
        at = round(event["ts"] * 1000)
        inside = _holding(spans.get((event["pid"], event["tid"]), []), at)
        if not inside:
            yield f"flow {event['id']} is in no slice at its {event['ph']}"
        if event["ph"] == "s":
            left[event["id"]] = event["ts"]
        elif event["ts"] < left.get(event["id"], math.inf):
            yield f"flow {event['id']} ends before it begins"
        elif inside and inside[0][0] != at:
            yield f"flow {event['id']} does not end where a slice begins"


def _holding(spans: list[tuple[int, int]], at: int) -> list[tuple[int, int]]:
    """The span, of those of one track in order of time, that `at` is in; slices that take no time hold nothing."""
    place = bisect.bisect_right(spans, at, key=lambda span: span[0])
    return [span for span in spans[max(0, place - 1) : place] if span[0] <= at < span[1]]


def _span(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
