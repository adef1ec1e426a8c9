"""The steps of the ranks of one run, step by step, or one sentence on what keeps their traces from being a profile."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xbench.errors import UsageError
from xbench.text import and_of
from xbench.traces.events import GRADIENT_KINDS, UNKNOWN, RankTrace
from xbench.traces.steps import TracedStep, steps_of

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
