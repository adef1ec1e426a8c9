"""`python -m xbench.workloads.preflight`: can these workloads be built, run and held in memory here?

It runs in a process of its own, so that the parent never imports torch and a factory that crashes takes nothing with
it. `workloads.probe` is the other side. One JSON object comes in on stdin:

    {"workloads": [WorkloadSpec, ...], "device": "auto" | "cpu" | "cuda" | "cuda:3", "ranks_per_host": 2}

`ranks_per_host` is the number of processes of one job that share this machine's memory. One object goes out on stdout:

    {"device": "cpu", "gpu": null, "gpus": 0, "gpu_names": [], "gpu_trouble": null, "torch": "2.15.0",
     "torchvision": "0.29.2", "nccl": null, "cuda": null,
     "workloads": [{"record": WorkloadRecord, "memory_bytes_estimate": 123, "warnings": []}, ...],
     "error": null | {"type": "WorkloadError", "message": ..., "hint": ..., "detail": ...}}

`gpu` is the 3 of "cuda:3"; `gpu_trouble` says why a GPU that seems to be there cannot be used, and the CPU is taken.

Whatever a factory prints goes to stderr. Built-in workloads are built on the meta device, which takes milliseconds and
no memory; a factory is really called, in a process group as the ranks have one, and steps of what it returns are really
run: see `workloads.trial`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from torch import Tensor

from xbench.compiled import Recordings, compiled_inside, recorded_by, regions
from xbench.errors import SpecError, WorkloadError, XbenchError
from xbench.gpu_errors import check_index, gpu_index, lower_what, no_gpu, shortage, unusable_gpu
from xbench.spec import DeviceType, WorkloadSpec
from xbench.workloads.build import Workload, build, tensors_in
from xbench.workloads.catalog import family_of
from xbench.workloads.memory import Footprint, check_fits, footprint
from xbench.workloads.parse import resolve
from xbench.workloads.torchvision_models import facts_of
from xbench.workloads.trial import (
    FREED_GRAPH,
    STEPS,
    check_parameters,
    group_of_one,
    message_of,
    place_in_forward,
    place_of,
    varied,
)

_USUAL_SIZES = (96, 128, 160, 192, 224, 256, 299, 384, 448, 512)
_SEARCH_PX = 64
_COMPILED_STEPS = 3
"""Only then are CUDA graphs recorded and replayed."""


def main() -> None:
    """Answer one request, and end without waiting for threads that a factory may have left."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    answer = respond(json.loads(sys.stdin.read()))
    with os.fdopen(answer_to, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def respond(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request; an error becomes part of it."""
    answer: dict[str, Any] = {**software(), "device": "cpu", "gpus": 0, "gpu_names": [], "workloads": [], "error": None}
    try:
        names, said = usable_gpus()
        device = choose_device(request["device"], names, said)
        index = gpu_index(request["device"])
        answer |= {"device": device, "gpu": index, "gpus": len(names), "gpu_names": names}
        answer["gpu_trouble"] = unusable_gpu(said, torch.version.cuda)
        specs = [WorkloadSpec.model_validate(spec) for spec in request["workloads"]]
        answer["workloads"] = examine(specs, device, int(request["ranks_per_host"]), len(names), index)
    except XbenchError as error:
        kind = type(error).__name__
        answer["error"] = {"type": kind, "message": str(error), "hint": error.hint, "detail": error.detail}
    except Exception as error:
        message = f"the workloads could not be checked: {type(error).__name__}: {message_of(error)}"
        answer["error"] = {"type": "XbenchError", "message": message, "hint": None, "detail": traceback.format_exc()}
    return answer


def software() -> dict[str, str | None]:
    """Versions of torch and what it was built with; None for what is missing."""
    try:
        torchvision: str | None = version("torchvision")
    except PackageNotFoundError:
        torchvision = None
    nccl = None
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return {"torch": torch.__version__, "torchvision": torchvision, "nccl": nccl, "cuda": torch.version.cuda}


def usable_gpus() -> tuple[list[str], str]:
    """The GPUs' names, and what torch warned of when it looked for them; nothing where there is simply none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(number) for number in range(count)]
    return names, "" if names else " ".join(str(warning.message) for warning in caught)


def choose_device(asked: str, names: Sequence[str], said: str = "") -> DeviceType:
    """'auto' takes GPUs where there are any; `names` are theirs, `said` is why there is none.

    Raises SpecError when cuda is asked for and none is usable, or one that does not exist.
    """
    if asked.startswith("cuda") and not names:
        why, hint = no_gpu(said, torch.version.cuda)
        raise SpecError(f"--device {asked}: {why}", hint=hint)
    check_index(asked, names)
    return "cuda" if asked != "cpu" and names else "cpu"


def examine(
    specs: Iterable[WorkloadSpec], device: DeviceType, ranks: int, gpus: int = 0, index: int | None = None
) -> list[dict[str, Any]]:
    """Resolve, build and try every workload, then see whether all of them fit in memory together.

    A workload that stands twice is tried once, and counts twice against the memory: it is two jobs. `index` is the one
    GPU to use, where one was picked. Raises SpecError and WorkloadError.
    """
    resolved = [resolve(spec, device) for spec in specs]
    where = torch.device(device) if index is None else torch.device(device, index)
    once = {spec: examine_one(spec, where) for spec in dict.fromkeys(resolved)}
    tried = [once[spec] for spec in resolved]
    shared = [] if device == "cpu" else [index] if index is not None else list(range(gpus))
    check_fits([(one.workload, one.memory) for one in tried], ranks, shared)
    return [
        {
            "record": one.workload.describe().model_dump(mode="json"),
            "memory_bytes_estimate": one.memory.total_bytes,
            "warnings": one.warnings,
        }
        for one in tried
    ]


class Tried(NamedTuple):
    """A workload whose steps have run, one rank's memory for it, and what a user must know of it."""

    workload: Workload
    memory: Footprint
    warnings: list[str]


def examine_one(spec: WorkloadSpec, device: torch.device) -> Tried:
    """Build a resolved workload and run it forward, a factory's for whole steps. Raises WorkloadError."""
    if family_of(spec.name) == "factory":
        with group_of_one():
            return _examine_factory(spec, device)
    workload = build(spec, torch.device("meta"))
    return Tried(workload, _tried(workload), [])


def _examine_factory(spec: WorkloadSpec, device: torch.device) -> Tried:
    """Really build it, really train it, and see whether what torch.compile and CUDA graphs left of it can be timed."""
    with Recordings() as recordings:
        workload = build(spec, device)
        recorder = recorded_by(workload.model)
        if recorder is None:
            estimate = _tried(workload, steps=_COMPILED_STEPS if regions(workload.model) else STEPS)
    if recorder is not None or recordings.seen:
        raise WorkloadError(
            f"{spec.title}: its step is recorded in a CUDA graph{f' by {recorder}' if recorder else ''}, in which no "
            "layer can be timed and no gradient sent before the end",
            hint="leave the recording out; torch.compile has mode='default' and 'max-autotune-no-cudagraphs'",
        )
    try:
        hidden = compiled_inside(workload.model, workload.forward_loss)
        variation, of_batch = varied(workload)
    except Exception as error:
        raise _failed_step(workload, STEPS, error) from error
    if hidden is not None:
        raise WorkloadError(
            f"{spec.title}: its layer {hidden!r} runs inside a function compiled by torch.compile, where it cannot be "
            "seen",
            hint="compile the module that calls it: module.compile() or torch.compile(module)",
        )
    told = []
    if not workload.model.training:
        told.append(f"{spec.title}: the factory's model is in evaluation mode, and is measured so: .train() ends it")
    if variation != "samples":
        workload = replace(workload, spec=spec.model_copy(update={"variation": variation}))
    return Tried(workload, estimate, told + of_batch)


def _tried(workload: Workload, steps: int = 0) -> Footprint:
    """The memory of a forward pass, and whether it and so many backward passes can be run. Raises WorkloadError."""
    step = 0
    try:
        parameters = dict(workload.model.named_parameters())
        estimate, loss = footprint(workload)
        _check_loss(workload, loss)
        for step in range(steps):
            (workload.forward_loss() if step else loss).backward()  # type: ignore[no-untyped-call]
            check_parameters(workload.spec.title, workload.model, parameters)
        workload.model.zero_grad(set_to_none=True)
    except WorkloadError:
        raise
    except Exception as error:
        raise _failed_step(workload, step, error) from error
    return estimate


def _failed_step(workload: Workload, step: int, error: Exception) -> WorkloadError:
    """Error for a step that raised, with the user's line: that of the operation, where a backward pass raised."""
    spec, detail = workload.spec, traceback.format_exc()
    short = shortage(type(error).__name__, str(error), " on its own batch")
    if short is not None:
        return WorkloadError(f"{spec.title} {short}", hint=lower_what(spec), detail=detail)
    if spec.image_size is not None:
        return _refused_image(spec, error, detail)
    place = place_of(error)
    if place is None and family_of(spec.name) == "factory":
        place = place_in_forward(spec, next(tensors_in(workload.inputs)).device, step + 1)
    if FREED_GRAPH in str(error) and step > 0:
        return WorkloadError(
            f"{spec.title}: its second step goes back through the graph of the first{f', at {place}' if place else ''}",
            hint="detach() what is kept from one step to the next: a hidden state, or inputs that a model computed",
            detail=detail,
        )
    return WorkloadError(
        f"{spec.title} cannot run a{('', ' second', ' third')[step]} step on its own batch ({_shapes(workload)}): "
        f"{f'{place} raised ' if place else ''}{type(error).__name__}: {message_of(error)}",
        hint=_hint_of_outputs(workload) if isinstance(error, TypeError) else None,
        detail=detail,
    )


def _hint_of_outputs(workload: Workload) -> str | None:
    """What to do where a loss of tensors is given an object that holds them, as models of Hugging Face return."""
    try:
        with torch.no_grad():
            outputs = workload.outputs()
    except Exception:
        return None
    if isinstance(outputs, Tensor) or not isinstance(getattr(outputs, "logits", None), Tensor):
        return None
    return "the model returns an object with logits: lambda out, t: loss(out.logits, t)"


def _check_loss(workload: Workload, loss: Any) -> None:
    title = workload.spec.title
    if not isinstance(loss, Tensor):
        raise WorkloadError(f"{title}: loss(model(inputs), targets) is a {type(loss).__name__} and not a tensor")
    if loss.numel() != 1:
        raise WorkloadError(
            f"{title}: the loss has shape {tuple(loss.shape)} and must be one number", hint="average it over the batch"
        )
    if not loss.requires_grad:
        raise WorkloadError(f"{title}: the loss does not depend on any trainable parameter")


def _refused_image(spec: WorkloadSpec, error: Exception, detail: str) -> WorkloadError:
    works = nearest_image_size(spec)
    batch = f" in batches of {spec.batch_size}" if spec.batch_size == 1 else ""
    found = f"; the smallest above it that works is {works} px" if works else f": {message_of(error)}"
    return WorkloadError(
        f"{spec.name} cannot take images of {spec.image_size} px{batch}{found}",
        hint=f"try --image-size {works}" if works else None,
        detail=detail,
    )


def nearest_image_size(spec: WorkloadSpec) -> int | None:
    """The smallest image size above the spec's that passes a forward pass, or None when a short search finds none."""
    asked = spec.image_size or 1
    facts = facts_of(spec.name)
    step = facts.multiple
    start = max(facts.minimum, (asked // step + 1) * step)
    usual = [size for size in (*_USUAL_SIZES, facts.native) if size > asked]
    sizes: set[int] = {*range(start, start + _SEARCH_PX * step, step), *usual}
    for size in sorted(sizes):
        try:
            build(spec.model_copy(update={"image_size": size}), torch.device("meta")).forward_loss()
        except Exception:
            continue
        return size
    return None


def _shapes(workload: Workload) -> str:
    shapes = ["×".join(str(size) for size in tensor.shape) or "one number" for tensor in tensors_in(workload.inputs)]
    return "inputs " + ", ".join(shapes[:3]) + (", …" if len(shapes) > 3 else "")


if __name__ == "__main__":
    main()
