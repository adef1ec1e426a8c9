"""Parts of a deferred update: its requirements, its process group, and the parameters that are updated together.

Gloo identifies collectives by counting them: the k-th of one rank meets the k-th of the others. A schedule that
launches from several threads has one order on every rank, but its position among the main thread's collectives is
random. In its own group (`own_group`), no other collectives are counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from xbench.errors import UsageError
from xbench.host_tuning import are_gloo_threads_raised, raise_gloo_threads
from xbench.schedules.base import AttachConfig
from xbench.schedules.bucket import CommBucket, read_flags
from xbench.schedules.checks import group_ids
from xbench.schedules.early_update import PER_PARAMETER, group_of
from xbench.schedules.groups import backend_of, is_emulated, waits_on_stream
from xbench.schedules.hooks import uncopied
from xbench.schedules.launch_queue import QueuedCollective
from xbench.schedules.loop_guard import has_step_hooks_of_others
from xbench.torch_compile import regions

Carrier = Literal["exchange", "streams"]
"""Completion of collectives: by future callbacks of a backend (Gloo), or in order on a stream (NCCL)."""

_FREE: weakref.WeakKeyDictionary[dist.ProcessGroup, list[dist.ProcessGroup]] = weakref.WeakKeyDictionary()
"""Groups that `own_group` made and that no schedule uses now, by the group with the same ranks."""


def check_deferrable(setup: AttachConfig, name: str) -> Optimizer:
    """Return the optimizer when its updates can be deferred for this model. Raises UsageError naming `name`."""
    optimizer = setup.optimizer
    if optimizer is None:
        raise UsageError(f"{name} applies the optimizer layer by layer, and none was given")
    kind = type(optimizer)
    if kind not in PER_PARAMETER:
        known = ", ".join(sorted(one.__name__ for one in PER_PARAMETER))
        raise UsageError(
            f"{name} updates some parameters before others, and does not know that {kind.__name__} may be",
            hint=f"it knows {known}, as torch has them",
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise UsageError(f"{name} cannot put off the step of a differentiable optimizer")
    refuse_step_hooks(optimizer, name)
    if regions(setup.model):
        raise UsageError(
            f"{name} waits before each layer of the forward pass, and torch.compile has left no layers to wait before",
            hint="the other schedules take compiled models",
        )
    return optimizer


def refuse_step_hooks(optimizer: Optimizer, name: str, own: int = 0) -> None:
    """Raise UsageError if the optimizer, or every one, has step hooks beside those of the schedule `name`.

    These are `own` pre-hooks, and a post-hook if there are any.
    """
    others = len(optimizer._optimizer_step_pre_hooks) > own or len(optimizer._optimizer_step_post_hooks) > min(own, 1)
    if has_step_hooks_of_others() or others:
        raise UsageError(
            f"{name} puts updates off into the next forward pass, and the optimizer has step hooks, which "
            "would find neither gradients nor new parameters"
        )


def check_groups(parameters: Mapping[str, Parameter], optimizer: Optimizer, name: str) -> list[list[int]]:
    """Return `group_ids` of the optimizer. Raises UsageError for a parameter that it does not have."""
    groups = group_of(optimizer)
    for each, parameter in parameters.items():
        if id(parameter) not in groups:
            raise UsageError(f"{name} updates all parameters itself, and the optimizer does not have {each!r}")
    return group_ids(optimizer)


def carrier_of(group: dist.ProcessGroup | None, device: torch.device) -> Carrier:
    """The way in which collectives of this group complete. Raises UsageError for an unknown backend."""
    if waits_on_stream(group, device):
        return "streams"
    backend = backend_of(group, device)
    if "gloo" in backend or (is_emulated(group) and device.type == "cpu"):
        return "exchange"
    if is_emulated(group):
        raise UsageError("next-forward overlap over an emulated link of GPUs is for one rank")
    raise UsageError(f"next-forward overlap knows Gloo and NCCL, and the process group's backend is {backend!r}")


@contextmanager
def ordinary_mode(device: str) -> Iterator[None]:
    """Leave inference mode and autocast, which the surrounding forward pass may use."""
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def before_state_dicts(model: Module, optimizer: Optimizer, finish: Callable[[], None]) -> list[RemovableHandle]:
    """Add hooks that complete the step before state dicts are taken or loaded."""

    def first(*_: Any) -> None:
        finish()

    found: list[RemovableHandle] = []
    for module in model.modules():
        found.append(uncopied(module.register_state_dict_pre_hook(first)))  # type: ignore[no-untyped-call]
        found.append(uncopied(module.register_load_state_dict_pre_hook(first)))  # type: ignore[no-untyped-call]
    found.append(optimizer.register_state_dict_pre_hook(first))
    found.append(optimizer.register_load_state_dict_pre_hook(first))
    return found


def own_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """A group of the same ranks for the sole use of one schedule, until it gives it back (`give_back`).

    Two models that train at once have one each: their launches may interleave differently on each rank. Collective: all
    ranks of the group must call it together. An emulated group is returned unchanged.
    """
    if group is None or is_emulated(group):
        return group
    free = _FREE.setdefault(group, [])
    found = free.pop() if free else None
    if found is None:
        raised = are_gloo_threads_raised()
        ranks = dist.get_process_group_ranks(group)
        made: Any = dist.new_group(ranks, timeout=_timeout(group), backend="gloo", use_local_synchronization=True)
        found = made
        assert found is not None
        dist.all_reduce(torch.zeros(1), group=found)  # its threads start with the first collective
        if raised:
            raise_gloo_threads()
    return found


def give_back(group: dist.ProcessGroup | None, lane: dist.ProcessGroup) -> None:
    """Let the next schedule of `group` have what `own_group` made. All ranks give their groups back in one order."""
    if group is not None and lane is not group:
        _FREE.setdefault(group, []).append(lane)


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """The group's timeout, from a private field of torch; None: torch's default."""
    try:
        found: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found


@dataclass(eq=False)
class UpdateGroup:
    """Parameters of one bucket that are waited for and updated together.

    `parcels` are the collectives with their gradients. `flags` are further ones that show whether other ranks had a
    gradient where this one has none. `indices`: places in the bucket. `groups`: the optimizer's parameter group → the
    parameters of it.
    """

    bucket: CommBucket
    indices: list[int]
    parcels: list[QueuedCollective]
    flags: list[QueuedCollective] = field(default_factory=list)
    groups: dict[int, list[Parameter]] = field(default_factory=dict)
    homes: list[Module] = field(default_factory=list)
    due: bool = False
    last: int = 0
    """Place in the launch order of the last collective that it waits for."""

    def give(self, held: dict[int, Tensor], used: Sequence[bool]) -> None:
        """Put averaged gradients on the parameters. `held`: parameter id → its earlier gradient.

        `used`: the bucket's flags, where gradients of this rank are absent.
        """
        bucket = self.bucket
        for index in self.indices:
            parameter = bucket.parameters[index]
            gradient = held.pop(id(parameter), None)
            if bucket.filled[index]:
                assert gradient is not None
                if bucket.narrowed:
                    gradient.copy_(bucket.views[index])
            elif used[index]:
                gradient = bucket.sent(index)
            parameter.grad = gradient


def give_all(pieces: Sequence[UpdateGroup], held: dict[int, Tensor]) -> None:
    """Put the averaged gradients of these groups on their parameters. One copy reads the flags of their buckets."""
    partial = list({id(piece.bucket): piece.bucket for piece in pieces if piece.bucket.waiting}.values())
    used = dict(zip(map(id, partial), read_flags(partial), strict=True))
    for piece in pieces:
        piece.give(held, used.get(id(piece.bucket), ()))


def on_a_stream(needed: Sequence[UpdateGroup], pieces: Sequence[UpdateGroup]) -> list[list[UpdateGroup]]:
    """Calls of the optimizer, each with its groups, for a layer that needs some of them and waits on a stream.

    `pieces`: all groups, in the order of use. The host cannot see arrivals, and each call costs launches. What was
    launched before the last needed collective arrives before it, so it is updated, too. At the step's first wait that
    is a call of its own, while the needed ones are in flight. Later calls take at least as many groups as were updated
    before, the next ones in the order of use. So a step has about log2(groups) calls, and the first layers wait for
    few groups.
    """
    last = max(piece.last for piece in needed)
    due = [piece for piece in pieces if piece.due and piece not in needed]
    earlier = [piece for piece in due if piece.last <= last]
    later = [piece for piece in due if piece.last > last]
    if earlier and len(due) + len(needed) == len(pieces):
        return [earlier, list(needed)]
    done = len(pieces) - len(due) - len(needed)
    return [[*needed, *earlier, *later[: max(0, done - len(needed) - len(earlier))]]]


def assign(pieces: Iterable[UpdateGroup], order: Sequence[QueuedCollective], optimizer: Optimizer) -> None:
    """Set `last` and `groups` of every update group, from the launch order and the optimizer's groups."""
    groups = group_of(optimizer)
    place = {id(parcel): number for number, parcel in enumerate(order)}
    for piece in pieces:
        piece.last = max(place[id(parcel)] for parcel in (*piece.parcels, *piece.flags))
        piece.groups = {}
        for index in piece.indices:
            parameter = piece.bucket.parameters[index]
            piece.groups.setdefault(groups[id(parameter)], []).append(parameter)
