"""ddp+compile and fsdp+compile: DDP and FSDP2 with the model under torch.compile, as their users run them.

- **ddp+compile**: `torch.compile(DistributedDataParallel(model))`. torch cuts the graph at DDP's buckets (its
  DDPOptimizer), so a bucket's gradients are ready at the end of its part of the backward pass.
- **fsdp+compile**: each block is compiled, then wrapped by `fully_shard`, and the root is wrapped last, as torchtitan
  does. torch's hooks around a block stay outside its graph. The root's own layers are not compiled.

The promise is a shorter computation. Gradients travel as under the plain mode. The compiler is Inductor with its
defaults. A compiled graph belongs to the modules of one attachment, so each attachment compiles anew, mostly from
Inductor's cache; detaching forgets the graphs. `settle` takes steps until none compiles.

Fused kernels add in another order than eager ones, so a step differs from DDP's in rounding. Random numbers of compiled
kernels are Inductor's own, except within `torch_compile.as_eager`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from xbench.errors import UsageError
from xbench.model_blocks import blocks_of
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.bucketed import ComputeHandle
from xbench.schedules.ddp import Ddp, DdpHandle
from xbench.schedules.sharded import Fsdp
from xbench.torch_compile import compiler_obstacle, regions


class CompiledDdpHandle(DdpHandle):
    """DDP's wrapper under torch.compile."""

    def __init__(self, wrapper: DistributedDataParallel, setup: AttachConfig) -> None:
        self._ddp: DistributedDataParallel | None = wrapper
        super().__init__(wrapper, setup.compress)
        self.model = cast(Module, torch.compile(wrapper))
        self._plain = setup.model
        self.at_detach(self._forget)

    @property
    def ddp(self) -> DistributedDataParallel:
        """See `DdpHandle.ddp`."""
        assert self._ddp is not None
        return self._ddp

    def _forget(self) -> None:
        """Drop the graphs, which hold the wrapper. Hooks of its C++ reducer go with it."""
        self.model, self._ddp = self._plain, None
        torch._dynamo.reset()


class CompiledDdp(Ddp):
    """torch.compile around DistributedDataParallel with its defaults."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Ddp.attach`. Also raises UsageError for a model that is compiled already, and without a compiler."""
        _check(setup.model)
        return super().attach(setup)

    def handle(self, wrapper: DistributedDataParallel, setup: AttachConfig) -> Handle:
        """See `Ddp.handle`."""
        return CompiledDdpHandle(wrapper, setup)


class CompiledFsdp(Fsdp):
    """fully_shard around compiled blocks."""

    name = "fsdp+compile"

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Fsdp.attach`. Also raises UsageError for a model without blocks, and without a compiler."""
        _check(setup.model)
        if not blocks_of(setup.model):
            raise UsageError(f"{self.name} compiles the blocks of ModuleList and Sequential, and this model has none")
        handle = super().attach(setup)
        handle.at_detach(torch._dynamo.reset)
        return handle

    def prepared(self, block: Module) -> None:
        """See `Fsdp.prepared`."""
        block.compile()


class CompiledCompute(Schedule):
    """The compiled model without communication: the control of compiled modes."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`. Raises UsageError for a model that is compiled already, and without a compiler."""
        _check(setup.model)
        compiled: Any = torch.compile(setup.model)
        handle = ComputeHandle(compiled)

        def forget() -> None:
            handle.model = setup.model
            torch._dynamo.reset()

        handle.at_detach(forget)
        return handle


def _check(model: Module) -> None:
    """Raise UsageError where nothing can be compiled."""
    why = compiler_obstacle()
    if why is not None:
        raise UsageError(why)
    if regions(model):
        raise UsageError("torch.compile has compiled this model or parts of it already", hint="the plain modes time it")
