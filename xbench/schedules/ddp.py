"""ddp and ddp-tuned: torch.nn.parallel.DistributedDataParallel with its defaults, and with the exact plan's buckets.

These are the default buckets (1 MiB first, then 25 MiB, rebuilt in ready order after the first step), the default
broadcast of buffers, and the C++ reducer. Only the initial broadcast of parameters is skipped, where this torch allows
it. The ranks have built the same model, or `xbench.attach` has compared or equalised them, and no timed work changes.
DDP waits inside `backward`, so it does not support `wait="step"`: under a paired mode its turn includes the wait.

Compressed gradients use torch's own `bf16_compress_hook`, so a comparison with xbench's compressed schedules compares
schedules. That hook rounds to bf16 and then divides, while xbench divides first. Both average in bf16.

`ddp-tuned` gives each of DDP's buckets its own size (`bucket_cap_mb_list`, which only newer torch versions have). DDP
closes a bucket when its size reaches the cap, so suitable caps reproduce the plan (`planning.plans.bucket_caps_mib`).
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from xbench.errors import UsageError
from xbench.planning.plans import bucket_caps_mib
from xbench.planning.step import Gradient
from xbench.records import Plan
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.bucket import grad_dtype
from xbench.schedules.engine import Watch
from xbench.schedules.groups import workers_of
from xbench.schedules.hooks import uncopied
from xbench.schedules.loop_guard import LoopGuard
from xbench.schedules.served_parameters import own_gradients, trainable
from xbench.spec import Compress


def only_through_handle(model: Module, inside: Callable[[], bool]) -> RemovableHandle:
    """Refuse training passes of the model that are not `inside()` one of `Handle.model`, which alone sends gradients.

    A pass without gradients (validation), or of a model that is frozen now, may be of the model itself.
    """

    def check(*_: Any) -> None:
        if torch.is_grad_enabled() and not inside() and any(one.requires_grad for one in model.parameters()):
            raise UsageError(
                "the loop calls the model itself, and the schedule sends gradients only of passes through handle.model",
                hint="call handle.model in training; the model itself serves under torch.no_grad()",
            )

    return uncopied(model.register_forward_pre_hook(check))


class DdpHandle(Handle):
    """DDP's wrapper, with a communication hook where gradients are compressed or watched; DDP takes only one hook."""

    waits_in_backward = True

    def __init__(self, model: DistributedDataParallel, compress: Compress | None = None) -> None:
        super().__init__(model)
        self._compress = compress
        self._watch: Watch | None = None
        if compress is not None:
            self._register()

    @property
    def ddp(self) -> DistributedDataParallel:
        """The wrapper."""
        assert isinstance(self.model, DistributedDataParallel)
        return self.model

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`. The hook averages as the reducer does without one: divide, then sum over ranks.

        The reducer divides while it copies a gradient into its bucket. The hook divides the full bucket, which is one
        more pass over the bytes before the launch.
        """
        self._watch = watch
        if self._compress is None:
            self._register()
        return True

    def _register(self) -> None:
        # A lambda, because DDP refuses a hook whose annotations are strings, as they are in this file.
        self.ddp.register_comm_hook(self.ddp.process_group, lambda group, bucket: self._reduced(group, bucket))

    def _reduced(self, group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        narrowed = self._compress is not None and buffer.dtype == torch.float32
        if self._watch is None:
            hook = default_hooks.bf16_compress_hook if narrowed else default_hooks.allreduce_hook
            averaged: torch.futures.Future[torch.Tensor] = hook(group, bucket)
            return averaged
        wire = buffer.to(torch.bfloat16) if narrowed else buffer
        wire.div_(dist.get_world_size(group))
        work: Any = self._watch(buffer.nbytes, lambda: dist.all_reduce(wire, group=group, async_op=True))

        def widened(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            return buffer.copy_(done.value()[0]) if narrowed else done.value()[0]

        future: torch.futures.Future[torch.Tensor] = work.get_future().then(widened)
        return future


class Ddp(Schedule):
    """Wrap the model in DistributedDataParallel with its defaults."""

    broadcasts_buffers = True

    def options(self, setup: AttachConfig) -> dict[str, Any]:
        """Arguments of DDP beyond the defaults."""
        return {}

    def handle(self, wrapper: DistributedDataParallel, setup: AttachConfig) -> Handle:
        """The handle of the wrapped model."""
        return DdpHandle(wrapper, setup.compress)

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`. Forward must go through `handle.model`. Raises UsageError outside a process group."""
        if not dist.is_initialized():
            raise UsageError("DDP needs an initialised process group", hint="start the script with torchrun")
        parameters = trainable(setup.model)
        for name, parameter in parameters.items():
            if grad_dtype(parameter) != parameter.dtype:
                raise UsageError(f"parameter {name!r} has gradients of another dtype, which DDP does not take")
        options = self.options(setup)
        if "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters:
            options["init_sync"] = False
        wrapper = DistributedDataParallel(
            setup.model, process_group=setup.group, find_unused_parameters=setup.unused_parameters, **options
        )
        handle = self.handle(wrapper, setup)
        averages = workers_of(setup.group) > 1
        guard = LoopGuard(setup.model, setup.optimizer, parameters, averages=averages, wrapper=wrapper)
        guard.probe()
        handle.at_detach(guard.remove)
        inside = lambda: DistributedDataParallel._active_ddp_module is wrapper  # noqa: E731
        handle.at_detach(only_through_handle(setup.model, inside).remove)

        def detach() -> None:
            # The reducer removes its hooks when it is destroyed, and it is part of a reference cycle.
            handle.model = setup.model
            gc.collect()
            own_gradients(parameters.values())

        handle.at_detach(detach)
        return handle


def supported() -> bool:
    """True if this torch's DDP takes a size for each bucket."""
    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


class DdpTuned(Ddp):
    """DistributedDataParallel(model, bucket_cap_mb_list=...)."""

    needs_plan = True

    def options(self, setup: AttachConfig) -> dict[str, Any]:
        """The caps that reproduce the plan's buckets. Raises UsageError where this torch does not take them."""
        if not supported():
            raise UsageError(
                "this torch's DDP has no bucket_cap_mb_list, which ddp-tuned needs", hint="it came after torch 2.11"
            )
        assert setup.buckets is not None  # because it needs a plan
        parameters = trainable(setup.model)
        plan = Plan(
            mode="ddp-tuned",
            buckets=[list(names) for names in setup.buckets],
            bucket_bytes=[
                sum(parameters[n].numel() * parameters[n].element_size() for n in names) for names in setup.buckets
            ],
            predicted_step_s=0.0,
            predicted_exposed_s=0.0,
        )
        caps = bucket_caps_mib(plan, {name: str(parameter.dtype) for name, parameter in parameters.items()})
        return {"bucket_cap_mb_list": caps}


def formed(gradients: Sequence[Gradient], caps_mib: Sequence[float]) -> list[list[str]]:
    """The names in each bucket that DDP forms from `gradients`, in ready order, with these caps [MiB].

    DDP makes the same call after its first step. The tensors are on the meta device, and use no memory. Buckets that
    reach their cap come first, in the order in which they do. Raises ValueError for a dtype that torch does not have,
    and for bytes that are not a multiple of its size.
    """
    tensors = [_tensor(gradient) for gradient in gradients]
    limits = [int(cap * 2**20) for cap in caps_mib]  # the conversion of DistributedDataParallel
    places = list(range(len(tensors)))
    buckets, _ = _compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), places)
    return [[gradients[index].name for index in bucket] for bucket in buckets]


def _tensor(gradient: Gradient) -> torch.Tensor:
    dtype = getattr(torch, gradient.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {gradient.dtype!r}")
    elements, rest = divmod(gradient.nbytes, dtype.itemsize)
    if rest:
        raise ValueError(f"{gradient.name!r} has {gradient.nbytes} bytes, not a multiple of {dtype.itemsize}")
    return torch.empty(elements, dtype=dtype, device="meta")
