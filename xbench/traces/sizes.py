"""Sizes and names of the gradients of a traced step: from recorded shapes, from the model, or from the buckets."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from xbench.errors import UsageError
from xbench.records.comparison import SizesFrom
from xbench.text import counted
from xbench.traces.events import RankTrace
from xbench.traces.steps import TracedStep
from xbench.units import format_bytes

ALIKE = 0.01
"""Largest share of what was sent that may be padding, as sharded modes add it."""

ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16}


@dataclass(frozen=True)
class Parameter:
    """One trainable parameter of a model, in the order in which the model lists them."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass
class Sizes:
    """Name (empty: unknown), elements, bytes and dtype of each gradient in ready order, and its bucket's number."""

    names: list[str]
    elements: list[int]
    nbytes: list[int]
    dtypes: list[str]
    bucket_of: list[int]
    source: SizesFrom
    sent_nbytes: list[int]
    """Bytes of each collective of a step, in launch order, as gradients of their own dtype; 0: not known."""
    bytes_per_sent_byte: float = 1.0
    """Bytes of gradients over the bytes that were sent for them: 2 where fp32 gradients were sent as bf16."""
    cautions: list[str] = field(default_factory=list)


def gradient_sizes(
    trace: RankTrace, steps: Sequence[TracedStep], parameters: Sequence[Parameter] | None = None
) -> Sizes:
    """Return the sizes of the gradients of a step.

    Recorded shapes come first. Without them, the bytes of each collective are divided among the gradients that were
    complete since the one before, in proportion to the model's parameters if these are given, else evenly. Raises
    UsageError where neither is known, or where the model has another number of parameters than the step has gradients.
    """
    step = steps[-1]
    bucket_of, ends = _bucket_of(step)
    count = len(step.gradients)
    sent = _sent_nbytes(steps)
    shapes = _shapes(trace, step)
    dtype = next((one.collective.dtype for one in step.sent if one.collective.dtype), "float32")
    if shapes is not None:
        sizes = _from_shapes(shapes, bucket_of, parameters)
    elif parameters is not None:
        if len(parameters) != count:
            raise UsageError(
                f"the trace has {counted(count, 'gradient')} a step, and the model has "
                f"{counted(len(parameters), 'trainable parameter')}",
                hint="give the --model that was traced",
            )
        sizes = _from_model(parameters, bucket_of)
    elif all(sent):
        item = ITEM_BYTES.get(dtype, 4)
        wholes = [
            sum(nbytes for nbytes, end in zip(sent, ends, strict=True) if end == last) for last in dict.fromkeys(ends)
        ]
        shares = Counter(bucket_of)
        elements = [wholes[bucket] // item // shares[bucket] for bucket in bucket_of]
        for bucket, whole in enumerate(wholes):  # what does not divide evenly goes to the bucket's last gradient
            last = max(index for index, one in enumerate(bucket_of) if one == bucket)
            elements[last] += whole // item - sum(elements[i] for i, one in enumerate(bucket_of) if one == bucket)
        sizes = Sizes(
            [""] * count, elements, [one * item for one in elements], [dtype] * count, bucket_of, "buckets", sent
        )
        sizes.cautions.append(
            "The trace holds no shapes, so the bytes of each bucket are divided evenly among its gradients; "
            "--model WORKLOAD or record_shapes=True tells their sizes."
        )
    else:
        raise UsageError(
            "the trace holds neither the shapes of gradients nor the bytes of collectives",
            hint="give --model WORKLOAD, or record the trace with record_shapes=True",
        )
    sizes.sent_nbytes = sent if all(sent) else _bytes_by_bucket(sizes, ends)
    if all(sent) and sizes.source != "buckets":
        _compare(sizes, step, ends)
    return sizes


def _compare(sizes: Sizes, step: TracedStep, ends: Sequence[int]) -> None:
    """Count what was sent in the dtype of the gradients, and say where gradients and collectives do not add up.

    As in measured profiles, T(M) is the time to average M bytes of gradients, whatever they were sent as.
    """
    own, wire = set(sizes.dtypes), {one.collective.dtype for one in step.sent}
    if len(own) == len(wire) == 1 and own != wire:
        dtype, sent_as = own.pop(), wire.pop()
        item, sent_item = ITEM_BYTES.get(dtype), ITEM_BYTES.get(sent_as or "")
        if item and sent_item and _is_alike(sum(sizes.sent_nbytes) // sent_item, sum(sizes.elements)):
            sizes.sent_nbytes = [nbytes // sent_item * item for nbytes in sizes.sent_nbytes]
            sizes.bytes_per_sent_byte = item / sent_item
            sizes.cautions.append(
                f"Gradients of {dtype} were sent as {sent_as}; all sizes, and those of T(M), are in {dtype}."
            )
    if sizes.source == "model" and sizes.sent_nbytes != _bytes_by_bucket(sizes, ends):
        sizes.cautions.append(
            "The model's parameters do not add up to the traced buckets: "
            "the order of its gradients is about right at best."
        )
    elif not _is_alike(sum(sizes.sent_nbytes), sum(sizes.nbytes)):
        sizes.cautions.append(
            f"The gradients have {format_bytes(sum(sizes.nbytes))}, and {format_bytes(sum(sizes.sent_nbytes))} were "
            "sent for them. T(M) is by what was sent, so predictions for the gradients' sizes are rough."
        )


def _is_alike(sent: int, gradients: int) -> bool:
    return abs(sent - gradients) <= ALIKE * sent


def _bucket_of(step: TracedStep) -> tuple[list[int], list[int]]:
    """The bucket of each gradient, and for each collective the number of gradients that are in it or before it.

    Collectives launched after the same gradient share a bucket. Gradients after the last launch belong to the last one.
    """
    ends = [max(1, sent.gradients) for sent in step.sent]
    distinct = sorted(set(ends))
    ends = [len(step.gradients) if end == distinct[-1] else end for end in ends]
    distinct[-1] = len(step.gradients)
    return [bisect.bisect_right(distinct, index) for index in range(len(step.gradients))], ends


def _sent_nbytes(steps: Sequence[TracedStep]) -> list[int]:
    """Bytes of each collective of a step, the usual ones of all steps; 0 where the trace does not say."""
    usual = Counter(tuple(one.collective.nbytes or 0 for one in step.sent) for step in steps).most_common(1)[0][0]
    last = tuple(one.collective.nbytes or 0 for one in steps[-1].sent)
    return list(usual if len(usual) == len(last) else last)


def _shapes(trace: RankTrace, step: TracedStep) -> list[tuple[tuple[int, ...], str]] | None:
    """Shape and dtype of each gradient, from the operator inside its node; None unless all were recorded."""
    starts = sorted(trace.gradient_shapes)
    found = []
    for node in step.gradients:
        place = bisect.bisect_left(starts, node.start_s)
        if place == len(starts) or starts[place] > node.end_s:
            return None
        found.append(trace.gradient_shapes[starts[place]])
    return found


def _from_shapes(
    shapes: Sequence[tuple[tuple[int, ...], str]], bucket_of: list[int], parameters: Sequence[Parameter] | None
) -> Sizes:
    elements = [prod(shape) for shape, _ in shapes]
    nbytes = [count * ITEM_BYTES.get(dtype, 4) for count, (_, dtype) in zip(elements, shapes, strict=True)]
    names = [""] * len(shapes)
    sizes = Sizes(names, elements, nbytes, [dtype for _, dtype in shapes], bucket_of, "shapes", [])
    if parameters is not None:
        left = list(parameters)
        for index, (shape, _) in enumerate(shapes):  # backward comes to the last parameters first
            match = next((one for one in reversed(left) if one.shape == shape), None)
            if match is not None:
                names[index] = match.name
                left.remove(match)
        if left or not all(names):
            sizes.names = [""] * len(shapes)
            sizes.cautions.append("The model's parameters are not the traced ones, so gradients have no names.")
    return sizes


def _from_model(parameters: Sequence[Parameter], bucket_of: list[int]) -> Sizes:
    """Take the model's parameters in reverse, which is about the order of backward."""
    ordered = list(reversed(parameters))
    elements = [prod(one.shape) for one in ordered]
    nbytes = [count * ITEM_BYTES.get(one.dtype, 4) for count, one in zip(elements, ordered, strict=True)]
    return Sizes(
        [one.name for one in ordered], elements, nbytes, [one.dtype for one in ordered], bucket_of, "model", []
    )


def _bytes_by_bucket(sizes: Sizes, ends: Sequence[int]) -> list[int]:
    """Bytes of each collective from the gradients of its bucket; several of one bucket share them evenly."""
    shares = Counter(ends)
    places = {end: number for number, end in enumerate(dict.fromkeys(ends))}
    wholes = [0] * len(places)
    for bucket, nbytes in zip(sizes.bucket_of, sizes.nbytes, strict=True):
        wholes[bucket] += nbytes
    return [wholes[places[end]] // shares[end] for end in ends]
