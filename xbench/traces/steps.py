"""Steps of one rank's trace: their parts, when gradients were ready, and which collectives carried them.

On a GPU all times are the device's: a gradient is ready when the last kernel that the host had launched by then has
ended. On a CPU they are the host's.

A step is split as the planner needs it: forward (from the step's first work to the start of backward), backward (to the
last gradient), waiting for collectives, and the rest, which is called the optimizer. The four add up to the period of
the steps.

`ranks_of` has the steps of all ranks of a run, or one sentence on what keeps their traces from being a profile.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from xbench.errors import UsageError
from xbench.text import and_of
from xbench.traces.events import GRADIENT_KINDS, UNKNOWN, Collective, Mark, Node, RankTrace
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


SHARDED_KINDS = ("all_gather", "reduce_scatter")
"""Collectives of training with sharded parameters, for which forward and backward wait as well."""

NEXT_TO_NOTHING = 0.01
"""Share of the bytes sent in the optimizer's step below which what was sent before it is no gradient."""

MAX_LOST = 0.01
"""Largest share of a step's kernels that may be missing."""

_BACKWARD = re.compile(r"Backward\d*$")


@dataclass(frozen=True)
class Sent:
    """One collective that carried gradients: how many gradients were complete when it was launched, and the event."""

    gradients: int
    collective: Collective
    begin_s: float
    """When the link was its own: its start, or the end of an earlier collective that it overlapped (Gloo's threads)."""

    @property
    def duration_s(self) -> float:
        """Time that it had the link, waiting for peers included [s]. Durations add up to the time the link was busy."""
        return max(0.0, self.collective.end_s - self.begin_s)


@dataclass(frozen=True)
class TracedLayer:
    """A forward operator with parameters: its name in the backward graph, its number of gradients, its forward [s]."""

    kind: str
    gradients: int
    forward_s: float


@dataclass(frozen=True)
class TracedStep:
    """One step. Times are in seconds; `ready_s` counts from the start of backward and follows `gradients`."""

    period_s: float
    forward_s: float
    backward_s: float
    waited_s: float
    exposed_s: float
    """Time in which a collective ran and nothing computed: exposed communication by the usual definition."""
    exposed_others_s: float
    """The part of it in which no collective of gradients or of sharded parameters ran."""
    ready_s: tuple[float, ...]
    gradients: tuple[Node, ...]
    layers: tuple[TracedLayer, ...]
    """Forward operators whose backward nodes handed over the gradients; each gradient belongs to one, in order."""
    sent: tuple[Sent, ...]
    others: tuple[Collective, ...]
    """Collectives of the step that carried none of these gradients."""
    passes: int = 1
    """Backward passes that sent gradients. All but the last do so in what is called the forward part here."""
    number: int | None = None
    """N of `ProfilerStep#N`, where the profiler marked the step."""
    lost: float = 0.0
    """Share of the kernels launched in the step that are not in the trace."""


def steps_of(trace: RankTrace) -> list[TracedStep]:
    """Return the whole steps of a trace that sent gradients, in order; empty where there are none.

    Steps whose number of gradients or of collectives is not the usual one are left out: a step that was cut off, or
    another phase. So are steps that lack many kernels, or kernels and collectives.
    """
    found = [step for step in _steps(trace, windows_of(trace)) if step is not None]
    sent = max((len(step.sent) for step in found), default=0)
    found = [step for step in found if not step.lost or (step.lost <= MAX_LOST and len(step.sent) == sent)]
    if not found:
        return []
    found = _usual(found, [len(step.gradients) for step in found])
    return _usual(found, [len(step.sent) for step in found])


def _usual(steps: list[TracedStep], sizes: Sequence[int]) -> list[TracedStep]:
    """The steps of the most frequent size, the larger of two that are as frequent."""
    counts = Counter(sizes)
    usual = max(counts, key=lambda size: (counts[size], size))
    return [step for step, size in zip(steps, sizes, strict=True) if size == usual]


def _sent(sending: Sequence[Collective], gradients: Sequence[Node]) -> list[Sent]:
    """The collectives of the gradients. Where two overlap, the time of both counts for the earlier one."""
    found, free_s = [], float("-inf")
    for one in sending:
        complete = sum(node.start_s < one.launched_s for node in gradients)
        found.append(Sent(complete, one, max(one.start_s, free_s)))
        free_s = max(free_s, one.end_s)
    return found


def _gradients(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.is_gradient]


def _steps(trace: RankTrace, windows: Sequence[Window]) -> list[TracedStep | None]:
    work = _Work.of(trace)
    starts = np.array([node.start_s for node in trace.nodes])
    begins = [work.first_start_s(window.since_s, window.until_s) for window in windows]
    found: list[TracedStep | None] = []
    for place, window in enumerate(windows):
        since_s, until_s = window.since_s, window.until_s
        low, high = np.searchsorted(starts, [since_s, until_s])
        inside = [one for one in trace.collectives if since_s <= one.launched_s < until_s]
        carried = _carried(trace, passes_of(trace, trace.nodes[low:high]), inside)
        begin_s = begins[place]
        if carried is None or begin_s is None:
            found.append(None)
            continue
        is_next = place + 1 < len(windows) and windows[place + 1].since_s - until_s < 1e-3
        after_s = begins[place + 1] if is_next else None
        end_s = max(begin_s + until_s - since_s, work.last_end_s(since_s, until_s))
        period_s = after_s - begin_s if after_s is not None and trace.is_gpu else end_s - begin_s
        if not period_s > 0:  # the clock went back
            found.append(None)
            continue
        layers = _layers(trace, work, carried.nodes)
        lost, ran = (
            int(np.diff(np.searchsorted(times_s, [since_s, until_s]))[0]) for times_s in (trace.lost_s, work.launches_s)
        )
        step = _step(work, window, carried, layers, inside, begin_s, period_s)
        found.append(replace(step, lost=lost / max(1, lost + ran)))
    return found


@dataclass(frozen=True)
class _Carried:
    """The backward pass whose gradients a step is planned for, and the collectives of gradients."""

    nodes: list[Node]
    sending: list[Collective]
    """Those that the pass launched, or the loop between the pass and the optimizer."""
    earlier: list[Collective]
    """Those of earlier passes of the step: gradients that were accumulated without `no_sync`."""
    passes: int
    """Passes that sent."""


def _carried(trace: RankTrace, groups: Sequence[list[Node]], inside: Sequence[Collective]) -> _Carried | None:
    """The last backward pass with gradients that sent them; None where there is none.

    What the host launched once the optimizer had begun is no gradient: a loss for the log, or averaged parameters. But
    an optimizer may average gradients in its own step. So what it launched there counts where nothing, or next to
    nothing, was sent before.
    """
    passes = [group for group in groups if _gradients(group)]
    sends = [one for one in inside if one.may_carry_gradients]
    for place in range(len(passes) - 1, -1, -1):
        nodes = passes[place]
        done_s = _gradients(nodes)[-1].end_s
        never = float("inf")
        optimizer_s, stepped_s = next((span for span in trace.optimizer_s if span[0] >= done_s), (never, never))
        after = [one for one in sends if nodes[0].start_s <= one.launched_s]
        sending = [one for one in after if one.launched_s < optimizer_s or _is_late(trace, one)]
        within = [one for one in after if optimizer_s <= one.launched_s < stepped_s and one not in sending]
        if _sent_bytes(within) * NEXT_TO_NOTHING > _sent_bytes(sending) or not sending:
            sending = within or sending
        if sending:
            begins = [group[0].start_s for group in passes[: place + 1]]
            before_s = max((since_s for since_s, _ in trace.optimizer_s if since_s < begins[-1]), default=begins[0])
            begins = [begin_s for begin_s in begins if begin_s >= before_s]  # others accumulate for another step
            earlier = [one for one in sends if begins[0] <= one.launched_s < begins[-1]]
            senders = {bisect.bisect_right(begins, one.launched_s) for one in earlier}
            return _Carried(nodes, sending, earlier, len(senders) + 1)
    return None


def _sent_bytes(collectives: Sequence[Collective]) -> int:
    return sum(one.nbytes or 0 for one in collectives)


def _is_late(trace: RankTrace, one: Collective) -> bool:
    """True for a kernel whose launch is not in the trace: its start on the device says little about the host."""
    return trace.is_gpu and one.launched_s == one.start_s


def _layers(trace: RankTrace, work: _Work, nodes: Sequence[Node]) -> list[TracedLayer]:
    """Layers of a backward pass: a gradient belongs to the forward operator of the node before it.

    Gradients of operators of which one contains the other (`linear` contains `addmm`) belong to one layer.
    """
    found: list[TracedLayer] = []
    last: tuple[float, float] | None = None
    source: Node | None = None
    for node in nodes:
        if not node.is_gradient:
            source = node
            continue
        span = trace.forward_s.get(source.sequence) if source is not None and source.sequence is not None else None
        if found and span is not None and last is not None and span[0] < last[1] and last[0] < span[1]:
            last = (min(span[0], last[0]), max(span[1], last[1]))
            found[-1] = TracedLayer(found[-1].kind, found[-1].gradients + 1, work.taken_s(*last))
            continue
        kind = _BACKWARD.sub("", source.name) if source is not None else "parameter"
        found.append(TracedLayer(kind, 1, work.taken_s(*span) if span is not None else 0.0))
        last = span
    return found


def _step(
    work: _Work,
    window: Window,
    carried: _Carried,
    layers: Sequence[TracedLayer],
    inside: Sequence[Collective],
    begin_s: float,
    period_s: float,
) -> TracedStep:
    nodes, sending = carried.nodes, carried.sending
    host_s = nodes[0].start_s
    backward_at_s = work.first_start_s(host_s, window.until_s) or host_s
    backward_end_s = max(work.done_s(nodes[-1].end_s), backward_at_s)
    gradients = _gradients(nodes)
    ready = [max(0.0, work.done_s(node.end_s) - backward_at_s) for node in gradients]
    last_s = max(one.end_s for one in sending)
    sharded = [one for one in inside if one.kind in SHARDED_KINDS]
    exposed_s = work.idle_s([(one.start_s, one.end_s) for one in inside], begin_s, begin_s + period_s)
    spans = [(one.start_s, one.end_s) for one in sending]
    blocked = [(one.start_s, one.end_s) for one in [*sharded, *carried.earlier]]
    forward_waited_s = work.idle_s(blocked, begin_s, backward_at_s)
    backward_waited_s = work.idle_s(blocked, backward_at_s, backward_end_s)
    waited_s = last_s - backward_end_s - work.busy_s(backward_end_s, last_s) if last_s > backward_end_s else 0.0
    return TracedStep(
        period_s=period_s,
        forward_s=max(0.0, backward_at_s - begin_s - forward_waited_s),
        backward_s=max(0.0, backward_end_s - backward_at_s - backward_waited_s),
        waited_s=waited_s + forward_waited_s + backward_waited_s,
        exposed_s=exposed_s,
        exposed_others_s=exposed_s - work.idle_s([*spans, *blocked], begin_s, begin_s + period_s),
        ready_s=tuple(np.maximum.accumulate(ready).tolist()),
        gradients=tuple(gradients),
        layers=tuple(layers),
        sent=tuple(_sent(sending, gradients)),
        others=tuple(one for one in inside if one not in sending),
        passes=carried.passes,
        number=window.number,
    )


@dataclass(frozen=True)
class _Work:
    """What computes, with the questions that the steps ask of it."""

    launches_s: FloatArray
    """When the host launched each piece of work, ascending; `start_s` and `end_s` follow this order."""
    start_s: FloatArray
    end_s: FloatArray
    done_by_launch_s: FloatArray
    """Latest end of all work launched up to here."""
    merged: FloatArray
    """Disjoint busy spans, of shape (n, 2)."""

    @classmethod
    def of(cls, trace: RankTrace) -> _Work:
        """Prepare the work of a trace."""
        order = np.argsort(trace.work_launched_s, kind="stable")
        ends = trace.work_end_s[order]
        merged = _merged(np.column_stack([trace.work_start_s, trace.work_end_s]))
        return cls(
            trace.work_launched_s[order],
            trace.work_start_s[order],
            ends,
            np.maximum.accumulate(ends) if ends.size else ends,
            merged,
        )

    def first_start_s(self, since_s: float, until_s: float) -> float | None:
        """Start of the first work that was launched in a window of the host; None where there is none."""
        low, high = np.searchsorted(self.launches_s, [since_s, until_s])
        return float(self.start_s[low:high].min()) if high > low else None

    def last_end_s(self, since_s: float, until_s: float) -> float:
        """End of the last work that was launched in a window of the host."""
        low, high = np.searchsorted(self.launches_s, [since_s, until_s])
        return float(self.end_s[low:high].max()) if high > low else until_s

    def taken_s(self, since_s: float, until_s: float) -> float:
        """Time from the start to the end of the work that was launched in a window of the host [s]."""
        begin_s = self.first_start_s(since_s, until_s)
        return self.last_end_s(since_s, until_s) - begin_s if begin_s is not None else until_s - since_s

    def done_s(self, host_s: float) -> float:
        """When all work that the host had launched by `host_s` was done; on a CPU, `host_s` itself or later."""
        place = int(np.searchsorted(self.launches_s, host_s, side="right")) - 1
        return float(self.done_by_launch_s[place]) if place >= 0 else host_s

    def busy_s(self, since_s: float, until_s: float) -> float:
        """Seconds of work between two times."""
        clipped = np.clip(self.merged, since_s, until_s)
        return float((clipped[:, 1] - clipped[:, 0]).sum()) if until_s > since_s else 0.0

    def idle_s(self, spans: Sequence[tuple[float, float]], since_s: float, until_s: float) -> float:
        """Seconds within `spans` and between two times in which nothing computes."""
        if not spans or until_s <= since_s:
            return 0.0
        clipped = np.clip(_merged(np.array(sorted(spans))), since_s, until_s)
        return float(sum(end_s - start_s - self.busy_s(start_s, end_s) for start_s, end_s in clipped))


def _merged(spans: FloatArray) -> FloatArray:
    """Disjoint spans that cover the same, from spans sorted by start."""
    if not len(spans):
        return np.empty((0, 2))
    ends = np.maximum.accumulate(spans[:, 1])
    opens = np.concatenate([[True], spans[1:, 0] > ends[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return np.column_stack([spans[opens, 0], ends[closes]])


RECORD_IT = "record it around several steps of training on two or more ranks, with record_shapes=True"


@dataclass(frozen=True)
class RankSteps:
    """One file: its name, its trace, and its steps."""

    name: str
    trace: RankTrace
    steps: Sequence[TracedStep]


def ranks_of(traces: Sequence[tuple[str, RankTrace]]) -> list[RankSteps]:
    """Return the same steps of each trace.

    Raises UsageError, in one sentence, for a trace without a backward pass, collectives of gradients or a whole step,
    for a trace of several ranks, for two traces of one rank, and for traces of different runs or of different steps.
    """
    found = []
    for name, trace in traces:
        _check_one_process(name, trace)
        steps = steps_of(trace)
        if not steps or trace.world_size == 1:
            told, hint = _missing(trace)
            raise UsageError(f"{name}: {told}", hint=hint)
        found.append(RankSteps(name, trace, steps))
    for one, other in pairwise(sorted(found, key=lambda rank: -1 if rank.trace.rank is None else rank.trace.rank)):
        if one.trace.rank is not None and one.trace.rank == other.trace.rank:
            raise UsageError(
                f"{one.name} and {other.name} are both of rank {one.trace.rank}", hint="give each rank once"
            )
        if one.trace.world_size != other.trace.world_size or len(one.steps[0].gradients) != len(
            other.steps[0].gradients
        ):
            raise UsageError(f"{one.name} and {other.name} are of different runs", hint="give the ranks of one run")
    return _same_steps(found) if len(found) > 1 else found


def _check_one_process(name: str, trace: RankTrace) -> None:
    """Refuse the traces of several ranks in one file: their processes differ, or their steps overlap."""
    if len(trace.processes) > 1 or trace.has_overlaps:
        processes = f"backward passes of processes {and_of(trace.processes)}"
        raise UsageError(
            f"{name} holds {processes if len(trace.processes) > 1 else 'steps that overlap'}, as several ranks have",
            hint="give each rank's file by itself: xbench trace rank0.json rank1.json",
        )


def _same_steps(ranks: Sequence[RankSteps]) -> list[RankSteps]:
    """The steps that all ranks have: by their marks' numbers, or without marks those that were traced last."""
    numbers = [{step.number: step for step in rank.steps if step.number is not None} for rank in ranks]
    if all(numbers):
        both = set(numbers[0]).intersection(*numbers[1:])
        if not both:
            told = " and ".join(f"{rank.name} has {_span(mine)}" for rank, mine in zip(ranks, numbers, strict=True))
            raise UsageError(f"no step is in all traces: {told}", hint="trace the same steps on all ranks")
        return [
            RankSteps(rank.name, rank.trace, [mine[number] for number in sorted(both)])
            for rank, mine in zip(ranks, numbers, strict=True)
        ]
    count = min(len(rank.steps) for rank in ranks)
    return [RankSteps(rank.name, rank.trace, rank.steps[-count:]) for rank in ranks]


def _span(numbers: Collection[int]) -> str:
    first, last = min(numbers), max(numbers)
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _missing(trace: RankTrace) -> tuple[str, str]:
    """Say what keeps a trace from being a profile, and what would help."""
    if trace.world_size == 1:
        return "its run had one rank, so nothing was sent", RECORD_IT
    if not trace.nodes:
        return "it holds no backward pass", RECORD_IT
    kinds = sorted({one.kind for one in trace.collectives})
    if not kinds:
        return "it holds no collective", RECORD_IT
    if kinds == [UNKNOWN]:
        return (
            "neither the kernels of its collectives nor the host's calls say what they do",
            "record the host's activity, too: ProfilerActivity.CPU",
        )
    if not set(kinds) & set(GRADIENT_KINDS):
        return f"its collectives ({', '.join(kinds)}) carry no gradients", RECORD_IT
    if not any(one.may_carry_gradients for one in trace.collectives):
        sizes = sorted({one.group_size or 0 for one in trace.collectives if one.kind in GRADIENT_KINDS})
        of = " or ".join(str(size) for size in sizes)
        return (
            f"its gradients are reduced in groups of {of} of its {trace.world_size} ranks, never over all of them",
            "plans are for gradients that all ranks average: trace a run without tensor parallelism or HSDP",
        )
    if len(trace.lost_s):
        return (
            f"its steps lack kernels that the host launched ({len(trace.lost_s)} in all)",
            "call torch.cuda.synchronize() before the profiler stops, or trace fewer steps",
        )
    if len(trace.marked_steps) > len(trace.step_ends_s) > 0:
        return (
            "it holds no whole step that sent gradients",
            "where profiler.step() follows each micro-batch, trace three times as many as a step has",
        )
    return "it holds no whole step that sent gradients", RECORD_IT
