"""ddp: torch.nn.parallel.DistributedDataParallel, as it comes.

The default buckets (1 MiB first, then 25 MiB, rebuilt in ready order after the first step), the default broadcast of
buffers, the C++ reducer. Only the initial broadcast of parameters is skipped, where this torch allows: the ranks have
built the same model, and nothing that is timed changes. DDP waits inside `backward`, so `wait="step"` cannot be had
from it: under a paired mode its turn includes the wait.
"""

from __future__ import annotations

import gc
import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from xbench.errors import UsageError
from xbench.schedules.base import Handle, Schedule, Setup
from xbench.schedules.engine import Watch, trainable


class DdpHandle(Handle):
    """DDP's wrapper, which can be watched through a communication hook."""

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`. The hook averages as the reducer does without one: divide, then sum over ranks.

        The reducer divides while it copies a gradient into its bucket, and the hook the full bucket: one more pass
        over the bytes, before the launch.
        """

        def reduced(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
            buffer = bucket.buffer()
            buffer.div_(dist.get_world_size(group))
            work: Any = watch(buffer.nbytes, lambda: dist.all_reduce(buffer, group=group, async_op=True))
            future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
            return future

        assert isinstance(self.model, DistributedDataParallel)
        # A lambda, because DDP refuses a hook whose annotations are strings, as they are in this file.
        self.model.register_comm_hook(self.model.process_group, lambda group, bucket: reduced(group, bucket))
        return True


class Ddp(Schedule):
    """Wrap the model in DistributedDataParallel with its defaults."""

    def options(self, setup: Setup) -> dict[str, Any]:
        """Arguments beyond the defaults."""
        return {}

    def attach(self, setup: Setup) -> Handle:
        """See `Schedule.attach`. Forward must go through `handle.model`. Raises UsageError outside a process group."""
        if not dist.is_initialized():
            raise UsageError("DDP needs an initialised process group", hint="start the script with torchrun")
        parameters = trainable(setup.model)
        options = self.options(setup)
        if "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters:
            options["init_sync"] = False
        wrapper: Module | None = DistributedDataParallel(
            setup.model, process_group=setup.group, find_unused_parameters=setup.unused_parameters, **options
        )
        assert wrapper is not None
        handle = DdpHandle(wrapper)

        def detach() -> None:
            # The reducer removes its hooks when it is destroyed, and it is part of a reference cycle.
            nonlocal wrapper
            handle.model = setup.model
            wrapper = None
            gc.collect()
            for parameter in parameters.values():
                if parameter.grad is not None and parameter.grad._is_view():
                    parameter.grad = parameter.grad.clone()

        handle._on_detach = detach
        return handle
