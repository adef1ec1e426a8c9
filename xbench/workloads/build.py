"""Construction of a trainable `Workload` from a resolved `WorkloadSpec`, on one rank.

The model is initialised from `spec.seed`, so it is the same on every rank. The batch is drawn from
`spec.seed + 1000 + rank`, so gradients differ, and a schedule that forgets to average is detected. Weights are drawn on
the CPU and then moved, so that CPU and GPU ranks start from the same numbers. `build` restores every random-number
generator and seeds nothing for the training loop: dropout draws from the state that the caller has set.

`dtype="bf16"` is pure bf16: parameters, buffers, floating-point inputs and targets are all converted.

`checkpoint="blocks"` checkpoints the activations of the model's blocks (Chen et al., arXiv 1604.06174;
`torch.utils.checkpoint` with `use_reentrant=False`). A block's class becomes a subclass of the same name. Names of
modules and parameters stay, and so do hooks, which run once in forward.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from xbench.equal_ranks import differing
from xbench.errors import WorkloadError
from xbench.model_blocks import blocks_of
from xbench.spec import WorkloadSpec
from xbench.torch_compile import regions
from xbench.workloads.batches import Feed, with_each
from xbench.workloads.catalog import WORKLOADS, family_of
from xbench.workloads.workload import Recipe, Workload

BATCH_SEED = 1000


def build(spec: WorkloadSpec, device: torch.device, *, rank: int = 0) -> Workload:
    """Build a resolved workload on `device` for `rank`. Built-in models are in training mode; a factory's is unchanged.

    `device` may be meta: then nothing is allocated, and only shapes are available. Raises WorkloadError if the model
    cannot be built or has nothing to train, and SpecError for an unknown name.
    """
    recipe = recipe_of(spec, rank)
    on_meta = device.type == "meta"
    with _preserved_generators(device):
        seed_all(spec.seed)
        with nullcontext() if not on_meta else device if recipe.computes_nothing else _EmptyOnMeta():
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
    if spec.checkpoint == "blocks":
        checkpoint_blocks(model, spec.title)
    first = (place(inputs, device, dtype), place(targets, device, dtype))
    feed = Feed(recipe.loader, first, lambda batch: place(batch, device, dtype)) if recipe.loader is not None else None
    return Workload(
        spec=spec.model_copy(update={"variation": recipe.variation}),
        model=model,
        inputs=first[0],
        targets=first[1],
        loss=recipe.loss,
        batch_size=spec.batch_size or recipe.batch_size,
        input_description=recipe.input_description(),
        feed=feed,
    )


class Checkpointed(nn.Module):
    """Forward pass of a block that keeps its inputs alone."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the block. Without gradients nothing is kept in any case."""
        own = partial(super().forward, **options)
        return checkpoint(own, *inputs, use_reentrant=False) if torch.is_grad_enabled() else own(*inputs)


def checkpoint_blocks(model: nn.Module, title: str) -> None:
    """Checkpoint every block of the model, in place. Raises WorkloadError for a model without blocks."""
    if regions(model):
        raise WorkloadError(
            f"{title}: --checkpoint blocks recomputes modules one by one, and torch.compile has made one of several",
            hint="leave --checkpoint or the compilation out",
        )
    blocks = blocks_of(model)
    if not blocks:
        raise WorkloadError(
            f"{title}: the model has no blocks to checkpoint, which are members of a ModuleList or a Sequential",
            hint="leave --checkpoint out",
        )
    for block in blocks.values():
        kind = type(block)
        block.__class__ = type(kind.__name__, (Checkpointed, kind), {"__module__": kind.__module__})


def check_alike(workload: Workload) -> None:
    """Raise WorkloadError, on every rank, if the ranks' parameters differ in a bit: they would train two networks.

    Collective: every rank of the default process group must call it.
    """
    names = differing(workload.model.named_parameters())
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise WorkloadError(
            f"{workload.spec.title}: the ranks' models start apart, in {names[0]!r}{more}",
            hint="the same seed is set on all ranks before the factory is called, so it must not set one of its own",
        )


def recipe_of(spec: WorkloadSpec, rank: int = 0) -> Recipe:
    """The recipe that builds `spec` on a rank. Raises SpecError for an unknown name."""
    plain = spec.name.partition(":")[0]
    family = family_of(spec.name)
    if family == "factory":
        from xbench.workloads.custom import FactoryRecipe

        return FactoryRecipe(spec, rank)
    if plain.startswith("timm/"):
        from xbench.workloads.vision import TimmRecipe

        return TimmRecipe(spec)
    if plain.startswith("hf/"):
        from xbench.workloads.hf_models import hf_recipe

        return hf_recipe(spec)
    if family == "vision":
        from xbench.workloads.vision import VisionRecipe

        return VisionRecipe(spec)  # a newer torchvision has names that the registry lacks
    kind: type[Recipe] = WORKLOADS.load(plain)
    return kind(spec)


def place(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """`value` with every tensor in it (through tuples, lists, dicts) on `device`, floating-point ones as `dtype`.

    The host does not wait for a copy from pinned memory to a GPU.
    """

    def moved(x: Tensor) -> Tensor:
        own = dtype if dtype is not None and x.is_floating_point() else None
        return x.to(device, own, non_blocking=device.type == "cuda" and x.is_pinned())

    return with_each(value, moved)


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
