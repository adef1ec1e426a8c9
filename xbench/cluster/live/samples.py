"""Which samples a step has, and how they are made: decided by the job's seed and the step alone.

A job trains on a set of samples, each of which is decided by its number: a workload of ours draws sample i from the
seed and i, so that a rank makes only those that it needs, and a set is `EPOCH_STEPS` batches large; a factory's batch
is the set. An epoch goes through the set in an order that the seed and the epoch decide; what does not fill a batch is
left out. How many workers there are changes who makes a sample and nothing else.

Random numbers of the forward pass (dropout) are drawn from a seed of their own a step and a rank: a step that is done
again with as many workers is the same step, and a checkpoint needs no generator's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xbench.errors import WorkloadError
from xbench.spec import WorkloadSpec
from xbench.workloads import check_one_batch
from xbench.workloads.batches import with_each
from xbench.workloads.build import recipe_of
from xbench.workloads.catalog import family_of
from xbench.workloads.workload import Workload

EPOCH_STEPS = 16
_SAMPLE, _LOOP, _ORDER = range(3)


class Drawn:
    """Samples of a workload of ours: `spec.batch_size` is one. `count`: how many there are."""

    def __init__(self, spec: WorkloadSpec, batch_size: int) -> None:
        self._recipe = recipe_of(spec)
        self._seed = spec.seed
        self.count = EPOCH_STEPS * batch_size

    def take(self, numbers: Sequence[int]) -> tuple[Any, Any]:
        """(inputs, targets) of these samples, in this order, on the CPU. Leaves torch's generator anywhere."""
        rows: list[Any] = []
        targets: list[Tensor] = []
        for number in numbers:
            torch.manual_seed(mixed(self._seed, _SAMPLE, number))
            row, target = self._recipe.batch(0)
            rows.append(row)
            targets.append(target)
        if isinstance(rows[0], dict):
            return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}, torch.cat(targets)
        return torch.cat(rows), torch.cat(targets)


class BatchSamples:
    """The samples of a factory's batch: what has as many rows as its first input is taken by row."""

    def __init__(self, workload: Workload) -> None:
        self._whole = (workload.inputs, workload.targets)
        self.count = workload.batch_size

    def take(self, numbers: Sequence[int]) -> tuple[Any, Any]:
        """(inputs, targets) of these samples, in this order, where the workload is."""

        def rows(tensor: Tensor) -> Tensor:
            return tensor[list(numbers)] if tensor.dim() and tensor.shape[0] == self.count else tensor

        inputs, targets = with_each(self._whole, rows)
        return inputs, targets


class Order:
    """Which samples each step (from 0) has: no torch in it, and the same for every number of workers."""

    def __init__(self, seed: int, count: int, batch_size: int) -> None:
        if batch_size > count:
            raise ValueError(f"a batch of {batch_size} from {count} samples")
        self._seed, self._count, self._batch_size = seed, count, batch_size
        self._epoch, self._order = -1, np.arange(0)

    def of_step(self, step: int) -> list[int]:
        """Numbers of its samples, in the order in which ranks share them."""
        epoch, place = divmod(step, self._count // self._batch_size)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng((self._seed, _ORDER, epoch)).permutation(self._count)
        return [int(one) for one in self._order[place * self._batch_size : (place + 1) * self._batch_size]]


def samples_of(workload: Workload, batch_size: int) -> Drawn | BatchSamples:
    """The set of a built workload.

    Raises WorkloadError for a factory whose batch is smaller than the job's, or comes from a loader.
    """
    if family_of(workload.spec.name) != "factory":
        return Drawn(workload.spec, batch_size)
    check_one_batch(workload.describe(), "a live job")
    given = BatchSamples(workload)
    if given.count < batch_size:
        raise WorkloadError(
            f"{workload.spec.title}: its factory made {given.count} samples, and a step wants {batch_size}",
            hint=f"a batch size of at most {given.count}, or a larger batch from the factory",
        )
    return given


def loop_seed(seed: int, step: int, rank: int) -> int:
    """For what a rank draws in the forward pass of a step."""
    return mixed(seed, _LOOP, step, rank)


def mixed(*parts: int) -> int:
    """One seed below 2⁶³ of several numbers."""
    low, high = np.random.SeedSequence(parts).generate_state(2, np.uint32)
    return (int(high) >> 1) << 32 | int(low)
