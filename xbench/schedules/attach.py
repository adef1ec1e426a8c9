"""`xbench.attach`: add a schedule to an existing training loop.

with xbench.attach(model, optimizer, schedule="optimal", plan="results/runs/.../record.json") as handle:
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = criterion(handle.model(inputs), targets)
        loss.backward()
        optimizer.step()
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from xbench import host_tuning
from xbench.equal_ranks import differing
from xbench.errors import SpecError, UsageError, listed, unknown
from xbench.modes import MODES, UNMERGED
from xbench.planning.partial import backward_s_of
from xbench.records import Comparison, Parts, Plan, Profile, Tuned, load, load_measured, of_kind
from xbench.schedules import parse_mode
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.checks import check_names, warn_of_others
from xbench.schedules.engine import Wait
from xbench.schedules.groups import backend_of
from xbench.schedules.hooks import has_step_hooks, uncopied
from xbench.schedules.served_parameters import ignored, trainable, without_ignored
from xbench.spec import Compress
from xbench.torch_compile import plain_name

LoadedPlan = Plan | Profile | Comparison | Tuned | Sequence[Sequence[str]] | Mapping[str, Any]
PlanSource = LoadedPlan | str | os.PathLike[str]

_ATTACHED: weakref.WeakSet[Module] = weakref.WeakSet()
"""Models with an attached schedule."""


class ResolvedPlan(NamedTuple):
    """Buckets, their parts, and the schedule that sends them."""

    buckets: Sequence[Sequence[str]] | None
    parts: Parts | None
    schedule: str


class AttachSettings(TypedDict, total=False):
    """Keywords of `attach` that few loops need. It describes them."""

    wait: Wait
    unused_parameters: bool
    compress: Compress | None
    broadcast: bool
    buffers: Literal["broadcast"] | None


DEFAULTS: AttachSettings = {
    "wait": "backward",
    "unused_parameters": False,
    "compress": None,
    "broadcast": False,
    "buffers": None,
}


def attach(
    model: Module,
    optimizer: Optimizer | None = None,
    *,
    schedule: str | None = None,
    plan: PlanSource | None = None,
    process_group: dist.ProcessGroup | None = None,
    **settings: Unpack[AttachSettings],
) -> Handle:
    """Send the model's gradients by `schedule` from now on, until the handle is detached.

    Returns the handle. The loop calls `handle.model` instead of the model, and leaving the handle's `with` detaches it.
    Training passes of the model itself are refused by the schedules that do not see them: those of DDP.

    `schedule` is a single-job mode of `xbench list modes`, with its options ("spb:variant=temporal"). None is the
    schedule that a tuned file or a plan names, else `wfbp`.

    `plan` holds the buckets. It is the tuned file of `xbench tune`, a record of `xbench profile` or `xbench compare`
    (or the path of one), one of its plans, or lists of parameter names in launch order. It may also be a mapping with
    such lists as `buckets`, and with `parts` as in a plan of `priority`. `auto`, `mgwfbp`, `optimal` and `ddp-tuned`
    need a plan; `wfbp` and `single` do not. A plan of `auto` with another carrier selects that schedule. A plan of a
    model also fits it after `torch.compile`, and the reverse.

    `process_group` holds the ranks that average with each other; None is all of them. With `wait="backward"`, gradients
    are averaged when `loss.backward()` returns. With `wait="step"`, they may be in flight until `optimizer.step()`.
    Then `handle.synchronize()` must come before any other use of them (clipping, GradScaler), which xbench's own
    schedules refuse without it. An optimizer with other step hooks updates all parameters after the wait.

    `unused_parameters=True` makes the DDP schedules look for parameters without a gradient; xbench's own schedules
    always handle them. The next step may overwrite a gradient's memory: `clone()` a gradient to keep it.
    `compress="bf16"` sends fp32 gradients as bf16; the schedules of DDP use torch's own hook.

    `dear` and `priority` defer updates into the next forward pass, whatever `wait` is, and need the optimizer. Any use
    of a parameter completes the step. Call `handle.finish()` before other code uses memory of a parameter that it has
    kept from before the step (`parameter.data`, a numpy array), or `optimizer.state`. Call `handle.synchronize()`
    before other code reads gradients.

    `fsdp`, `hsdp` and `replicate` take the parameters over, and `zero1` the optimizer's state. Read parameters and
    gradients through `handle.model`, or call `handle.finish()` first. Attributes that a loop sets on a model belong on
    `handle.model`. All ranks must detach together.
    `spb` has several communicators over NCCL: set NCCL_LAUNCH_ORDER_IMPLICIT=1 before the process group is made.
    `auto:shard` is refused: `xbench plan RECORD --emit python --mode auto:shard` prints the lines of torch that
    wrap its units.

    The ranks must have equal parameters, as after loading one checkpoint or seeding alike. Their digests are compared
    here, so all ranks must call this together. `broadcast=True` first copies the first rank's parameters and buffers to
    the others, as DDP does. Averages are exact means over ranks, except for compressed gradients. Over Gloo, its
    sending threads get a higher priority where that is allowed, as in every measurement (see `tune_host`).

    Each rank keeps its own buffers, except under DDP's schedules. `buffers="broadcast"` copies the first rank's to the
    others before each forward pass with gradients, as DDP does; all ranks must run the same passes then. Without it, a
    warning names buffers outside of normalisation layers that the first pass changes.

    Raises SpecError for an unknown schedule, for a plan that does not fit the model, and for unknown `buffers`. Raises
    UsageError for a model that the schedule cannot serve or that differs between ranks, and RecordError for a broken
    file.
    """
    given: AttachSettings = {**DEFAULTS, **settings}
    if given.keys() != DEFAULTS.keys():
        raise TypeError(f"attach() got an unexpected keyword argument {min(given.keys() - DEFAULTS.keys())!r}")
    if isinstance(plan, (str, os.PathLike)):
        plan = of_kind(load(plan), Tuned) or load_measured(plan)
    broadcast, buffers = given["broadcast"], given["buffers"]
    unused, compress = given["unused_parameters"], given["compress"]
    setup = AttachConfig(model, optimizer, None, process_group, given["wait"], unused, compress)
    if buffers not in (None, "broadcast"):
        raise unknown("buffers", buffers, ["broadcast"])
    return _attached(setup, schedule, plan, broadcast=broadcast, buffers=buffers)


def _attached(
    setup: AttachConfig, schedule: str | None, plan: LoadedPlan | None, *, broadcast: bool, buffers: str | None
) -> Handle:
    """The handle of a schedule, after checks of plan, model and ranks. `setup` has no plan yet."""
    if schedule is None:
        schedule = plan.schedule if isinstance(plan, Tuned) else plan.mode if isinstance(plan, Plan) else UNMERGED
    singles = [info.name for info in MODES if not info.paired]
    if schedule.partition(":")[0] not in singles:
        raise unknown("schedule", schedule, singles, listing="xbench list modes")
    spec = parse_mode(schedule)
    schedule, options = spec.name, dict(spec.options)
    buckets, parts, carrier = carried(plan, schedule)
    kind: type[Schedule] = MODES.load(carrier)  # type: ignore[assignment]
    if kind.needs_plan and buckets is None:
        raise SpecError(
            f"schedule {schedule!r} is made from measurements and needs a plan",
            hint="xbench profile WORKLOAD writes one: attach(..., plan='results/runs/.../record.json')",
        )
    model, group, compress = setup.model, setup.group, setup.compress
    if buckets is not None:
        whole = [[plain_name(name) for name in bucket] for bucket in buckets]  # names may be of a compiled model
        buckets = without_ignored(model, whole)
        parts = parts if buckets == whole else None
        made_for = f", made for {plan.workload.title}," if isinstance(plan, (Tuned, Profile)) else ""
        check_names(buckets, trainable(model), made_for)
    if compress is not None and all(p.dtype != torch.float32 for p in model.parameters() if p.requires_grad):
        warnings.warn(f"there is nothing to compress to {compress}: no gradient of this model is fp32", stacklevel=3)
    trainable(model)
    if model in _ATTACHED:
        raise UsageError("another xbench schedule is attached to this model", hint="detach it first")
    started = os.environ.get("WORLD_SIZE", "1")
    if not dist.is_initialized() and started not in ("", "1"):
        raise UsageError(
            f"the process group is not initialised, so the gradients of {started} ranks would not be averaged",
            hint="call torch.distributed.init_process_group() before attach",
        )
    if dist.is_initialized() and dist.get_rank(group) < 0:
        raise UsageError("this rank is not in process_group", hint="call attach on the ranks of the group alone")
    raises = host_tuning.is_on() and dist.is_initialized()
    raises = raises and "gloo" in backend_of(group, next(model.parameters()).device)
    if dist.is_initialized() and dist.get_world_size(group) > 1:
        if broadcast:
            _broadcast_state(model, group)
        # Averaged gradients keep equal parameters equal, and do not make different ones equal. Buffers may differ: each
        # rank keeps batch-norm statistics of its own batches.
        names = differing(_left_to_us(model, model.named_parameters()), group)
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UsageError(
                f"ranks start with different parameters: {names[0]!r}{more}",
                hint="seed all ranks alike, load one checkpoint, or let attach(..., broadcast=True) copy rank 0's",
            )
    unused = setup.unused_parameters or (isinstance(plan, Tuned) and plan.unused_parameters)
    setup = replace(setup, buckets=buckets, parts=parts, options=options, unused_parameters=unused)
    if isinstance(setup.optimizer, Optimizer):  # before fsdp puts its shards there
        warn_of_others(model, setup.optimizer, stacklevel=3)
    handle = kind().attach(replace(setup, backward_s=_backward_s(plan)))
    if not dist.is_initialized():
        handle.at_detach(_refuse_later_group(model, setup.optimizer))
    elif dist.get_world_size(group) > 1 and not kind.broadcasts_buffers:
        handle.at_detach(
            broadcast_before_passes(handle.model, group) if buffers else warn_of_changing(handle.model, schedule)
        )
    _ATTACHED.add(model)
    handle.at_detach(lambda: _ATTACHED.discard(model))
    if raises:
        host_tuning.raise_gloo_threads()
    return handle


def carried(plan: LoadedPlan | None, schedule: str) -> ResolvedPlan:
    """The part of `plan` for `schedule`. Raises SpecError when there is none, or for an invalid mapping."""
    if isinstance(plan, Tuned):
        if schedule != plan.schedule:
            raise SpecError(
                f"the tuned file is for {plan.schedule!r}, and schedule={schedule!r} was asked for",
                hint="leave schedule out, or give the comparison's record as the plan",
            )
        return ResolvedPlan(plan.buckets, plan.parts, plan.carrier or schedule)
    if isinstance(plan, (Profile, Comparison)):
        plans = plan.profiled[0].plans
        others = MODES.entry(schedule).buckets_of or (schedule,)
        wanted = next((name for name in others if name in plans), others[-1])
        if wanted not in plans:
            raise SpecError(
                f"the record has no plan for {schedule!r}",
                hint=f"it has {listed(plans) or 'none'}: was it of one rank?",
            )
        plan = plans[wanted]
    if isinstance(plan, Plan):
        return ResolvedPlan(plan.buckets, plan.parts, (plan.carrier if plan.mode == schedule else None) or schedule)
    if isinstance(plan, Mapping):
        return _of_mapping(plan, schedule)
    return ResolvedPlan(plan, None, schedule)


def _of_mapping(plan: Mapping[str, Any], schedule: str) -> ResolvedPlan:
    """Buckets and parts as `xbench plan --emit python` writes them. Raises SpecError."""
    if "buckets" not in plan or set(plan) - {"buckets", "parts"}:
        raise SpecError(f"a plan that is a mapping has 'buckets' and 'parts', and this one has {sorted(plan)}")
    try:
        parts = Parts.model_validate(plan["parts"]) if plan.get("parts") is not None else None
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise SpecError(f"the plan's parts are none: {where or 'parts'}: {error.errors()[0]['msg']}") from None
    return ResolvedPlan(plan["buckets"], parts, schedule)


def _backward_s(plan: LoadedPlan | None) -> dict[str, float] | None:
    """Measured backward seconds by parameter, from a profile or a comparison; None from other plans."""
    return backward_s_of(plan.profiled[0].layers) if isinstance(plan, (Profile, Comparison)) else None


def _refuse_later_group(model: Module, optimizer: Optimizer | None) -> Callable[[], None]:
    """Refuse passes and steps after other ranks have come. Returns the function that ends it."""

    def check(*_: Any) -> None:
        if dist.is_initialized() and dist.get_world_size() > 1:
            raise UsageError(
                "the process group was initialised after the schedule was attached, so the gradients of its "
                f"{dist.get_world_size()} ranks are not averaged",
                hint="call torch.distributed.init_process_group() before attach",
            )

    hooks = [uncopied(model.register_forward_pre_hook(check))]
    if optimizer is not None and has_step_hooks(optimizer):
        hooks.append(optimizer.register_step_pre_hook(check))

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end


def _broadcast_state(model: Module, group: dist.ProcessGroup | None) -> None:
    """Overwrite every rank's parameters and buffers with those of the group's first rank. Every rank must call it."""
    source = dist.get_process_group_ranks(group)[0] if group is not None else 0
    with torch.no_grad():
        for _, tensor in _left_to_us(model, (*model.named_parameters(), *model.named_buffers())):
            value = tensor.detach().contiguous().clone()
            dist.broadcast(value.reshape(-1).view(torch.uint8), src=source, group=group)  # backends know few dtypes
            tensor.copy_(value)


def _left_to_us(model: Module, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors by name, without those that the model excludes from DDP."""
    left_out = ignored(model)
    for name, tensor in tensors:
        if name not in left_out:
            yield plain_name(name), tensor


def broadcast_before_passes(model: Module, group: dist.ProcessGroup | None) -> Callable[[], None]:
    """Copy the first rank's buffers to all before each pass with gradients; return the function that ends it."""
    source = dist.get_process_group_ranks(group)[0] if group is not None else 0
    left_out = ignored(model)

    def broadcast(*_: Any) -> None:
        if not torch.is_grad_enabled():
            return
        by_device: dict[torch.device, list[Tensor]] = {}
        for name, buffer in model.named_buffers():
            if name not in left_out and buffer.numel():
                by_device.setdefault(buffer.device, []).append(buffer)
        with torch.no_grad():
            for buffers in by_device.values():
                buffers.sort(key=Tensor.element_size, reverse=True)  # then each begins at a multiple of its size
                pieces = [buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers]
                flat = torch.cat(pieces)
                dist.broadcast(flat, src=source, group=group)
                for buffer, piece in zip(buffers, torch.split(flat, [one.numel() for one in pieces]), strict=True):
                    buffer.copy_(piece.view(buffer.dtype).view(buffer.shape))

    untraced: Any = torch.compiler.disable(broadcast)  # type: ignore[no-untyped-call]
    return uncopied(model.register_forward_pre_hook(untraced)).remove


def warn_of_changing(model: Module, schedule: str) -> Callable[[], None]:
    """Warn once if the first pass with gradients changes buffers of each rank's own; return the function that ends it.

    A model without floating-point buffers outside of normalisation gets no hook.
    """
    before: dict[str, tuple[Tensor, int]] = {}
    hooks: list[RemovableHandle] = []

    def end() -> None:
        while hooks:
            hooks.pop().remove()

    def look(*_: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            before.update((name, (buffer, buffer._version)) for name, buffer in _own_buffers(model))

    def compare(*_: Any) -> None:
        if not before:
            return
        end()
        changed = [
            name
            for name, buffer in _own_buffers(model)
            if name in before and (buffer is not before[name][0] or buffer._version != before[name][1])
        ]
        before.clear()
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            warnings.warn(
                f"the forward pass changes buffer {changed[0]!r}{more}, and under {schedule} each rank keeps its own: "
                "if it is made from the batch, ranks train different networks; attach(..., buffers='broadcast') copies "
                "the first rank's before each pass, as DDP does",
                stacklevel=2,
            )

    if any(True for _ in _own_buffers(model)):
        hooks.append(uncopied(model.register_forward_pre_hook(look)))
        hooks.append(uncopied(model.register_forward_hook(compare)))
    return end


def _own_buffers(model: Module) -> Iterator[tuple[str, Tensor]]:
    """Floating-point buffers by name, without those of normalisation, which are no function of the batch in training.

    Spectral norms are a function of the parameters alone.
    """
    for path, module in model.named_modules():
        if isinstance(module, (_NormBase, _SpectralNorm)):
            continue
        norms = [hook.name for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
        known = {f"{name}_{end}" for name in norms for end in "uv"} | set(norms)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in known and buffer.is_floating_point() and not buffer.is_inference():
                yield plain_name(f"{path}.{name}" if path else name), buffer
