"""ddp+compile and fsdp+compile: DDP and FSDP2 with the model under torch.compile, as their users run them.

- **ddp+compile**: `torch.compile(DistributedDataParallel(model))`. torch cuts the graph at DDP's buckets (its
  DDPOptimizer), so a bucket's gradients are ready at the end of its part of the backward pass.
- **ddp+compile:reducer=python**: the same with torch's experimental Python reducer. The backward pass is compiled too
  (compiled autograd), with the all-reduces inside its graph. Inductor fuses them to buckets of 25 MiB and puts off
  their waits (`fuse_ddp_with_concat_op` and `schedule_comm_wait`).
- **fsdp+compile**: each block is compiled, then wrapped by `fully_shard`, and the root is wrapped last, as torchtitan
  does. torch's hooks around a block stay outside its graph. The root's own layers are not compiled.

The promise is a shorter computation. Gradients travel as under the plain mode. The compiler is Inductor with its
defaults. A compiled graph belongs to the modules of one attachment, so each attachment compiles anew, mostly from
Inductor's cache; detaching forgets the graphs. `settle` takes steps until none compiles.

Fused kernels add in another order than eager ones, so a step differs from DDP's in rounding. Random numbers of compiled
kernels are Inductor's own, except within `torch_compile.as_eager`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
import torch._inductor.config as inductor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from xbench.errors import UsageError
from xbench.model_blocks import blocks_of
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.bucketed import ComputeHandle
from xbench.schedules.compiled_options import PYTHON, REDUCER
from xbench.schedules.ddp import Ddp, DdpHandle
from xbench.schedules.sharded import Fsdp
from xbench.torch_compile import compiler_obstacle, regions

DDP_MODULE = "torch.nn.parallel.distributed"


class CompiledDdpHandle(DdpHandle):
    """DDP's wrapper under torch.compile."""

    def __init__(self, wrapper: DistributedDataParallel, setup: AttachConfig, leave: Callable[[], None]) -> None:
        self._ddp: DistributedDataParallel | None = wrapper
        super().__init__(wrapper, setup.compress)
        self.model = cast(Module, torch.compile(wrapper))
        self._plain = setup.model
        self.at_detach(leave)
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
    """torch.compile around DistributedDataParallel with its defaults, or with the Python reducer."""

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Ddp.attach`. Also raises UsageError for a model that is compiled already, and without a compiler.

        With the Python reducer, all backward passes of the process are compiled until the schedule is detached. It
        raises UsageError for compressed gradients and for parameters without a gradient, which that reducer waits for.
        """
        _check(setup.model)
        self._contexts = ExitStack()
        try:
            if setup.options.get(REDUCER) == PYTHON:
                _enter_python_reducer(self._contexts, setup)
            return super().attach(setup)
        except BaseException:
            self._contexts.close()
            raise

    def handle(self, wrapper: DistributedDataParallel, setup: AttachConfig) -> Handle:
        """See `Ddp.handle`."""
        for hook in wrapper._accum_grad_hooks:  # of the Python reducer
            self._contexts.callback(hook.remove)
        return CompiledDdpHandle(wrapper, setup, self._contexts.close)


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


def _enter_python_reducer(contexts: ExitStack, setup: AttachConfig) -> None:
    """Let DDP's constructor choose the Python reducer, and compile backward passes. Raises UsageError."""
    if setup.compress is not None or setup.unused_parameters:
        what = "compresses no gradients" if setup.compress is not None else "needs a gradient of every parameter"
        raise UsageError(f"DDP's Python reducer {what}", hint=f"leave {REDUCER}={PYTHON} out")
    from torch._dynamo import compiled_autograd, trace_rules

    enable: Any = getattr(compiled_autograd, "_enable", None)
    if enable is None:
        raise UsageError("this torch has no compiled autograd, which DDP's Python reducer needs")
    # DDP's constructor sets these for good, and other modes must not have them.
    fused = {name: getattr(inductor, name) for name in ("_fuse_ddp_communication", "_fuse_ddp_bucket_size")}
    contexts.enter_context(inductor.patch(fused))
    if DDP_MODULE not in trace_rules.LEGACY_MOD_INLINELIST:
        contexts.callback(trace_rules.get_legacy_mod_inlinelist.cache_clear)
        contexts.callback(trace_rules.LEGACY_MOD_INLINELIST.discard, DDP_MODULE)
    contexts.enter_context(torch._dynamo.config.patch(optimize_ddp="python_reducer"))
    contexts.enter_context(enable(torch.compile))


def _check(model: Module) -> None:
    """Raise UsageError where nothing can be compiled."""
    why = compiler_obstacle()
    if why is not None:
        raise UsageError(why)
    if regions(model):
        raise UsageError("torch.compile has compiled this model or parts of it already", hint="the plain modes time it")
