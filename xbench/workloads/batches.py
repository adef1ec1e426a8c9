"""Batches of a user's loader: a DataLoader, or anything else that can be iterated, in place of one fixed batch.

Every step takes the next batch as a plain loop does. It waits for the loader, and then copies the batch to the device;
the host does not wait for a copy from pinned memory. `Loader` is the host's side of this, `Feed` the device's.

**Ahead of the step.** Workers of a DataLoader prepare batches while the step runs, and so does the host of a GPU. If
such a step takes longer for another reason, as for communication, it waits less for its batch. Other loaders take their
time in every step.

**Epochs.** An iterable that ends is started again, after `set_epoch` of its sampler if there is one. An iterator is its
own only epoch, so the run ends with an error when it does.

**The first batch** is kept. The parity check takes it in every step, so a schedule and its reference have the same
batches. So do measurements of the computation alone: its slowdown by traffic, the engine's cost, the memory. Every rank
but the first varies it, as a fixed batch (`workloads.custom`). The other batches are taken as the loader gives them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from xbench.errors import WorkloadError
from xbench.interpreter import keep_garbage_from_children
from xbench.text import counted, cut, one_line
from xbench.workloads.nested import Inputs, is_named, samples_of, shape_of, tensors_in

Batch = tuple[Inputs, Any]
"""Inputs and targets."""


class Loader:
    """Batches of `source` in the memory of the host. `opened` is the context in which an epoch begins.

    `time_first`: whether the model may take time as the first dimension (`nested.samples_of`). Raises WorkloadError for
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
