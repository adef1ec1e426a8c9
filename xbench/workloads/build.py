"""Construction of a trainable `Workload` from a resolved `WorkloadSpec`, on one rank.

The model is initialised from `spec.seed`, so it is the same on every rank. The batch is drawn from
`spec.seed + 1000 + rank`, so gradients differ, and a schedule that forgets to average is detected. Weights are drawn on
the CPU and then moved, so that CPU and GPU ranks start from the same numbers.

`build` restores every random-number generator (torch's on the CPU and on the device, numpy's, Python's). It seeds
nothing for the training loop: dropout draws from the state that the caller has set.

`dtype="bf16"` is pure bf16: parameters, buffers, floating-point inputs and targets are all converted. So gradients have
two bytes per element, and the optimizer keeps its state in bf16. Updates below bf16's resolution are lost to rounding,
which does not affect the time of a step.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from xbench.errors import WorkloadError
from xbench.records import WorkloadRecord
from xbench.spec import WorkloadSpec
from xbench.workloads.catalog import WORKLOADS, family_of

Inputs = Tensor | tuple[Any, ...] | list[Any] | dict[str, Any]

SHORT_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
BATCH_SEED = 1000
SGD_LR = 0.01
SGD_MOMENTUM = 0.9
ADAMW_LR = 1e-4


class Recipe(ABC):
    """Recipe of one workload. `model` is called first and once, then `batch`, each with its generator seeded."""

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
class Workload:
    """A model with everything that one training step needs. The caller owns the loop."""

    spec: WorkloadSpec
    model: nn.Module
    inputs: Inputs
    targets: Any
    loss: Callable[[Any, Any], Tensor]
    batch_size: int
    input_description: str

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer, made on first use: a process's first one takes torch seconds, which a check can avoid."""
        return make_optimizer(self.spec, self.model)

    def outputs(self, model: nn.Module | None = None) -> Any:
        """The model's outputs: `model(x)` for a tensor, `model(*x)` for a tuple or list, `model(**x)` for a dict.

        `model` replaces the workload's own when a schedule wraps it.
        """
        network = self.model if model is None else model
        if isinstance(self.inputs, dict):
            return network(**self.inputs)
        if isinstance(self.inputs, tuple | list):
            return network(*self.inputs)
        return network(self.inputs)

    def forward_loss(self, model: nn.Module | None = None) -> Tensor:
        """`loss(model(inputs), targets)`, a scalar with a graph."""
        return self.loss(self.outputs(model), self.targets)

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
        return WorkloadRecord(
            spec=self.spec,
            title=self.spec.title,
            parameters=self.parameters_count,
            tensors=len(self.trainable),
            grad_bytes=self.grad_bytes,
            batch_size=self.batch_size,
            input=self.input_description,
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


def build(spec: WorkloadSpec, device: torch.device, *, rank: int = 0) -> Workload:
    """Build a resolved workload on `device` for `rank`. Built-in models are in training mode; a factory's is unchanged.

    `device` may be meta: then nothing is allocated, and only shapes are available. Raises WorkloadError if the model
    cannot be built or has nothing to train, and SpecError for an unknown name.
    """
    recipe = recipe_of(spec)
    on_meta = device.type == "meta"
    with _preserved_generators(device):
        seed_all(spec.seed)
        with _EmptyOnMeta() if on_meta else nullcontext():
            model = recipe.model()
        seed_all(spec.seed + BATCH_SEED + rank)
        with device if on_meta else nullcontext():
            inputs, targets = recipe.batch(rank)
    dtype = torch.bfloat16 if spec.dtype == "bf16" else None
    model = model.to(device=device, dtype=dtype)
    if family_of(spec.name) != "factory":
        model.train()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(f"{spec.title}: the model has no parameter to train")
    inputs = place(inputs, device, dtype)
    return Workload(
        spec=spec,
        model=model,
        inputs=inputs,
        targets=place(targets, device, dtype),
        loss=recipe.loss,
        batch_size=spec.batch_size or int(next(tensors_in(inputs)).shape[0]),
        input_description=recipe.input_description(),
    )


def recipe_of(spec: WorkloadSpec) -> Recipe:
    """The recipe that builds `spec`. Raises SpecError for an unknown name."""
    plain = spec.name.partition(":")[0]
    family = family_of(spec.name)
    if family == "factory":
        from xbench.workloads.custom import FactoryRecipe

        return FactoryRecipe(spec)
    if family == "vision":
        from xbench.workloads.vision import VisionRecipe

        return VisionRecipe(spec)  # a newer torchvision has names that the registry lacks
    kind: type[Recipe] = WORKLOADS.load(plain)
    return kind(spec)


def make_optimizer(spec: WorkloadSpec, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum 0.9 at 0.01, or AdamW at 1e-4, over the trainable parameters."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if spec.optimizer == "adamw":
        return torch.optim.AdamW(trainable, lr=ADAMW_LR)
    return torch.optim.SGD(trainable, lr=SGD_LR, momentum=SGD_MOMENTUM)


def place(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """`value` with every tensor in it (through tuples, lists, dicts) on `device`, floating-point ones as `dtype`."""
    if isinstance(value, Tensor):
        return value.to(device, dtype if dtype is not None and value.is_floating_point() else None)
    if isinstance(value, dict):
        return {key: place(item, device, dtype) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(place(item, device, dtype) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(place(item, device, dtype) for item in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nest of tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


_DRAWING = frozenset(
    (
        Tensor.normal_,
        Tensor.uniform_,
        nn.init.normal_,
        nn.init.uniform_,
        nn.init.kaiming_uniform_,
        nn.init.kaiming_normal_,
    )
)
"""Functions that fill their first argument, or the one named `tensor`, with random numbers."""


class _EmptyOnMeta(TorchFunctionMode):
    """Puts only `torch.empty` on the meta device: parameters take no memory and initialisers do nothing.

    A whole `torch.device("meta")` would also catch the small arithmetic by which regnet computes its widths. Drawing
    random numbers is skipped: torch would skip it through its compiler, which takes seconds to import.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        if func in _DRAWING:
            drawn: Tensor = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if drawn.is_meta:
                return drawn
        return func(*args, **kwargs)


def seed_all(seed: int) -> None:
    """Seed torch, numpy and random."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def _preserved_generators(device: torch.device) -> Iterator[None]:
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
