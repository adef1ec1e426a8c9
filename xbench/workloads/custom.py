"""The user's own workload: `path/to/train.py:make`, or a factory that a package registers by name.

docs/own-model.md has the contract of `make()`, which returns `(model, batch, loss)` or a loader for the batch. The file
is imported afresh (`workloads.loading`), with its folder on `sys.path` during the import and while the factory runs.

Every rank calls the factory with the same seed (torch, numpy, random), so models start equal, and batches would be
equal too. Then a schedule that forgets to average goes unnoticed. So rank 0 keeps the factory's batch, and every other
rank repeats half of its samples, inputs and targets together, each twice; drawn by rank. Of a loader's batches this
concerns the first, which the parity check takes. Repeating samples creates no new values: codes stay codes, and labels
stay with their samples. Shapes, dtypes and memory formats stay. The preflight looks whether this changes a gradient.

The number of samples is the attribute `batch_size` of the factory or of a loader, or else what `batches.samples_of`
finds. If nothing tells it, figures per sample are per batch, and the samples to repeat are those of the first dimension
of the first tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from xbench.errors import WorkloadError
from xbench.spec import WorkloadSpec
from xbench.text import cut
from xbench.workloads import batches
from xbench.workloads.catalog import WORKLOADS, split_factory
from xbench.workloads.loading import FACTORY, as_script, check_factory, factory_hint, load_file, raised
from xbench.workloads.workload import Recipe

_WANTED = "a factory returns (model, batch, loss), where batch is (inputs, targets), or a DataLoader of such batches"

_WRAPPERS = {
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "FSDPModule": "fully_shard",
}
"""Names of torch's classes. Comparing names avoids importing the classes."""


class FactoryRecipe(Recipe):
    """Calls a factory once, checks its result, and varies its batch by rank."""

    def __init__(self, spec: WorkloadSpec, rank: int) -> None:
        super().__init__(spec)
        self._rank = rank
        self._file: Path | None = None
        self._batch: batches.Batch | None = None
        self._source: Iterable[Any] | None = None
        self._declared: int | None = None
        self._time_first = False
        self._loss: Callable[[Any, Any], Tensor]

    def model(self) -> nn.Module:
        """Call the factory and keep its batch and loss. Raises WorkloadError with the factory's own message."""
        parts = split_factory(self.spec.name)
        self._file = file = Path(parts[0]).absolute() if parts is not None else None
        had_group = _has_process_group()
        with as_script(file) as log:
            try:
                factory = WORKLOADS.load(self.spec.name) if parts is None else self._factory(Path(parts[0]), parts[1])
                takes_rank = _takes_rank(self.spec.title, factory)
                self._declared = _declared_size(self.spec.title, factory)
                self.variation = "rank" if takes_rank else _declared_variation(self.spec.title, factory)
                result = factory(rank=self._rank) if takes_rank else factory()
            except WorkloadError:
                raise
            except (Exception, SystemExit) as error:
                raise raised(self.spec.title, error, file, log.last_line) from error
        if had_group and not _has_process_group():
            raise WorkloadError(
                f"{self.spec.title} destroys the process group, which is xbench's",
                hint="destroy only a group that the factory itself has made",
            )
        model, batch, self._loss = self._check_result(result)
        if batches.is_loader(batch):
            self._source = batch
        else:
            self._batch = batches.checked(batch, self.spec.title, _WANTED)
        check_model(self.spec.title, model)
        self._time_first = batches.takes_time_first(model)
        return model

    def batch(self, rank: int) -> tuple[batches.Inputs, Any]:
        """The factory's batch or its loader's first, varied for every rank but the first. Raises WorkloadError."""
        if self._source is not None:
            opened = partial(as_script, self._file)
            self.loader = batches.Loader(self.spec.title, self._source, opened, time_first=self._time_first)
            self._batch = self.loader.take()
        assert self._batch is not None
        said = self._declared or (self.loader.batch_size if self.loader is not None else None)
        self.batch_size = said or batches.samples_of(*self._batch, self._time_first) or 0
        if rank == 0 or self.variation is not None:
            return self._batch
        return with_repeated(self._batch, self.batch_size, time_first=self._time_first)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The factory's loss."""
        return self._loss(outputs, targets)

    def input_description(self) -> str:
        """Shape and dtype of each input tensor, without the batch: '16 float32, 3×8×8 uint8', '32 tokens (int64)'."""
        assert self._batch is not None
        shapes = [
            _described(tensor, self.batch_size, self._time_first) for tensor in batches.tensors_in(self._batch[0])
        ]
        more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
        return ", ".join(shapes[:3]) + more

    def _factory(self, file: Path, name: str) -> Callable[..., Any]:
        check_factory(self.spec.title, file, name)
        module = load_file(file.absolute())
        factory = getattr(module, name, None)
        if callable(factory):
            function: Callable[..., Any] = factory
            return function
        what = "is not a function" if factory is not None else "does not exist"
        raise WorkloadError(
            f"{self.spec.title}: {name!r} {what} in {file.name}", hint=factory_hint(file.name), lines=FACTORY
        )

    def _check_result(self, result: Any) -> tuple[nn.Module, Any, Callable[[Any, Any], Tensor]]:
        def wrong(what: str) -> WorkloadError:
            return WorkloadError(f"{self.spec.title} {what}", hint=_WANTED)

        if isinstance(result, tuple | list) and any(_is_optimizer(item) for item in result):
            raise WorkloadError(
                f"{self.spec.title} returned an optimizer, and xbench makes its own over the parameters",
                hint="return (model, batch, loss), and choose with --optimizer",
            )
        if not isinstance(result, tuple | list) or len(result) != 3:
            raise wrong(f"returned {batches.kind_of(result)} and not (model, batch, loss)")
        model, batch, loss = result
        if not isinstance(model, nn.Module):
            raise wrong(f"returned {batches.kind_of(model)} as its model, which is not a torch.nn.Module")
        if not callable(loss):
            raise wrong(f"returned {batches.kind_of(loss)} as its loss, which cannot be called")
        return model, batch, loss


def _takes_rank(title: str, factory: Callable[..., Any]) -> bool:
    """True for a factory that takes the number of its rank. Raises WorkloadError for one that needs other arguments."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in variadic and name != "rank"
    ]
    if needed:
        raise WorkloadError(
            f"{title} needs {', '.join(needed)}, and a factory is called without arguments",
            hint="give defaults, or write a function that calls it with values",
        )
    return "rank" in parameters


def _declared_variation(title: str, factory: Callable[..., Any]) -> Literal["none"] | None:
    """'none' for a factory whose attribute `vary` says that all ranks have its batch. Raises WorkloadError."""
    vary = getattr(factory, "vary", "samples")
    if vary not in ("samples", "none"):
        raise WorkloadError(
            f"{title}: its attribute vary is {cut(repr(vary), 60)} and must be 'samples' or 'none'",
            hint="def make(rank) returns a batch for each rank",
        )
    return "none" if vary == "none" else None


def _declared_size(title: str, factory: Callable[..., Any]) -> int | None:
    """Number of samples that a factory declares in its attribute `batch_size`; None without. Raises WorkloadError."""
    size = getattr(factory, "batch_size", None)
    if size is not None and (not isinstance(size, int) or size < 1):
        raise WorkloadError(
            f"{title}: its attribute batch_size is {cut(repr(size), 60)} and must be the samples of its batch",
            hint="make.batch_size = 32",
        )
    return size


def _described(tensor: Tensor, samples: int, time_first: bool) -> str:
    """One sample of an input, or all of a tensor that has no dimension of so many samples."""
    sizes, dtype = list(batches.shape_of(tensor)), str(tensor.dtype).removeprefix("torch.")
    axis = _axis_of(tensor, samples, time_first)
    if axis is not None:
        del sizes[axis]
    shape = "×".join("ragged" if size == 0 and tensor.is_nested else str(size) for size in sizes) or "1"
    if axis is not None and len(sizes) == 1 and tensor.dtype in (torch.int32, torch.int64):
        return f"{shape} tokens ({dtype})"
    return f"{shape} {dtype}"


def _has_process_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _is_optimizer(value: Any) -> bool:
    """True for an optimizer, or for a wrapper of one."""
    return hasattr(value, "param_groups") and callable(getattr(value, "step", None))


def check_model(title: str, model: nn.Module) -> None:
    """Raise WorkloadError for a model that is wrapped or sharded already, or that no schedule can train."""
    for name, module in model.named_modules():
        of_torch = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")]
        wrapper = next((_WRAPPERS[kind] for kind in of_torch if kind in _WRAPPERS), None)
        if wrapper is not None:
            part = "the model" if not name else f"the model's part {name!r}"
            raise WorkloadError(
                f"{title}: {part} is wrapped in {wrapper}, and xbench attaches every schedule itself, DDP among them",
                hint="hand the model in unwrapped",
            )
    for name, parameter in model.named_parameters():
        if type(parameter).__name__ == "DTensor":
            raise WorkloadError(
                f"{title}: the model's parameter {name!r} is sharded over ranks (a DTensor), and xbench shards it "
                "itself where a mode does",
                hint="hand the model in unwrapped",
            )
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise WorkloadError(
            f"{title}: the model has lazy parameters without a shape yet",
            hint="run the model once in the factory before returning it",
        )
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            strides = tensor.stride() if tensor.layout == torch.strided else ()
            if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, strides, strict=False)):
                raise WorkloadError(
                    f"{title}: the model's {kind} {name!r} is an expanded view, whose elements share memory, so it "
                    "cannot be written to, as DDP writes to buffers and an optimizer to parameters",
                    hint=f"{name.rpartition('.')[2]}.clone() has memory of its own",
                )


def with_repeated(batch: batches.Batch, samples: int | None = None, *, time_first: bool = False) -> batches.Batch:
    """The batch (inputs, targets) with half of its samples twice, in place of the others. A single sample stays.

    Draws from torch's generator, which the caller has seeded for the rank. `samples`: their number where inputs and
    targets do not tell it; None or 0: the first dimension of the first tensor. `time_first`: whether samples may be the
    second dimension (`batches.samples_of`).
    """
    inputs, targets = batch
    first, *_ = batches.shape_of(next(batches.tensors_in(inputs)))
    samples = batches.samples_of(inputs, targets, time_first) or samples or first
    if samples == 1:
        return batch
    choose = partial(chosen, order=drawn(samples), time_first=time_first)
    several = isinstance(inputs, tuple | list) and not batches.is_named(inputs)
    return batches.with_parts(inputs, choose) if several else choose(inputs), choose(targets)


def chosen(value: Any, order: Tensor, time_first: bool = False) -> Any:
    """The samples of `order` in each tensor, list and packed sequence that has as many; the rest as it is."""
    if isinstance(value, Tensor):
        if value.is_nested and value.size(0) == len(order):
            parts = value.unbind()
            return torch.nested.nested_tensor([parts[index] for index in order.tolist()], layout=value.layout)
        axis = _axis_of(value, len(order), time_first)
        return value if axis is None else picked(value, order, axis)
    if isinstance(value, PackedSequence):
        if value.batch_sizes[0] != len(order):
            return value
        sequences = unpack_sequence(value)
        return pack_sequence(
            [sequences[index] for index in order.tolist()], enforce_sorted=value.sorted_indices is None
        )
    if isinstance(value, tuple | list) and not batches.is_named(value) and len(value) == len(order):
        items = [batches.sizes_of(item, time_first) or set() for item in value]
        records = all(isinstance(item, Mapping) for item in value)  # one of them may have as many boxes
        if any(items) and not (all if records else any)(len(order) in sizes for sizes in items):
            return type(value)(batches.with_each(value[index], Tensor.clone) for index in order.tolist())
    return batches.with_parts(value, lambda part: chosen(part, order, time_first))


def _axis_of(tensor: Tensor, samples: int, time_first: bool) -> int | None:
    """Dimension of a tensor that has so many samples: its first one, or the second if time may be the first."""
    sizes = batches.shape_of(tensor)[: 2 if time_first and not tensor.is_nested else 1]
    return sizes.index(samples) if samples in sizes else None


def drawn(samples: int) -> Tensor:
    """Indices of `samples` samples, in ascending order: half of them, rounded up, twice each.

    The order is ascending so that a sorted batch, by length for instance, stays sorted.
    """
    half = torch.randperm(samples, device="cpu")[: (samples + 1) // 2]
    return half.sort().values.repeat_interleave(2)[:samples]


def picked(tensor: Tensor, order: Tensor, axis: int = 0) -> Tensor:
    """These samples of a tensor, in its memory format; a leaf, as the factory's tensor is."""
    samples = tensor.detach().index_select(axis, order.to(tensor.device))
    if tensor.layout == torch.strided:
        samples = torch.empty_like(tensor, requires_grad=False).copy_(samples)
    return samples.requires_grad_(tensor.requires_grad)
