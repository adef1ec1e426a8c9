"""Checks that a plan fits a model, and the buckets of a model without a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.nn import Parameter

from xbench.errors import SpecError, nearest

BUCKET_BYTES = 4 * 1024 * 1024
"""Size of a bucket without a plan."""


def check_cover(buckets: Sequence[Sequence[str]], parameters: Mapping[str, Parameter]) -> None:
    """Check that each trainable parameter is in one bucket, with one dtype per bucket.

    Raises SpecError for the first violation.
    """
    seen: set[str] = set()
    for names in buckets:
        if not names:
            raise SpecError("the plan has an empty bucket")
        for name in names:
            if name not in parameters:
                close = nearest(name, parameters)
                raise SpecError(
                    f"the plan names {name!r}, which is no trainable parameter of this model",
                    hint=f"did you mean {close!r}?" if close else "was the plan made for another model?",
                )
            if name in seen:
                raise SpecError(f"the plan has parameter {name!r} twice")
            seen.add(name)
        dtypes = {parameters[name].dtype for name in names}
        if len(dtypes) > 1:
            raise SpecError(
                f"the bucket that starts with {names[0]!r} mixes dtypes", hint="never two dtypes in a bucket"
            )
    for name in parameters:
        if name not in seen:
            raise SpecError(f"the plan leaves out parameter {name!r}", hint="was the plan made for another model?")


def check_parts(order: Sequence[int], count: int) -> None:
    """Check that the order contains each part once; raises SpecError otherwise."""
    if sorted(order) != list(range(count)):
        raise SpecError(
            f"the plan's order of parts does not name each of the {count} parts of its buckets once",
            hint="was the plan made for another model?",
        )


def default_buckets(parameters: Mapping[str, Parameter], most_bytes: int = BUCKET_BYTES) -> list[list[str]]:
    """Buckets of one dtype in reverse order of registration, of at most `most_bytes` or one tensor."""
    found: list[list[str]] = []
    dtype, filled = None, 0
    for name, parameter in reversed(list(parameters.items())):
        nbytes = parameter.numel() * parameter.element_size()
        if parameter.dtype != dtype or filled + nbytes > most_bytes:
            found.append([])
            dtype, filled = parameter.dtype, 0
        found[-1].append(name)
        filled += nbytes
    return found
