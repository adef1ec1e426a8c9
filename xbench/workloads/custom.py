"""The user's own workload: `path/to/train.py:make`, or a factory that a package registers by name.

`make()` returns `(model, batch, loss)`. `batch` is `(inputs, targets)`, and a step computes
`loss(model(inputs), targets)`. See `examples/train.py`. In place of the batch it may return a loader, from which every
step takes the next batch (`workloads.batches`). See `examples/train_loader.py`.

The file is imported afresh, as Python would import it (`workloads.loading`). Its folder is on `sys.path` during the
import and while the factory runs, so it can import its neighbours. `if __name__ == "__main__":` is false there.

Every rank calls the factory with the same seed (torch, numpy, random), so models start equal. A factory must not draw
its weights from another source. Each unsuitable model is refused in one sentence, here and on the ranks.

The batch would be equal too. Equal batches give equal gradients, and then a schedule that forgets to average goes
unnoticed. So rank 0 keeps the factory's batch, and every other rank varies it. Of a loader's batches this concerns the
first, which the parity check takes. The first variation that works is taken (`workloads.trial` tries them before the
ranks start):

| variation | the batch of rank r > 0 |
| --- | --- |
| `samples` | half of the factory's samples, inputs and targets together, each twice; drawn by rank |
| `noise` | floating-point inputs with normal noise of a tenth of their own standard deviation |
| `sequence` | the other inputs rolled by r positions along their second dimension, against the targets |
| `none` | rank 0's |

Repeating samples creates no new values: codes stay codes, and labels stay with their samples, in the inputs too. It has
no effect on a single sample or on equal samples; hence the other variations. Shapes, dtypes and memory formats stay.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from xbench.errors import WorkloadError, nearest
from xbench.spec import Variation, WorkloadSpec
from xbench.workloads.batches import Batch, Loader, checked, is_loader, kind_of
from xbench.workloads.catalog import WORKLOADS, split_factory
from xbench.workloads.loading import as_script, load_file, raised
from xbench.workloads.nested import Inputs, tensors_in, with_each
from xbench.workloads.workload import Recipe

_WANTED = "a factory returns (model, batch, loss), where batch is (inputs, targets), or a DataLoader of such batches"
NOISE = 0.1

_WRAPPERS = {
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "FSDPModule": "fully_shard",
}
"""Names of torch's classes. Comparing names avoids importing the classes."""


class FactoryRecipe(Recipe):
    """Calls a factory once, checks its result, and varies its batch by rank."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__(spec)
        self._file: Path | None = None
        self._batch: Batch | None = None
        self._source: Iterable[Any] | None = None
        self._loss: Callable[[Any, Any], Tensor]

    def model(self) -> nn.Module:
        """Call the factory and keep its batch and loss. Raises WorkloadError with the factory's own message."""
        parts = split_factory(self.spec.name)
        self._file = file = Path(parts[0]).absolute() if parts is not None else None
        had_group = _has_process_group()
        with as_script(file) as log:
            try:
                factory = WORKLOADS.load(self.spec.name) if parts is None else self._factory(Path(parts[0]), parts[1])
                _check_takes_nothing(self.spec.title, factory)
                result = factory()
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
        if is_loader(batch):
            self._source = batch
        else:
            self._batch = checked(batch, self.spec.title, _WANTED)
        check_model(self.spec.title, model)
        return model

    def batch(self, rank: int) -> tuple[Inputs, Any]:
        """The factory's batch or its loader's first, varied for every rank but the first. Raises WorkloadError."""
        if self._source is not None:
            self.loader = Loader(self.spec.title, self._source, partial(as_script, self._file))
            self._batch = self.loader.take()
        assert self._batch is not None
        return vary(self._batch, rank, self.spec.variation or "samples")

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The factory's loss."""
        return self._loss(outputs, targets)

    def input_description(self) -> str:
        """Shape and dtype of each input tensor, without the batch: '16 float32, 3×8×8 int64'."""
        assert self._batch is not None
        shapes = [
            f"{'×'.join(str(size) for size in tensor.shape[1:]) or '1'} {str(tensor.dtype).removeprefix('torch.')}"
            for tensor in tensors_in(self._batch[0])
        ]
        more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
        return ", ".join(shapes[:3]) + more

    def _factory(self, file: Path, name: str) -> Callable[[], Any]:
        module = load_file(file.absolute())
        factory = getattr(module, name, None)
        if callable(factory):
            function: Callable[[], Any] = factory
            return function
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        close = nearest(name, functions)
        what = "is not a function" if factory is not None else "does not exist"
        raise WorkloadError(
            f"{self.spec.title}: {name!r} {what} in {file.name}", hint=f"did you mean {close!r}?" if close else None
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
            raise wrong(f"returned {kind_of(result)} and not (model, batch, loss)")
        model, batch, loss = result
        if not isinstance(model, nn.Module):
            raise wrong(f"returned {kind_of(model)} as its model, which is not a torch.nn.Module")
        if not callable(loss):
            raise wrong(f"returned {kind_of(loss)} as its loss, which cannot be called")
        return model, batch, loss


def _check_takes_nothing(title: str, factory: Callable[..., Any]) -> None:
    """Raise WorkloadError for a factory that cannot be called without arguments."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variadic
    ]
    if needed:
        raise WorkloadError(
            f"{title} needs {', '.join(needed)}, and a factory is called without arguments",
            hint="give defaults, or write a function that calls it with values",
        )


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


def vary(batch: tuple[Inputs, Any], rank: int, variation: Variation = "samples") -> tuple[Inputs, Any]:
    """The batch (inputs, targets) of a rank. Draws from torch's generator, which the caller has seeded for the rank."""
    inputs, targets = batch
    if rank == 0 or variation == "none":
        return batch
    samples = next(tensors_in(inputs)).shape[0]
    if variation == "samples":
        if samples == 1:
            return batch
        order = drawn(samples)
        return with_each(batch, lambda x: picked(x, order) if x.dim() and x.shape[0] == samples else x)  # type: ignore[no-any-return]
    if variation == "noise":
        return with_each(inputs, noisy), targets

    def rolled(x: Tensor) -> Tensor:
        is_sequence = x.dim() > 1 and x.shape[0] == samples and not x.is_floating_point()
        return x.roll(rank, 1) if is_sequence else x

    return with_each(inputs, rolled), targets


def drawn(samples: int) -> Tensor:
    """Indices of `samples` samples, in ascending order: half of them, rounded up, twice each.

    The order is ascending so that a sorted batch, by length for instance, stays sorted.
    """
    half = torch.randperm(samples, device="cpu")[: (samples + 1) // 2]
    return half.sort().values.repeat_interleave(2)[:samples]


def picked(tensor: Tensor, order: Tensor) -> Tensor:
    """These samples of a tensor, in its memory format; a leaf, as the factory's tensor is."""
    samples = tensor.detach().index_select(0, order.to(tensor.device))
    if tensor.layout == torch.strided:
        samples = torch.empty_like(tensor, requires_grad=False).copy_(samples)
    return samples.requires_grad_(tensor.requires_grad)


def noisy(tensor: Tensor) -> Tensor:
    """A floating-point tensor with noise. A tensor of a single value or a mask stays as it is."""
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    spread = float(tensor.detach().float().std(correction=0))
    # Masks hold -inf; NaN compares false too.
    return tensor + NOISE * spread * torch.randn_like(tensor) if 0 < spread < math.inf else tensor
