"""Interface of every schedule, and the handle that a user holds.

A schedule attaches to an ordinary module and optimizer, as in `xbench.attach`, and detaches without a trace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from xbench.errors import AlikeError
from xbench.records.parts import Parts
from xbench.schedules.engine import Engine, Wait, Watch
from xbench.spec import Compress
from xbench.torch_compile import failed_to_compile


@dataclass(frozen=True)
class AttachConfig:
    """Arguments of every `Schedule.attach`."""

    model: Module
    """The trained module; its parameters are already equal on all ranks."""
    optimizer: Optimizer | None = None
    """Optimizer whose step waits for gradients under `wait="step"`; None where the loop calls `Handle.synchronize`."""
    buckets: Sequence[Sequence[str]] | None = None
    """Names of the trainable parameters by bucket, in launch order, each once; None without a plan."""
    group: dist.ProcessGroup | None = None
    """The ranks that average with each other; None is all of them."""
    wait: Wait = "backward"
    """The call that waits for averaged gradients: `loss.backward()` or `optimizer.step()`."""
    unused_parameters: bool = False
    """True if DDP must look for parameters without a gradient; xbench's own schedules always handle them."""
    compress: Compress | None = None
    """Dtype in which fp32 gradients are sent; None: fp32. DDP compresses with torch's own hook."""
    parts: Parts | None = None
    """Cut of the buckets for `priority`, and the launch order of their parts."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The schedule's own options, checked when they were parsed (`ModeSpec.options`)."""
    units: Sequence[Sequence[str]] | None = None
    """Paths of the blocks that each planned unit wraps; None without a plan of units."""
    backward_s: Mapping[str, float] | None = None
    """Measured backward seconds by parameter, in ready order; None without a measurement."""


class Handle:
    """An attached schedule. Leaving the context detaches it."""

    meets_at_detach = False
    """True if ranks exchange data when they detach. After an error that may be of one rank, they do not detach."""

    waits_in_backward = False
    """True if the backward pass ends with a wait for all gradients that the host cannot see, as DDP's does."""

    def __init__(self, model: Module, engine: Engine | None = None) -> None:
        self.model = model
        self.engine = engine
        self.alike: Callable[[BaseException], bool] = raised_alike
        """True for an error that every rank raises at the same point, so that they may meet to detach."""
        self._at_detach: list[Callable[[], None]] = []

    @property
    def buckets(self) -> list[list[str]] | None:
        """Parameter names by bucket in launch order, or None for a schedule without xbench's own buckets."""
        if self.engine is None:
            return None
        names = {parameter: name for name, parameter in self.engine.parameters.items()}
        return [[names[parameter] for parameter in bucket.parameters] for bucket in self.engine.buckets]

    @property
    def units(self) -> dict[str, list[str]]:
        """Parameter names by wrapped module, in order of registration; empty for a schedule that wraps none."""
        return {}

    def synchronize(self) -> None:
        """Return when this step's gradients are averaged; needed only with `wait="step"`, before other uses of them."""
        if self.engine is not None:
            self.engine.synchronize()

    def finish(self) -> None:
        """Complete the last step: return when every parameter has its update. Call it before other code reads them.

        It has an effect only for schedules that defer updates into the next forward pass, and for those that keep
        parameters or optimizer state in shards. After it, parameters may be read and written as without a schedule.
        """

    def watch(self, watch: Watch) -> bool:
        """Start every bucket's collective through `watch` from now on. Call it once, before the first step.

        Returns False where the schedule does not support it; nothing is watched then.
        """
        if self.engine is None:
            return False
        self.engine.watch = watch
        return True

    def watch_waits(self, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        """Enter `waiting()` around every wait in a forward pass; only deferred updates have such waits."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Gradient accumulation: inside this context, gradients add up locally and nothing is sent."""
        if self.engine is not None:
            return self.engine.no_sync()
        context: AbstractContextManager[None] = getattr(self.model, "no_sync", nullcontext)()
        return context

    @property
    def accumulates(self) -> bool:
        """True if nothing is sent inside `no_sync`: a handle has its own, or an engine or a wrapper that has one."""
        own = type(self).no_sync is not Handle.no_sync
        return own or self.engine is not None or hasattr(self.model, "no_sync")

    def at_detach(self, call: Callable[[], None]) -> None:
        """Call this too when the schedule is detached, after all other work."""
        self._at_detach.append(call)

    def detach(self) -> None:
        """Remove every hook and keep the gradients; the model is as before `attach`. Safe to call twice."""
        try:
            self.finish()
        finally:
            try:
                if self.engine is not None:
                    self.engine.detach()
            finally:
                while self._at_detach:
                    self._at_detach.pop(0)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or not self.meets_at_detach or self.alike(error):
            self.detach()


def raised_alike(error: BaseException) -> bool:
    """True for an error in a training loop that every rank raises at the same point."""
    return isinstance(error, AlikeError) or failed_to_compile(error)


def guard_copies(optimizer: Optimizer, check: Callable[[], None]) -> Callable[[], None]:
    """Call `check()` before the optimizer is copied or pickled; return the function that ends it."""

    def reduced(protocol: Any) -> Any:
        check()
        return type(optimizer).__reduce_ex__(optimizer, protocol)

    vars(optimizer)["__reduce_ex__"] = reduced  # of copy.deepcopy and pickle
    return lambda: vars(optimizer).pop("__reduce_ex__")


class Schedule(ABC):
    """A way to send gradients. The docstring of its file states its source and its promise."""

    needs_plan = False
    """True if the plan comes from measurements, so that `attach` needs one."""

    broadcasts_buffers = False
    """True if the schedule copies the first rank's buffers to all in every forward pass."""

    @abstractmethod
    def attach(self, setup: AttachConfig) -> Handle:
        """Attach it. Raises UsageError for an unsupported model, and SpecError for buckets that do not fit it."""


class Overlapped(Schedule):
    """A schedule that its buckets describe completely, run by the shared engine."""

    overlap = True

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`."""
        engine = Engine(
            setup.model, setup.optimizer, setup.buckets, group=setup.group, overlap=self.overlap, wait=setup.wait,
            compress=setup.compress,
        )  # fmt: skip
        return Handle(setup.model, engine)
