"""Workload: a model with everything that one training step needs; and the recipe that a kind of workload provides."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from xbench.records import WorkloadRecord
from xbench.spec import Variation, WorkloadSpec
from xbench.workloads.batches import Feed, Inputs, Loader, is_named
from xbench.workloads.training_step import TrainingStep

SHORT_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
AMP_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SGD_LR = 0.01
SGD_MOMENTUM = 0.9
ADAMW_LR = 1e-4


class Recipe(ABC):
    """Recipe of one workload. `model` is called first and once, then `batch`, each with its generator seeded.

    `computes_nothing` is true if the model's constructor reads no value of a tensor, so that all of its tensors may be
    on the meta device.
    """

    computes_nothing = False
    loader: Loader | None = None
    """Source of further batches, known once `batch` was called; None: there is one batch."""
    batch_size: int = 0
    """Samples of a batch that the recipe itself chooses, known once `batch` was called; 0: they cannot be told."""
    variation: Variation | None = None
    """The difference of batches by rank, if the user has said it, known once `model` was called."""

    def __init__(self, spec: WorkloadSpec) -> None:
        self.spec = spec

    @abstractmethod
    def model(self) -> nn.Module:
        """The freshly initialised network."""

    @abstractmethod
    def batch(self, rank: int) -> tuple[Inputs, Any]:
        """(inputs, targets) on torch's default device; the generator is seeded for `rank`."""

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The scalar to minimise."""

    @abstractmethod
    def input_description(self) -> str:
        """Description of one sample for people: '3×128×128 images'."""


@dataclass
class Workload(TrainingStep):
    """A model with everything that one training step needs. The caller owns the loop.

    `batch_size` counts the samples of one micro-step; 0: not known. `inputs` and `targets` are the current batch, of
    the `feed` if there is one.
    """

    spec: WorkloadSpec
    model: nn.Module
    inputs: Inputs
    targets: Any
    loss: Callable[[Any, Any], Tensor]
    batch_size: int
    input_description: str
    feed: Feed | None = None

    def __post_init__(self) -> None:
        self.micro_steps, self.max_norm = self.spec.accumulate, self.spec.clip
        self.device_type = next(self.model.parameters()).device.type
        self.is_fed = self.feed is not None
        workers = self.feed.loader.workers if self.feed is not None else 0
        self.loads_ahead = workers > 0 or (self.is_fed and self.device_type == "cuda")
        self.burst = max(1, math.ceil(workers / self.micro_steps))
        if self.spec.amp == "fp16" and self.device_type != "meta":
            self.scaled_on = self.device_type
        self.reset_scaler()

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:  # type: ignore[override]  # an attribute once it is made
        """Optimizer, made on first use: a process's first one takes torch seconds, which a check can avoid."""
        return make_optimizer(self.spec, self.model)

    def load(self) -> None:
        """Take the next batch of the feed, if there is one. Raises WorkloadError as it does."""
        if self.feed is not None:
            self.inputs, self.targets = self.feed.take()

    def fetch(self) -> None:
        """Wait for the next batch ahead of `load`."""
        if self.feed is not None:
            self.feed.fetch()

    def on_one_batch(self) -> AbstractContextManager[None]:
        """Return a context in which `load` takes the first batch again and again."""
        return super().on_one_batch() if self.feed is None else self.feed.held()

    def outputs(self, model: nn.Module | None = None) -> Any:
        """The model's outputs: `model(*x)` for a tuple or list, `model(**x)` for a mapping, else `model(x)`.

        A named tuple is one object. `model` replaces the workload's own when a schedule wraps it.
        """
        network = self.model if model is None else model
        if isinstance(self.inputs, Mapping):
            return network(**self.inputs)
        if isinstance(self.inputs, tuple | list) and not is_named(self.inputs):
            return network(*self.inputs)
        return network(self.inputs)

    def forward_loss(self, model: nn.Module | None = None) -> Tensor:
        """`loss(model(inputs), targets)`, a scalar with a graph, under autocast if the workload has it."""
        if self.spec.amp is None or self.device_type == "meta":
            return self.loss(self.outputs(model), self.targets)
        with torch.autocast(self.device_type, AMP_DTYPES[self.spec.amp]):
            return self.loss(self.outputs(model), self.targets)

    def under(
        self, model: nn.Module, no_sync: Callable[[], AbstractContextManager[object]], synchronize: Callable[[], None]
    ) -> Self:
        """This workload with an attached schedule: the model that it wraps, its `no_sync` and its `synchronize`."""
        found = self._copied()
        found.model, found.no_sync, found.synchronize = model, no_sync, synchronize
        return found

    def last_micro_step(self) -> Self:
        """This workload with steps of one micro-step, which is the one that communicates."""
        found = self._copied()
        found.micro_steps = 1
        return found

    def _copied(self) -> Self:
        assert self.optimizer is not None  # made before the copy, so that both have the same one
        return copy(self)

    @property
    def trainable(self) -> list[nn.Parameter]:
        """Parameters that get a gradient, each once, in registration order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def parameters_count(self) -> int:
        """Elements in all trainable parameters; a shared one counts once."""
        return sum(parameter.numel() for parameter in self.trainable)

    @property
    def grad_bytes(self) -> int:
        """Bytes of one rank's gradients [B]."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.trainable)

    def describe(self) -> WorkloadRecord:
        """This workload as the record keeps it."""
        loader = self.feed.loader.description if self.feed is not None else None
        return WorkloadRecord(
            spec=self.spec,
            title=self.spec.title,
            parameters=self.parameters_count,
            tensors=len(self.trainable),
            grad_bytes=self.grad_bytes,
            batch_size=self.batch_size * self.micro_steps,
            input=self.input_description + (f" from a {loader}" if loader else ""),
            loader=loader,
            burst=self.burst,
            buffer_bytes=self.buffer_bytes,
            parameter_dtypes=self.parameter_dtypes if self.parameter_dtypes != self.spec.dtype else None,
        )

    @property
    def parameter_dtypes(self) -> str:
        """Dtypes of the trainable parameters, most bytes first: 'fp32', 'bf16', 'fp32 and bf16'."""
        nbytes: dict[str, int] = {}
        for parameter in self.trainable:
            name = str(parameter.dtype).removeprefix("torch.")
            nbytes[name] = nbytes.get(name, 0) + parameter.numel() * parameter.element_size()
        return " and ".join(SHORT_DTYPES.get(name, name) for name in sorted(nbytes, key=lambda name: -nbytes[name]))

    @property
    def buffer_bytes(self) -> list[int]:
        """Bytes of the model's buffers (batch-norm statistics) by dtype, in order of first appearance."""
        by_dtype: dict[torch.dtype, int] = {}
        for buffer in self.model.buffers():
            by_dtype[buffer.dtype] = by_dtype.get(buffer.dtype, 0) + buffer.numel() * buffer.element_size()
        return list(by_dtype.values())


def make_optimizer(spec: WorkloadSpec, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum 0.9 at 0.01, or AdamW at 1e-4, over the trainable parameters, with the kernels of the spec."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kernels: dict[str, Any] = {} if spec.optimizer_impl == "default" else {spec.optimizer_impl: True}
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(trainable, lr=ADAMW_LR, **kernels)
    return torch.optim.SGD(trainable, lr=SGD_LR, momentum=SGD_MOMENTUM, **kernels)
