"""Batches: tensors in nests of tuples, lists and mappings, the number of samples, and the batches of a user's loader.

A loader is a DataLoader, or anything else that can be iterated, in place of one fixed batch (docs/own-model.md). Every
step waits for the next batch as a plain loop does, and then copies it to the device; the host does not wait for a copy
from pinned memory. `Loader` is the host's side of this, `Feed` the device's. Workers of a DataLoader prepare batches
while the step runs, and so does the host of a GPU: such a step waits less for its batch if it also waits for gradients.

**The first batch** is kept. The parity check takes it in every step, so a schedule and its reference have the same
batches. So do measurements of the computation alone. Every rank but the first varies it (`workloads.custom`).

**Samples.** Each part of a batch has possible numbers of samples: a tensor its first dimension, a list of tensors its
length and what its items have in common, a packed sequence and a jagged tensor the number of their sequences. If the
model has a module with `batch_first=False`, the second dimension of a tensor is possible, too. The batch has as many
samples as all parts of its inputs and targets can have. If that is no number, or more than one, it is not known.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from xbench.errors import WorkloadError
from xbench.interpreter import keep_garbage_from_children
from xbench.text import counted, cut, one_line

Inputs = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""A model's inputs: `model(*x)` for a tuple or list, `model(**x)` for a mapping, `model(x)` for a tensor or a named
tuple."""


def is_named(value: Any) -> bool:
    """True for a named tuple, which is one object with fields, as a packed sequence is."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nest of tuples, lists and mappings, in order; of a packed sequence its data alone."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, PackedSequence):
        yield value.data
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuple, named tuple, list or mapping, with each direct part changed. Anything else stays as it is."""
    if isinstance(value, Mapping):
        changed = {key: change(item) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return changed
        same_type = copy(value)
        same_type.update(changed)
        return same_type
    if is_named(value):
        return type(value)(*map(change, value))
    if isinstance(value, tuple | list):
        return type(value)(map(change, value))
    return value


def with_each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of tuples, named tuples, lists and mappings, with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, PackedSequence):  # its sizes stay on the CPU
        data, sizes, *orders = value
        return PackedSequence(change(data), sizes, *(one if one is None else change(one) for one in orders))
    return with_parts(value, lambda part: with_each(part, change))


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Sizes of a tensor; of a nested one, 0 for a dimension in which its parts differ."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    shapes = [part.shape for part in tensor.unbind()]
    return (len(shapes), *(sizes[0] if len(set(sizes)) == 1 else 0 for sizes in zip(*shapes, strict=True)))


def takes_time_first(model: nn.Module) -> bool:
    """True if a module of the model says `batch_first=False`, as torch's recurrent layers and attention do."""
    return any(getattr(module, "batch_first", True) is False for module in model.modules())


def sizes_of(value: Any, time_first: bool = False) -> set[int] | None:
    """Possible numbers of samples in a part of a batch; None without a tensor that has a dimension."""
    if isinstance(value, PackedSequence):
        return {int(value.batch_sizes[0])}
    if isinstance(value, Tensor):
        return set(shape_of(value)[: 2 if time_first and not value.is_nested else 1]) or None
    if isinstance(value, Mapping):
        return _common(value.values(), time_first)
    if isinstance(value, tuple | list):
        found = _common(value, time_first)
        return found if found is None or is_named(value) else found | {len(value)}
    return None


def samples_of(inputs: Inputs, targets: Any, time_first: bool = False) -> int | None:
    """Number of samples in a batch; None if its parts do not tell."""
    arguments = inputs if isinstance(inputs, tuple | list) and not is_named(inputs) else [inputs]
    found = _common([*arguments, targets], time_first)
    return min(found) if found is not None and len(found) == 1 else None


def _common(parts: Iterable[Any], time_first: bool) -> set[int] | None:
    sizes = [found for part in parts if (found := sizes_of(part, time_first)) is not None]
    return set.intersection(*sizes) if sizes else None


Batch = tuple[Inputs, Any]
"""Inputs and targets."""


class Loader:
    """Batches of `source` in the memory of the host. `opened` is the context in which an epoch begins.

    `time_first`: whether the model may take time as the first dimension (`samples_of`). Raises WorkloadError for
    a DataLoader whose last batch is smaller than the others.
    """

    def __init__(
        self,
        title: str,
        source: Iterable[Any],
        opened: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        time_first: bool = False,
    ) -> None:
        keep_garbage_from_children()  # workers are forks
        self.epoch = 0
        """Number of the epoch, from 0 on."""
        self._title, self._source, self._opened, self._time_first = title, source, opened, time_first
        self._taken = 0
        self._samples: int | None = None  # of the first batch, if its tensors tell, and the loader does not deny it
        self._check_last()
        self._iterator: Iterator[Any] = self._raising(self._begin)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch, as the source says; None where it does not. A single, smaller batch has all samples."""
        size = getattr(self._source, "batch_size", None)
        if not isinstance(size, int):
            return None
        return min(size, self._drawn or size)

    @property
    def _drawn(self) -> int | None:
        """Samples that the source draws in an epoch; None if it does not say."""
        try:
            return len(getattr(self._source, "sampler", None))  # type: ignore[arg-type]
        except TypeError:  # no sampler, or of a data set without a length
            return None

    @property
    def workers(self) -> int:
        """Number of processes that prepare batches while the step runs."""
        workers = getattr(self._source, "num_workers", 0)
        return workers if isinstance(workers, int) else 0

    @property
    def description(self) -> str:
        """Kind of the source, for people: 'DataLoader with 2 workers', 'generator'."""
        name = type(self._source).__name__
        return f"{name} with {counted(self.workers, 'worker')}" if self.workers else name

    def take(self) -> Batch:
        """The next batch. Raises WorkloadError without one, for one of another size, and for errors of the source."""
        batch = self._raising(self._next)
        inputs, targets = checked(batch, f"{self._title}: its {type(self._source).__name__}")
        samples = samples_of(inputs, targets, self._time_first)
        if not self._taken:
            self._samples = samples if self.batch_size in (None, samples) else None
        elif self._samples is not None and samples is not None and samples != self._samples:
            raise WorkloadError(
                f"{self._title}: batch {self._taken + 1} of its {type(self._source).__name__} has "
                f"{counted(samples, 'sample')} and the others {self._samples}, and steps must be equal to be compared",
                hint="drop_last=True leaves a smaller last batch out" if samples < self._samples else None,
            )
        self._taken += 1
        return inputs, targets

    def _begin(self) -> Iterator[Any]:
        with self._opened():
            return iter(self._source)

    def _next(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            if self._taken and self._iterator is not self._source:
                self._begin_again()
        try:
            return next(self._iterator)
        except StopIteration:
            raise self._ended() from None

    def _begin_again(self) -> None:
        self.epoch += 1
        for one in (self._source, getattr(self._source, "sampler", None)):
            set_epoch = getattr(one, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self.epoch)
        self._iterator = self._begin()

    def _ended(self) -> WorkloadError:
        name = type(self._source).__name__
        if not self._taken:
            return WorkloadError(
                f"{self._title}: its {name} has no batch",
                hint="with drop_last=True, a rank needs as many samples as a batch has",
            )
        return WorkloadError(
            f"{self._title}: its {name} ended after {counted(self._taken, 'batch', 'batches')} and cannot be started "
            "again, and a run takes as many batches as its steps need",
            hint="return a DataLoader, an object whose __iter__ begins anew, or an endless iterator (itertools.cycle)",
        )

    def _check_last(self) -> None:
        size, samples = self.batch_size, self._drawn
        if size is None or samples is None or getattr(self._source, "drop_last", True):
            return
        if samples % size:
            raise WorkloadError(
                f"{self._title}: the last batch of its {type(self._source).__name__} has "
                f"{counted(samples % size, 'sample')} and the others {size}, and steps must be equal to be compared",
                hint="give it drop_last=True",
            )

    def _raising(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except WorkloadError:
            raise
        except Exception as error:
            kind = type(error).__name__
            text = str(error)
            if "Original Traceback" in text:  # of a worker process
                text = text.strip().splitlines()[-1].removeprefix(f"{kind}: ")
            raise WorkloadError(
                f"{self._title}: its {type(self._source).__name__} raised {kind}: "
                f"{cut(one_line(text) or 'no message', 300)}",
                detail="".join(traceback.format_exception(error)),
            ) from error


class Feed:
    """Batches of a loader on a device, one a micro-step. `first` is there already; `place` moves a batch."""

    def __init__(self, loader: Loader, first: Batch, place: Callable[[Batch], Batch]) -> None:
        self.loader, self.first = loader, first
        self._place = place
        self._ahead: Batch | None = None
        self._held = False

    def take(self) -> Batch:
        """The next batch; the first one again while the feed is held. Raises WorkloadError as the loader does."""
        if self._held:
            return self.first
        batch, self._ahead = self._ahead or self.loader.take(), None
        return self._place(batch)

    def fetch(self) -> None:
        """Wait for the next batch already now, before `take` copies it to the device."""
        if not self._held and self._ahead is None:
            self._ahead = self.loader.take()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context in which every step has the first batch."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before


def is_loader(value: Any) -> bool:
    """True for what can be iterated and is no batch itself."""
    return hasattr(value, "__iter__") and not isinstance(value, tuple | list | Mapping | str | bytes | Tensor)


def checked(batch: Any, whose: str, hint: str | None = None) -> Batch:
    """The batch, if it is (inputs, targets) and a model can take the inputs. Raises WorkloadError otherwise.

    `whose` is the subject of the error's sentence.
    """

    def wrong(what: str) -> WorkloadError:
        return WorkloadError(f"{whose} {what}", hint=hint or "each of its batches is (inputs, targets)")

    if not isinstance(batch, tuple | list) or len(batch) != 2:
        if isinstance(batch, Mapping):
            hint = "a batch is (inputs, targets): (batch, None) for a model that computes its loss from the inputs"
        raise wrong(f"returned {kind_of(batch)} as its batch and not (inputs, targets)")
    inputs, targets = batch
    if not isinstance(inputs, Tensor | tuple | list | Mapping):
        hint = "a model of such an object can take its tensors: a tuple of arguments, or a dict by their names"
        raise wrong(f"returned {kind_of(inputs)} as inputs, which is not a tensor, tuple or dict")
    if isinstance(inputs, Mapping) and not all(isinstance(key, str) for key in inputs):
        raise wrong("returned a dict of inputs whose keys are not all argument names")
    first = next(tensors_in(inputs), None)
    if first is None:
        raise wrong("returned inputs without a tensor")
    if not (shape := shape_of(first)) or shape[0] == 0:
        raise wrong(f"returned a first input of shape {shape}, which has no samples")
    return inputs, targets


def kind_of(value: Any) -> str:
    """A value by its type, for a sentence: 'a tuple of 3', 'None', 'a Tensor'."""
    if isinstance(value, tuple | list) and not is_named(value):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
