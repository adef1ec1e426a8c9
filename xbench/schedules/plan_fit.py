"""Checks that a plan fits a model, and the buckets of a model without a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.nn import Parameter

from xbench.errors import SpecError, nearest

BUCKET_BYTES = 4 * 1024 * 1024
"""Size of a bucket where no plan says how large."""


def check_cover(buckets: Sequence[Sequence[str]], parameters: Mapping[str, Parameter]) -> None:
    """Each trainable parameter in exactly one bucket, one dtype a bucket; SpecError names the first that is not."""
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
    """Each of the parts once; SpecError otherwise."""
    if sorted(order) != list(range(count)):
        raise SpecError(
            f"the plan's order of parts does not name each of the {count} parts of its buckets once",
            hint="was the plan made for another model?",
        )


def default_buckets(parameters: Mapping[str, Parameter], most_bytes: int = BUCKET_BYTES) -> list[list[str]]:
    """Parameters in reverse order of registration, in buckets of one dtype and at most so many bytes, or one tensor."""
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
