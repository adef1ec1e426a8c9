"""What every schedule offers, and the handle that a user holds.

A schedule attaches to an ordinary module and optimizer and detaches without trace:

    with xbench.attach(model, optimizer, schedule="optimal", plan=plan) as handle:
        loss = criterion(handle.model(inputs), targets)
        loss.backward()
        optimizer.step()

`handle.model` is the module to call in forward: the model itself, or DDP's wrapper where the schedule is DDP.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from xbench.records.measured_parts import Parts
from xbench.schedules.engine import Engine, Wait, Watch
from xbench.spec import Compress, Copies

Buckets = Sequence[Sequence[str]]


@dataclass(frozen=True)
class AttachConfig:
    """What a schedule is attached to, and how: the argument of every `Schedule.attach`."""

    model: Module
    """The module that is trained; its parameters are equal on all ranks already."""
    optimizer: Optimizer | None = None
    """Whose step waits for gradients under `wait="step"`; None where the loop waits by `Handle.synchronize`."""
    buckets: Buckets | None = None
    """Names of the trainable parameters by bucket, in launch order, each once; None where there is no plan."""
    group: dist.ProcessGroup | None = None
    """The ranks that average with each other; None is all of them."""
    wait: Wait = "backward"
    """What waits for averaged gradients: `loss.backward()` or `optimizer.step()`."""
    unused_parameters: bool = False
    """Whether DDP must look for parameters that get no gradient; our own schedules always cope with them."""
    copies: Copies | None = None
    """How our own schedules get gradients into a collective and back; None is the way of the backend."""
    compress: Compress | None = None
    """What fp32 gradients travel as; None: as they are. DDP compresses with torch's own hook."""
    parts: Parts | None = None
    """How `priority` cuts the buckets, and in which order their parts are launched."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The schedule's own options, checked when they were parsed (`ModeSpec.options`)."""
    backward_s: Mapping[str, float] | None = None
    """Backward seconds by parameter, in ready order, where they were measured: `spb` splits the model by them."""


class Handle:
    """An attached schedule. Leaving the context detaches it."""

    def __init__(
        self, model: Module, engine: Engine | None = None, on_detach: Callable[[], None] | None = None
    ) -> None:
        self.model = model
        self.engine = engine
        self._on_detach = on_detach

    @property
    def buckets(self) -> list[list[str]] | None:
        """Parameter names by bucket in launch order, or None where the schedule has no buckets of ours."""
        if self.engine is None:
            return None
        names: dict[int, list[str]] = {id(bucket): [] for bucket in self.engine.buckets}
        for name, (bucket, _) in self.engine.place.items():
            names[id(bucket)].append(name)
        return list(names.values())

    def synchronize(self) -> None:
        """Return when the gradients of this step are averaged; needed only with `wait="step"` before clipping."""
        if self.engine is not None:
            self.engine.synchronize()

    def finish(self) -> None:
        """Complete the last step: return when every parameter has its update, as before anything else reads them.

        Only schedules that put off updates into the next forward pass have anything to do here.
        """

    def watch(self, watch: Watch) -> bool:
        """Start every bucket's collective through `watch` from now on: call it once, before the first step.

        False where the schedule has no place for that, and nothing is watched.
        """
        if self.engine is None:
            return False
        self.engine.watch = watch
        return True

    def watch_waits(self, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        """Enter `waiting()` around every wait in a forward pass: only schedules that put off updates have any."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Gradient accumulation: inside, gradients add up locally and nothing is sent."""
        if self.engine is not None:
            return self.engine.no_sync()
        inner = getattr(self.model, "no_sync", None)
        context: AbstractContextManager[None] = inner() if inner is not None else nullcontext()
        return context

    def at_detach(self, call: Callable[[], None]) -> None:
        """Call this too when the schedule is detached, after everything else."""
        before = self._on_detach

        def both() -> None:
            if before is not None:
                before()
            call()

        self._on_detach = both

    def detach(self) -> None:
        """Remove every hook; the model is as it was before `attach`, gradients kept. Safe to call twice."""
        self.finish()
        if self.engine is not None:
            self.engine.detach()
        if self._on_detach is not None:
            self._on_detach()
            self._on_detach = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


class Schedule(ABC):
    """How gradients travel. One file a schedule; its docstring says where it comes from and what it promises."""

    #: Whether the plan comes from measurements, so that `attach` needs one.
    needs_plan = False

    @abstractmethod
    def attach(self, setup: AttachConfig) -> Handle:
        """Attach. Raises UsageError for a model that it cannot serve and SpecError for buckets that do not fit it."""


class Overlapped(Schedule):
    """A schedule that is fully described by its buckets, run by the shared engine."""

    overlap = True

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`."""
        engine = Engine(
            setup.model,
            setup.optimizer,
            setup.buckets,
            group=setup.group,
            overlap=self.overlap,
            wait=setup.wait,
            copies=setup.copies,
            compress=setup.compress,
        )
        return Handle(setup.model, engine)
