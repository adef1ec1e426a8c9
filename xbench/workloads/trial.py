"""Trial steps of a factory's workload before the ranks start, which find errors that appear only in a step.

The preflight takes two steps, since many errors appear only in the second (a graph that is kept, a parameter that is
made in the first). Then it looks whether another rank's batch changes the gradient.
"""

from __future__ import annotations

import math
import os
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xbench.errors import WorkloadError
from xbench.spec import WorkloadSpec
from xbench.text import counted, cut, one_line
from xbench.workloads.build import BATCH_SEED, build, seed_all
from xbench.workloads.custom import with_repeated
from xbench.workloads.nested import takes_time_first, tensors_in
from xbench.workloads.workload import Workload

ALIKE = 1e-3
"""Relative difference of two ranks' gradients below which a missing average would hardly show."""

STEPS = 2
FREED_GRAPH = "Trying to backward through the graph a second time"  # torch's words

_PACKAGE = str(Path(__file__).parents[1])
_FOREIGN_PREFIXES = (_PACKAGE, str(Path(torch.__file__).parent), "<frozen")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group of this process alone, over loopback. The ranks have a group, too, when they call the factory."""
    made = False
    if dist.is_available() and not dist.is_initialized():
        before = os.environ.get("GLOO_SOCKET_IFNAME")
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        with suppress(RuntimeError, ValueError):  # a machine without Gloo or loopback: continue without a group
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
            made = True
        del os.environ["GLOO_SOCKET_IFNAME"]
        if before is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = before
    try:
        yield
    finally:
        if made and dist.is_initialized():
            dist.destroy_process_group()


def check_parameters(title: str, model: nn.Module, before: dict[str, nn.Parameter]) -> None:
    """Raise WorkloadError if a step has made or replaced a parameter, which no optimizer would train."""
    for name, parameter in model.named_parameters():
        if parameter is not before.get(name):
            how = "replaces" if name in before else "makes"
            raise WorkloadError(
                f"{title}: a forward pass {how} the model's parameter {name!r}, so the optimizer would not train it",
                hint="run the model once in the factory before returning it",
            )


def trained_by(loss: Tensor) -> dict[int, Tensor]:
    """Tensors that a backward pass from `loss` gives gradients, by their `id`."""
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    ahead = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        ahead += [one for one, _ in node.next_functions]
        if node.name() == "torch::autograd::AccumulateGrad":
            found[id(node.variable)] = node.variable  # type: ignore[attr-defined]
    return found


def check_trained(workload: Workload, trained: Iterable[Tensor]) -> None:
    """Raise WorkloadError if steps train a tensor that is neither a parameter of the model nor part of the batch.

    `trained`: tensors that get a gradient in every step. Those that a forward pass makes anew are not among them.
    """
    known = {id(one) for one in (*workload.model.parameters(), *tensors_in([workload.inputs, workload.targets]))}
    foreign = [tensor for tensor in trained if id(tensor) not in known]
    if foreign:
        shapes = ", ".join("×".join(map(str, tensor.shape)) or "one number" for tensor in foreign[:3])
        raise WorkloadError(
            f"{workload.spec.title}: a step gives gradients to {counted(len(foreign), 'tensor')} outside of the model "
            f"({shapes}{', …' if len(foreign) > 3 else ''}), as parameters of a loss are, and nothing would send them "
            "or update them",
            hint="make the loss a part of the model, which takes the targets too and returns the loss; or "
            "requires_grad_(False) for what is not trained",
        )


def check_varied(workload: Workload) -> list[str]:
    """Compare the gradients of rank 0's and rank 1's batches, from the same state of the model.

    Returns a note if all ranks are to have the same batch. Raises WorkloadError if repeated samples change no gradient
    or make the model raise.
    """
    title, variation = workload.spec.title, workload.spec.variation
    if variation == "none":
        return [f"{title}: all ranks have the same batch, so a schedule that never averages would pass"]
    if variation == "rank":
        return []
    buffers = {name: buffer.clone() for name, buffer in workload.model.named_buffers()}
    gradients = _gradient(workload, buffers)
    seed_all(workload.spec.seed + BATCH_SEED + 1)
    try:
        batch = (workload.inputs, workload.targets)
        inputs, targets = with_repeated(batch, workload.batch_size, time_first=takes_time_first(workload.model))
        varied_gradients = _gradient(replace(workload, inputs=inputs, targets=targets), buffers)
    except Exception as error:
        why = f"with half of its samples twice the model raises {type(error).__name__}: {message_of(error, 120)}"
    else:
        # A NaN, of a loss that is not finite, counts as a difference: it is reported elsewhere.
        if not difference(gradients, varied_gradients) < ALIKE:
            return []
        why = "half of its samples, each twice, have the gradient of all"
    _, _, name = title.rpartition(":")
    raise WorkloadError(
        f"{title}: {why}, and with equal batches on all ranks a schedule that never averages would pass",
        hint=f"def {name}(rank) makes a batch for each rank; {name}.vary = 'none' gives all of them the same",
    )


def difference(alone: list[Tensor | None], varied: list[Tensor | None]) -> float:
    """‖b − a‖ / ‖a‖ over all parameters' gradients; 0 if both are zero, NaN if one contains a NaN."""

    def norm(tensor: Tensor | None) -> float:
        return 0.0 if tensor is None else float(torch.linalg.vector_norm(tensor.to_dense()))

    def less(b: Tensor | None, a: Tensor | None) -> Tensor | None:
        return b if a is None else -a if b is None else b - a

    difference_norm = math.hypot(*(norm(less(b, a)) for a, b in zip(alone, varied, strict=True)))
    base_norm = math.hypot(*(norm(a) for a in alone))
    return difference_norm / base_norm if base_norm else difference_norm


def _gradient(workload: Workload, buffers: dict[str, Tensor]) -> list[Tensor | None]:
    """One step's gradient, from these buffers and the workload's seed."""
    with torch.no_grad():
        for name, buffer in workload.model.named_buffers():
            saved = buffers.get(name)
            if saved is not None and saved.shape == buffer.shape:
                buffer.copy_(saved)
    seed_all(workload.spec.seed)
    workload.model.zero_grad(set_to_none=True)
    workload.forward_loss().backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in workload.trainable]
    workload.model.zero_grad(set_to_none=True)
    return gradients


def place_of(error: BaseException) -> str | None:
    """'train.py:12' for the innermost line that belongs neither to torch nor to xbench."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    return _innermost(frames)


def place_in_forward(spec: WorkloadSpec, device: torch.device, steps: int) -> str | None:
    """The user's line with the operation that failed in a backward pass; None if unknown.

    A backward pass runs without the user's frames. So the factory is called again and its steps are repeated under
    torch's anomaly mode, which records where each operation was called.
    """
    with (
        warnings.catch_warnings(record=True) as caught,
        torch.autograd.detect_anomaly(check_nan=False),
        suppress(Exception),
    ):
        warnings.simplefilter("always")
        workload = build(spec, device)
        for _ in range(steps):
            workload.forward_loss().backward()  # type: ignore[no-untyped-call]
    for warning in caught:
        if "Traceback of forward call" in str(warning.message):
            frames = [(file, int(line)) for file, line in _FRAME.findall(str(warning.message))]
            first = next((i for i, (file, _) in enumerate(frames) if file.startswith(_PACKAGE)), 0)
            return _innermost(frames[first:])
    return None


def _innermost(frames: list[tuple[str, Any]]) -> str | None:
    user_frames = [(file, line) for file, line in frames if not file.startswith(_FOREIGN_PREFIXES)]
    return f"{Path(user_frames[-1][0]).name}:{user_frames[-1][1]}" if user_frames else None


def message_of(error: BaseException, most: int = 300) -> str:
    """An error's text on one line, at most `most` characters."""
    return cut(one_line(str(error)) or "no message", most)
