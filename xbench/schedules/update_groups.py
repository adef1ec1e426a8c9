"""Update groups of next-forward overlap: parameters of one bucket that are waited for and updated together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from xbench.schedules.bucket import FlatBucket
from xbench.schedules.launch_queue import QueuedCollective


@dataclass(eq=False)
class UpdateGroup:
    """Parameters of one bucket that are waited for and updated together.

    `parcels` are the collectives with their gradients. `flags` are further ones that show whether other ranks had a
    gradient where this one has none. `indices`: places in the bucket. `groups`: the optimizer's parameter group → the
    parameters of it.
    """

    bucket: FlatBucket
    indices: list[int]
    parcels: list[QueuedCollective]
    flags: list[QueuedCollective] = field(default_factory=list)
    groups: dict[int, list[Parameter]] = field(default_factory=dict)
    homes: list[Module] = field(default_factory=list)
    due: bool = False
    last: int = 0
    """Place in the launch order of the last collective that it waits for, where arrivals can be counted."""

    def give(self, held: dict[int, Tensor | None]) -> None:
        """Put averaged gradients on the parameters. `held`: parameter id → its earlier gradient."""
        bucket = self.bucket
        used = bucket.flags.tolist() if bucket.waiting else []
        for index in self.indices:
            parameter = bucket.parameters[index]
            gradient = held.pop(id(parameter), None)
            if bucket.filled[index]:
                assert gradient is not None
                if bucket.narrowed:
                    gradient.copy_(bucket.views[index])
            elif used[index] > 0:
                gradient = bucket.sent(index)
            parameter.grad = gradient


def group_of(optimizer: Optimizer) -> dict[int, int]:
    """Parameter id → index of its parameter group."""
    return {
        id(parameter): number for number, group in enumerate(optimizer.param_groups) for parameter in group["params"]
    }


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
