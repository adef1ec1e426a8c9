"""The user's own workload: `path/to/train.py:make`, or a factory that a package registers by name.

`make()` returns `(model, batch, loss)`; `batch` is `(inputs, targets)`, and a step computes
`loss(model(inputs), targets)`. See `examples/train.py`.

The file is imported afresh under a name of its own, with its folder on `sys.path` while it is imported and while the
factory runs, so it can import its neighbours. `if __name__ == "__main__":` does not hold there.

Every rank calls the factory with the same seed (torch, numpy, random), so models start equal; a factory must not draw
its weights from anywhere else. The batch would be equal too, and equal batches give equal gradients, under which a
schedule that forgets to average goes unnoticed. So rank 0 keeps the factory's batch, and every other rank varies it:
floating-point inputs get normal noise of a tenth of their own standard deviation; where there are none, the other
inputs are rolled along the batch against the targets by one place a rank. Shapes and dtypes stay as they are.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xbench.errors import WorkloadError, nearest
from xbench.spec import WorkloadSpec
from xbench.workloads.build import Inputs, Recipe, tensors_in
from xbench.workloads.catalog import WORKLOADS, split_factory

NOISE = 0.1
_WANTED = "a factory returns (model, batch, loss), where batch is (inputs, targets)"


class FactoryRecipe(Recipe):
    """Calls a factory once, checks what it returned, and varies its batch by rank."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__(spec)
        self._batch: tuple[Inputs, Any]
        self._loss: Callable[[Any, Any], Tensor]

    def model(self) -> nn.Module:
        """Call the factory and keep its batch and loss. Raises WorkloadError with the factory's own message."""
        parts = split_factory(self.spec.name)
        if parts is None:
            made = self._guarded(None, "it", lambda: WORKLOADS.load(self.spec.name)())
        else:
            file = Path(parts[0]).absolute()
            with _on_path(file.parent):
                made = self._guarded(file, parts[1], lambda: self._factory(file, parts[1])())
        model, self._batch, self._loss = self._checked(made)
        return model

    def batch(self, rank: int) -> tuple[Inputs, Any]:
        """The factory's batch, varied for every rank but the first."""
        inputs, targets = self._batch
        return (vary(inputs, rank) if rank else inputs), targets

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The factory's loss."""
        return self._loss(outputs, targets)

    def input_description(self) -> str:
        """Shape and dtype of each input tensor, without the batch: '16 float32, 3×8×8 int64'."""
        shapes = [
            f"{'×'.join(str(size) for size in tensor.shape[1:]) or '1'} {str(tensor.dtype).removeprefix('torch.')}"
            for tensor in tensors_in(self._batch[0])
        ]
        more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
        return ", ".join(shapes[:3]) + more

    def _factory(self, file: Path, name: str) -> Callable[[], Any]:
        module = load_file(file)
        factory = getattr(module, name, None)
        if callable(factory):
            made: Callable[[], Any] = factory
            return made
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        close = nearest(name, functions)
        what = "is not a function" if factory is not None else "does not exist"
        raise WorkloadError(
            f"{self.spec.title}: {name!r} {what} in {file.name}", hint=f"did you mean {close!r}?" if close else None
        )

    def _guarded(self, file: Path | None, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except WorkloadError:
            raise
        except (Exception, SystemExit) as error:
            raise _raised(self.spec.title, error, file, name) from error

    def _checked(self, made: Any) -> tuple[nn.Module, tuple[Inputs, Any], Callable[[Any, Any], Tensor]]:
        def wrong(what: str) -> WorkloadError:
            return WorkloadError(f"{self.spec.title} {what}", hint=_WANTED)

        if not isinstance(made, tuple | list) or len(made) != 3:
            raise wrong(f"returned {_kind(made)} and not (model, batch, loss)")
        model, batch, loss = made
        if not isinstance(model, nn.Module):
            raise wrong(f"returned {_kind(model)} as its model, which is no torch.nn.Module")
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise wrong(f"returned {_kind(batch)} as its batch and not (inputs, targets)")
        inputs, targets = batch
        if not isinstance(inputs, Tensor | tuple | list | dict):
            raise wrong(f"returned {_kind(inputs)} as inputs, which is no tensor, tuple or dict")
        if isinstance(inputs, dict) and not all(isinstance(key, str) for key in inputs):
            raise wrong("returned a dict of inputs whose keys are not all argument names")
        first = next(tensors_in(inputs), None)
        if first is None:
            raise wrong("returned inputs without a tensor")
        if first.dim() == 0 or first.shape[0] == 0:
            raise wrong(f"returned a first input of shape {tuple(first.shape)}, which has no samples")
        if not callable(loss):
            raise wrong(f"returned {_kind(loss)} as its loss, which cannot be called")
        return model, (inputs, targets), loss


def load_file(file: Path) -> Any:
    """Import a Python file afresh, under a module name that clashes with nothing. Raises whatever the file raises."""
    name = f"xbench_workload_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{str(file)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
    spec.loader.exec_module(module)
    return module


def vary(inputs: Inputs, rank: int) -> Any:
    """Inputs of the same shapes and dtypes that give another gradient; see the module's docstring."""
    floating = [tensor for tensor in tensors_in(inputs) if tensor.is_floating_point() and _spread(tensor) > 0]
    if floating:
        chosen = {id(tensor) for tensor in floating}
        return _each(inputs, lambda x: x + NOISE * _spread(x) * torch.randn_like(x) if id(x) in chosen else x)
    samples = next(tensors_in(inputs)).shape[0]
    return _each(inputs, lambda x: x.roll(rank, 0) if x.dim() and x.shape[0] == samples else x)


def _spread(tensor: Tensor) -> float:
    spread = float(tensor.detach().float().std(correction=0)) if tensor.numel() else 0.0
    return spread if spread < float("inf") else 0.0  # masks hold -inf; NaN compares false too


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(item, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_each(item, change) for item in value)
    return value


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _raised(title: str, error: BaseException, file: Path | None, name: str) -> WorkloadError:
    detail = "".join(traceback.format_exception(error))
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{Path(error.filename).name}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if file is not None and frame.filename == str(file)]
        foreign = [frame for frame in frames if not frame.filename.startswith(str(Path(__file__).parent))]
        frame = (own or foreign or list(frames))[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
    return WorkloadError(f"{title} cannot be built: {where} raised {type(error).__name__}: {text}", detail=detail)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
