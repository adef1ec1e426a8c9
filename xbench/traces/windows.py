"""The spans of a trace's steps on the host, and its backward passes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.traces.events import Mark, Node, RankTrace
from xbench.traces.kernels import FloatArray


@dataclass(frozen=True)
class Window:
    """The span of one step on the host [s], and the number of its last mark, if the profiler marked it."""

    since_s: float
    until_s: float
    number: int | None = None
    marks: int = 1
    """Marks that were joined: one for each micro-batch, where the loop called `profiler.step()` after each."""


def windows_of(trace: RankTrace) -> list[Window]:
    """Return the windows of the steps: by the profiler's marks, else by the optimizer, else by the backward passes."""
    if trace.marked_steps:
        return _marked(trace) or [Window(*span) for span in _by_optimizer(trace)]
    return [Window(*span) for span in _by_optimizer(trace) or _by_backward(trace)]


def _marked(trace: RankTrace) -> list[Window]:
    """Windows of `ProfilerStep`.

    A mark ends a step if gradients were sent in it; where some such marks hold an optimizer step, only these do. Other
    marks with gradients are micro-batches of the step that the next such mark ends.
    """
    marks = trace.marked_steps
    gradients = np.array([node.start_s for node in trace.nodes if node.is_gradient])
    sends = np.array([one.launched_s for one in trace.collectives if one.may_carry_gradients])
    optimizer = np.array([since_s for since_s, _ in trace.step_ends_s])
    sending = [mark for mark in marks if _holds(gradients, mark.since_s, mark.until_s)]
    sending = [mark for mark in sending if _holds(sends, mark.since_s, mark.until_s)]
    ends = [mark for mark in sending if _holds(optimizer, mark.since_s, mark.until_s)] or sending
    found: list[Window] = []
    joined: list[Mark] = []
    for mark in marks:
        if joined and joined[-1].number + 1 != mark.number:
            joined = []
        joined.append(mark)
        if mark in ends:
            found.append(Window(joined[0].since_s, mark.until_s, mark.number, len(joined)))
            joined = []
        elif not _holds(gradients, joined[0].since_s, mark.until_s):
            joined = []
    return _whole(found, is_cut=bool(joined))


def _whole(windows: list[Window], *, is_cut: bool) -> list[Window]:
    """The windows with the usual number of marks, the larger of two numbers that are as usual.

    The first window may lack micro-batches from before the trace. `is_cut`: there are some after the last window.
    """
    counts = Counter(window.marks for window in windows)
    if (is_cut or len(counts) > 1 or 1 not in counts) and windows and counts[windows[0].marks] == 1:
        counts[windows[0].marks] = 0
    usual = max(counts, key=lambda marks: (counts[marks], marks), default=0)
    return [window for window in windows if window.marks == usual and counts[usual]]


def _holds(times_s: FloatArray, since_s: float, until_s: float) -> bool:
    low, high = np.searchsorted(times_s, [since_s, until_s])
    return bool(high > low)


def _by_optimizer(trace: RankTrace) -> list[tuple[float, float]]:
    """Windows from one optimizer step to the next one that has backward nodes between; the first is cut off."""
    starts = np.array([node.start_s for node in trace.nodes])
    ends: list[float] = []
    for span in trace.step_ends_s:
        if ends and not np.any((starts > ends[-1]) & (starts < span[0])):
            ends[-1] = span[1]
        else:
            ends.append(span[1])
    return list(itertools.pairwise(ends))


def _by_backward(trace: RankTrace) -> list[tuple[float, float]]:
    """Windows from the first forward operator after one backward pass that sent gradients to the next such operator."""
    groups = [group for group in passes_of(trace, trace.nodes) if any(node.is_gradient for node in group)]
    sends = [one.launched_s for one in trace.collectives if one.may_carry_gradients]
    following = [*groups[1:], None] if groups else []
    sending = [
        group
        for group, after in zip(groups, following, strict=True)
        if any(group[0].start_s <= at and (after is None or at < after[0].start_s) for at in sends)
    ]
    forward = np.sort(np.array([start_s for start_s, _ in trace.forward_s.values()]))
    begins = []
    for group in sending:
        later = forward[forward > group[-1].end_s]
        if later.size:  # nothing tells where the last step ends
            begins.append(float(later[0]))
    first = float(forward[0]) if forward.size else None
    if first is not None and sending and first < sending[0][0].start_s:
        begins.insert(0, first)
    return list(itertools.pairwise(begins))


def passes_of(trace: RankTrace, nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the backward passes: nodes between which no forward operator began."""
    forward = np.sort(np.array([start_s for start_s, _ in trace.forward_s.values()]))
    groups: list[list[Node]] = []
    for node in nodes:
        if groups:
            since, until = np.searchsorted(forward, [groups[-1][-1].end_s, node.start_s])
        if not groups or until > since:
            groups.append([])
        groups[-1].append(node)
    return groups
