"""`python -m xbench.workloads.preflight`: check that workloads can be built, run and held in memory on this machine.

It runs in a separate process, so that the parent never imports torch and a crashing factory harms nothing else.
`workloads.probe` is the other side and explains the answer (`Preflight`). The question is one JSON object on stdin:

    {"workloads": [WorkloadSpec, ...], "device": "auto" | "cpu" | "cuda" | "cuda:3", "ranks_per_host": 2,
     "local_rank": null}

`ranks_per_host` is the number of processes of one job that share this machine's memory. It may be a list with a number
for each workload: they run one after another then, and not at once. `local_rank` is set where each of the processes
runs a preflight; only that rank's GPU is then used. With "auto", a GPU that exists and cannot be used is an error,
unless CUDA_VISIBLE_DEVICES hides all GPUs. The answer's "error" has the keys type, message, hint, detail and lines.

All output of a factory goes to stderr. Built-in workloads are built on the meta device, which takes milliseconds and no
memory. A factory is really called, in a process group, and steps of its result are really run. It takes two steps,
since many errors appear only in the second (a graph that is kept, a parameter that is made in the first). Then it looks
whether another rank's batch changes the gradient.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from xbench.errors import SpecError, WorkloadError, XbenchError
from xbench.interpreter import uncollected

with uncollected(program=__name__ == "__main__"):
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn

from xbench.gpu_errors import check_index, gpu_index, hides_all, lower_what, no_gpu, shortage, unusable_gpu
from xbench.spec import DeviceType, WorkloadSpec
from xbench.text import counted, cut, one_line
from xbench.torch_compile import Recordings, compiled_inside, recorded_by, regions
from xbench.workloads.batches import shape_of, takes_time_first, tensors_in
from xbench.workloads.build import BATCH_SEED, build, seed_all
from xbench.workloads.catalog import facts_of, family_of, split_factory
from xbench.workloads.custom import with_repeated
from xbench.workloads.loading import differing
from xbench.workloads.memory import Footprint, check_fits, footprint
from xbench.workloads.parse import resolve
from xbench.workloads.probe import answer_alone
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


_USUAL_SIZES = (96, 128, 160, 192, 224, 256, 299, 384, 448, 512)
_SEARCH_PX = 64
_COMPILED_STEPS = 3
"""Steps of a compiled workload. CUDA graphs are recorded and replayed only from the third step on."""


def respond(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request; an error becomes part of it."""
    answer: dict[str, Any] = {**software(), "device": "cpu", "gpus": 0, "gpu_names": [], "workloads": [], "error": None}
    try:
        names, gpu_warning = usable_gpus()
        device = choose_device(request["device"], names, gpu_warning)
        index = gpu_index(request["device"])
        answer |= {"device": device, "gpu": index, "gpus": len(names), "gpu_names": names}
        specs = [WorkloadSpec.model_validate(spec) for spec in request["workloads"]]
        ranks: int | list[int] = request["ranks_per_host"]
        own = own_gpu(request.get("local_rank"), len(names)) if device == "cuda" and index is None else None
        if own is not None and len(names) == 1 and os.environ.get("CUDA_VISIBLE_DEVICES"):
            ranks = 1  # the engine shows each rank another GPU
        answer["workloads"] = examine(specs, device, ranks, len(names), index, own)
    except XbenchError as error:
        kind = type(error).__name__
        answer["error"] = {"type": kind, "message": str(error), "hint": error.hint, "detail": error.detail}
        answer["error"]["lines"] = error.lines
    except Exception as error:
        message = f"the workloads could not be checked: {type(error).__name__}: {message_of(error)}"
        answer["error"] = {"type": "XbenchError", "message": message, "hint": None, "detail": traceback.format_exc()}
    return answer


def software() -> dict[str, str | None]:
    """Versions of torch and of the libraries that it was built with; None for missing ones."""
    try:
        torchvision: str | None = version("torchvision")
    except PackageNotFoundError:
        torchvision = None
    nccl = None
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return {"torch": torch.__version__, "torchvision": torchvision, "nccl": nccl, "cuda": torch.version.cuda}


def usable_gpus() -> tuple[list[str], str]:
    """Names of the GPUs, and torch's warnings when it looked for them; no text if there is simply none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(number) for number in range(count)]
    return names, "" if names else " ".join(str(warning.message) for warning in caught)


def choose_device(requested: str, names: Sequence[str], gpu_warning: str = "") -> DeviceType:
    """The device: 'auto' takes GPUs if there are any. `names` are their names, `gpu_warning` the reason without any.

    Raises SpecError if cuda is requested and none is usable, or a GPU that does not exist. Raises it for 'auto' too if
    there is a GPU that cannot be used, and it is not hidden.
    """
    if requested == "auto" and not names and not hides_all(os.environ):
        unusable = unusable_gpu(gpu_warning, torch.version.cuda)
        if unusable is not None:
            raise unusable
    if requested.startswith("cuda") and not names:
        reason, hint = no_gpu(gpu_warning, torch.version.cuda)
        raise SpecError(f"--device {requested}: {reason}", hint=hint)
    check_index(requested, names)
    return "cuda" if requested != "cpu" and names else "cpu"


def own_gpu(local_rank: int | None, gpus: int) -> int | None:
    """The GPU of a rank, as `rank.session` chooses it, and make it the current one; None without a rank."""
    if local_rank is None:
        return None
    own = local_rank % gpus
    torch.cuda.set_device(own)
    return own


def examine(
    specs: Iterable[WorkloadSpec],
    device: DeviceType,
    ranks: int | Sequence[int],
    gpus: int = 0,
    index: int | None = None,
    own: int | None = None,
) -> list[dict[str, Any]]:
    """Resolve, build and try every workload, then check that all of them fit in memory together.

    A workload that is given twice is tried once, and counts twice against the memory: it is two jobs. With a number of
    `ranks` for each workload, every one of them is to fit alone, because they run one after another. `index` is the
    one GPU to use, if one was picked. `own` is the one that this process may use, if every rank has a preflight: with
    all of them on all GPUs, their contexts would fill the memory that is read. Raises SpecError and WorkloadError.
    """
    resolved = [resolve(spec, device) for spec in specs]
    if not resolved:  # only the facts of torch are asked
        return []
    only = own if index is None else index
    target = torch.device(device) if only is None else torch.device(device, only)
    by_spec = {spec: examine_one(spec, target) for spec in dict.fromkeys(resolved)}
    tried = [by_spec[spec] for spec in resolved]
    shared = [] if device == "cpu" else [index] if index is not None else list(range(gpus))
    jobs = [(result.workload, result.memory) for result in tried]
    if isinstance(ranks, int):
        check_fits(jobs, ranks, shared, own)
    else:
        for job, among in zip(jobs, ranks, strict=True):
            check_fits([job], among, shared, own)
    return [
        {
            "record": result.workload.describe().model_dump(mode="json"),
            "warnings": result.warnings,
        }
        for result in tried
    ]


class Tried(NamedTuple):
    """A workload whose steps have run, one rank's memory for it, and warnings for the user."""

    workload: Workload
    memory: Footprint
    warnings: list[str]


def examine_one(spec: WorkloadSpec, device: torch.device) -> Tried:
    """Build a resolved workload and run it forward, a factory's for whole steps. Raises WorkloadError."""
    if family_of(spec.name) == "factory":
        with group_of_one():
            return _examine_factory(spec, device)
    workload = build(spec, torch.device("meta"))
    return Tried(workload, _measure_steps(workload, on_gpu=device.type == "cuda"), [])


def _examine_factory(spec: WorkloadSpec, device: torch.device) -> Tried:
    """Build and train a factory's workload. Check that torch.compile and CUDA graphs leave its layers visible."""
    with Recordings() as recordings:
        workload = build(spec, device)
        recorder = recorded_by(workload.model)
        if recorder is None:
            steps = _COMPILED_STEPS if regions(workload.model) else STEPS
            estimate = _measure_steps(workload, steps, on_gpu=device.type == "cuda")
    if recorder is not None or recordings.seen:
        raise WorkloadError(
            f"{spec.title}: its step is recorded in a CUDA graph{f' by {recorder}' if recorder else ''}, in which no "
            "layer can be timed and no gradient sent before the end",
            hint="leave the recording out; torch.compile has mode='default' and 'max-autotune-no-cudagraphs'",
        )
    try:
        hidden = compiled_inside(workload.model, workload.forward_loss)
        alike = check_varied(workload)
    except WorkloadError:
        raise
    except Exception as error:
        raise _failed_step(workload, STEPS, error) from error
    if hidden is not None:
        raise WorkloadError(
            f"{spec.title}: its layer {hidden!r} runs inside a function compiled by torch.compile, where it cannot be "
            "seen",
            hint="compile the module that calls it: module.compile() or torch.compile(module)",
        )
    notes = []
    if not workload.model.training:
        notes.append(f"{spec.title}: the factory's model is in evaluation mode, and is measured so: .train() ends it")
    if (parts := split_factory(spec.name)) is not None and (unlike := differing(Path(parts[0]), spec)) is not None:
        notes.append(unlike)
    if not workload.batch_size:
        _, _, name = spec.title.rpartition(":")
        notes.append(
            f"{spec.title}: its tensors do not tell how many samples its batch has, so each batch counts as one "
            f"sample; {name}.batch_size = N tells it"
        )
    return Tried(workload, estimate, notes + alike)


def _measure_steps(workload: Workload, steps: int = 0, *, on_gpu: bool) -> Footprint:
    """Memory of a forward pass, after running it and `steps` backward passes. Raises WorkloadError."""
    step = 0
    try:
        parameters = dict(workload.model.named_parameters())
        estimate, loss = footprint(workload, on_gpu=on_gpu)
        _check_loss(workload, loss)
        trained: dict[int, Tensor] = {}
        for step in range(steps):
            if step:
                workload.load()
                loss = workload.forward_loss()
            before, trained = trained, trained_by(loss)
            loss.backward()  # type: ignore[no-untyped-call]
            check_trained(workload, [tensor for key, tensor in trained.items() if key in before])
            check_parameters(workload.spec.title, workload.model, parameters)
        workload.model.zero_grad(set_to_none=True)
    except WorkloadError:
        raise
    except Exception as error:
        raise _failed_step(workload, step, error) from error
    return estimate


def _failed_step(workload: Workload, step: int, error: Exception) -> WorkloadError:
    """Error for a step that raised, with the user's line: that of the operation if a backward pass raised."""
    spec, detail = workload.spec, traceback.format_exc()
    short = shortage(type(error).__name__, str(error), " on its own batch")
    if short is not None:
        return WorkloadError(f"{spec.title} {short}", hint=lower_what(spec), detail=detail)
    if spec.image_size is not None:
        return _refused_image(spec, error, detail)
    location = place_of(error)
    if location is None and family_of(spec.name) == "factory":
        location = place_in_forward(spec, next(tensors_in(workload.inputs)).device, step + 1)
    if FREED_GRAPH in str(error) and step > 0:
        return WorkloadError(
            f"{spec.title}: its second step goes back through the graph of the first"
            f"{f', at {location}' if location else ''}",
            hint="detach() what is kept from one step to the next: a hidden state, or inputs that a model computed",
            detail=detail,
        )
    return WorkloadError(
        f"{spec.title} cannot run a{('', ' second', ' third')[step]} step on its own batch ({_shapes(workload)}): "
        f"{f'{location} raised ' if location else ''}{type(error).__name__}: {message_of(error)}",
        hint=_hint_of_outputs(workload) if isinstance(error, TypeError) else None,
        detail=detail,
    )


def _hint_of_outputs(workload: Workload) -> str | None:
    """Remedy for a loss of tensors that gets an object with tensors, as models of Hugging Face return."""
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
    valid_px = nearest_image_size(spec)
    batch = f" in batches of {spec.batch_size}" if spec.batch_size == 1 else ""
    explanation = f"; the smallest above it that works is {valid_px} px" if valid_px else f": {message_of(error)}"
    return WorkloadError(
        f"{spec.name} cannot take images of {spec.image_size} px{batch}{explanation}",
        hint=f"try --image-size {valid_px}" if valid_px else None,
        detail=detail,
    )


def nearest_image_size(spec: WorkloadSpec) -> int | None:
    """The smallest image size above the spec's that passes a forward pass, or None after a short search."""
    requested_px = spec.image_size or 1
    facts = facts_of(spec.name)
    step = facts.multiple
    start = max(facts.minimum, (requested_px // step + 1) * step)
    usual = [size for size in (*_USUAL_SIZES, facts.native) if size > requested_px]
    sizes: set[int] = {*range(start, start + _SEARCH_PX * step, step), *usual}
    for size in sorted(sizes):
        try:
            build(spec.model_copy(update={"image_size": size}), torch.device("meta")).forward_loss()
        except Exception:
            continue
        return size
    return None


def _shapes(workload: Workload) -> str:
    shapes = [
        "×".join(str(size) for size in shape_of(tensor)) or "one number" for tensor in tensors_in(workload.inputs)
    ]
    return "inputs " + ", ".join(shapes[:3]) + (", …" if len(shapes) > 3 else "")


if __name__ == "__main__":
    answer_alone(lambda: respond(json.load(sys.stdin)))
