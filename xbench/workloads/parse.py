"""Parser of a workload's text: a `WorkloadSpec`, and the same with every default filled in.

Nothing here imports torch, except that timm is imported for the default sizes of its models.

A workload is written as a name (`resnet50`), as `synthetic:layers=200,bytes=64k`, or as `path/to/file.py:factory`. A
name takes its options from the command line. Its own options take precedence: `resnet50:batch-size=4,image-size=96`
(two workloads of one comparison may need different ones).
"""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import click
from pydantic import ValidationError

from xbench.errors import SpecError, WorkloadError, nearest
from xbench.option_fields import StepOptions, option_of
from xbench.records import WorkloadRecord
from xbench.registry import imported
from xbench.spec import MAX_CLIP, DeviceType, WorkloadSpec, known_options, parse_int, parse_options
from xbench.text import cut
from xbench.units import Bytes, format_bytes, parse_bytes
from xbench.workloads import catalog
from xbench.workloads.loading import FACTORY, factories_in, factory_hint

_TYPES = {field.name: option_of(StepOptions, field.name).click["type"] for field in fields(StepOptions)}
_OPTIONS = tuple(_TYPES)
_SIZES: dict[catalog.Family, tuple[str, ...]] = {
    "vision": ("batch_size", "image_size"),
    "text": ("batch_size", "seq_len"),
    "speech": ("batch_size", "seq_len"),
    "synthetic": ("batch_size",),
    "factory": (),
}
_MAX_LAYER_BYTES = 2**30


class SyntheticShape(NamedTuple):
    """Options of `synthetic:`, explained in `workloads.synthetic`."""

    layers: int = 200
    layer_bytes: Bytes = 64 * 1024
    width: int = 64
    compute: int = 0


def parse_workload(text: str, **options: Any) -> WorkloadSpec:
    """A WorkloadSpec from a workload's text and the options `batch_size, image_size, seq_len, dtype, optimizer,
    optimizer_impl, seed, accumulate, amp, checkpoint, clip`.

    An option that is None gets the device's default later. Raises SpecError for an unknown name (with the nearest), an
    unknown or malformed option, a size out of range or not applicable, and a factory whose file does not exist. The
    file is not run.
    """
    text = text.strip()
    if not text.isprintable():
        raise SpecError(f"the workload name {text!r} has characters that cannot be printed")
    known_options("workload", dict(options), _OPTIONS)
    name = text
    inline_options: dict[str, str] = {}
    if ".py" in text:
        _check_factory(text)
    else:
        _check_not_a_module(text)
        plain, inline = parse_options(text)
        if catalog.family_of(plain) == "synthetic":
            parse_synthetic(text)
        else:
            name, inline_options = plain, {key.replace("-", "_"): value for key, value in inline.items()}
            known_options(plain, inline_options, _OPTIONS)
    values = {key: value for key, value in {**options, **inline_options}.items() if value is not None}
    checked = {
        key: _option(name, key if key in inline_options else f"--{key}", key, value) for key, value in values.items()
    }
    try:
        spec = WorkloadSpec.model_validate({"name": name, **checked})
    except ValidationError as error:
        raise SpecError(f"workload {text!r}: {error.errors()[0]['msg']}") from None
    check_sizes(spec)
    return spec


def parse_synthetic(text: str) -> SyntheticShape:
    """The shape in 'synthetic:layers=200,bytes=64k,width=64,compute=0'. Every option is optional.

    Raises SpecError for unknown keys, values out of range, and bytes that are not a multiple of four (fp32 gradients).
    """
    _, options = parse_options(text)
    known_options("synthetic", options, ("layers", "bytes", "width", "compute"))
    shape = SyntheticShape()
    if "bytes" in options:
        size = parse_bytes(options["bytes"])
        if not 4 <= size <= _MAX_LAYER_BYTES:
            raise SpecError(
                f"{text!r}: bytes={options['bytes']} is out of range 4 B to {format_bytes(_MAX_LAYER_BYTES)}",
                hint=f"try bytes={4 if size < 4 else _MAX_LAYER_BYTES}",
            )
        if size % 4:
            raise SpecError(
                f"{text!r}: bytes={options['bytes']} is not a multiple of 4, the bytes of one fp32 gradient element",
                hint=f"try bytes={size // 4 * 4}",
            )
        shape = shape._replace(layer_bytes=size)
    for key, low, high in (("layers", 1, 10_000), ("width", 1, 65_536), ("compute", 0, 100_000)):
        if key in options:
            shape = shape._replace(**{key: parse_int(text, key, options[key], low, high)})
    return shape


def check_sizes(spec: WorkloadSpec) -> None:
    """Refuse sizes and types that the workload does not take, as far as known without torch. Raises SpecError."""
    if spec.amp is not None and spec.dtype != "fp32":
        raise SpecError(
            f"{spec.title!r}: --amp {spec.amp} is for weights in fp32, and --dtype {spec.dtype} makes all of them "
            f"{spec.dtype}",
            hint="leave one of them out",
        )
    family = catalog.family_of(spec.name)
    takes = _SIZES[family]
    for option in ("batch_size", "image_size", "seq_len"):
        if getattr(spec, option) is not None and option not in takes:
            flags = " and ".join("--" + size.replace("_", "-") for size in takes)
            raise SpecError(
                f"{spec.title!r} takes no --{option.replace('_', '-')}",
                hint=f"it takes {flags}" if flags else "its factory chooses the batch",
            )
    if family == "vision":
        _check_image_size(spec)
    elif family == "text" and spec.seq_len is not None:
        positions = catalog.sequence_facts_of(spec.name).positions
        if positions is not None and spec.seq_len > positions:
            raise SpecError(
                f"{spec.name} has {positions} positions, and --seq-len {spec.seq_len} is longer",
                hint=f"try --seq-len {positions}",
            )


def check_plain_step(spec: WorkloadSpec, who: str) -> None:
    """Raise SpecError for options of the training step, if `who` runs steps of its own."""
    given = {"--accumulate": spec.accumulate > 1, "--amp": spec.amp is not None}
    given |= {"--checkpoint": spec.checkpoint is not None, "--clip": spec.clip is not None}
    if any(given.values()):
        flags = " and ".join(flag for flag, is_given in given.items() if is_given)
        raise SpecError(f"{who} runs training steps of its own, without {flags}", hint=f"leave {flags} out")


def check_one_batch(workload: WorkloadRecord, who: str) -> None:
    """Raise WorkloadError for a factory with a loader, if `who` needs one batch with all samples."""
    if workload.loader is not None:
        raise WorkloadError(
            f"{workload.title}: its batches come from a {workload.loader}, and {who} takes the samples of one batch",
            hint="return (inputs, targets) in place of the loader",
        )


def resolve(spec: WorkloadSpec, device: DeviceType) -> WorkloadSpec:
    """The same workload with every None replaced by the default for the device.

    On a CPU the sizes make a step of about a second on one core; on a GPU they are usual training sizes. A factory's
    sizes stay None, because it chooses its batch. Raises SpecError as `check_sizes` does.
    """
    check_sizes(spec)
    sizes: dict[str, int]
    match catalog.family_of(spec.name):
        case "vision":
            batch, image = _image_sizes(spec, device)
            sizes = {"batch_size": batch, "image_size": image}
        case "text" | "speech":
            sequences = catalog.sequence_facts_of(spec.name)
            batch, length = sequences.cpu if device == "cpu" else sequences.cuda
            sizes = {"batch_size": batch, "seq_len": length}
        case "synthetic":
            sizes = {"batch_size": catalog.SYNTHETIC_BATCH}
        case "factory":
            sizes = {}
    return spec.model_copy(update={key: value for key, value in sizes.items() if getattr(spec, key) is None})


def _image_sizes(spec: WorkloadSpec, device: DeviceType) -> tuple[int, int]:
    """Default (batch size, image size) of an image model. Imports timm, and so torch, for a model of timm."""
    if spec.name.startswith("timm/") and None in (spec.batch_size, spec.image_size):
        timm_sizes: tuple[int, int] = imported("xbench.workloads.vision:default_sizes")(spec.name, device)
        return timm_sizes
    facts = catalog.facts_of(spec.name)
    return facts.cpu if device == "cpu" else facts.cuda


def _option(name: str, written: str, key: str, value: Any) -> Any:
    """The value of option `key`, which the user has `written` as '--clip', or as 'clip' within the workload."""
    flag = written.replace("_", "-")
    kind = _TYPES[key]
    if isinstance(kind, click.IntRange):
        return parse_int(name, flag, str(value), int(kind.min or 0), int(kind.max or 0))
    if not isinstance(kind, click.Choice):
        return _norm(name, flag, f"{value:g}" if isinstance(value, float) else str(value))
    if value not in kind.choices:
        close = nearest(str(value), kind.choices)
        raise SpecError(f"{name!r}: {flag}={value} is not {' or '.join(kind.choices)}",
                        hint=f"did you mean {close!r}?" if close else None)  # fmt: skip
    return value


def _norm(name: str, flag: str, value: str) -> float:
    """Parse the largest norm of gradients. Raises SpecError."""
    try:
        norm = float(value)
    except ValueError:
        norm = math.nan
    if 0 < norm <= MAX_CLIP:
        return norm
    raise SpecError(f"{name!r}: {flag}={cut(value, 100)} is not above 0 and up to {MAX_CLIP:g}", hint=f"try {flag}=1")


def _check_image_size(spec: WorkloadSpec) -> None:
    facts = catalog.facts_of(spec.name)
    size = spec.image_size
    if size is None or (size >= facts.minimum and size % facts.multiple == 0):
        return
    valid_px = max(facts.minimum, -(-size // facts.multiple) * facts.multiple)
    rule = f", only multiples of {facts.multiple}" if facts.multiple > 1 else ""
    raise SpecError(
        f"{spec.name} cannot take images of {size} px{rule}; the smallest above it that works is {valid_px} px",
        hint=f"try --image-size {valid_px}",
    )


def _check_not_a_module(text: str) -> None:
    """Raise SpecError for 'models:make', which names no workload but may mean a function of models.py."""
    name, _, function = text.partition(":")
    if function.isidentifier() and name not in catalog.WORKLOADS and name not in catalog.installed_models():
        raise SpecError(f"{text!r} names no workload and no file", hint=f"write {name}.py:{function}")


def _check_factory(text: str) -> None:
    parts = catalog.split_factory(text)
    if parts is None:
        file = f"{text.partition('.py')[0]}.py"
        made = factories_in(Path(file))
        raise SpecError(
            f"{text!r} does not name a factory: a file and, after a colon, a function without arguments",
            hint=f"write {file}:{made[0]}" if made else factory_hint(file),
            lines=() if made else FACTORY,
        )
    file, _ = parts
    folder, close = Path(file).parent, None
    try:
        if Path(file).is_file():
            return
        close = nearest(Path(file).name, [other.name for other in folder.glob("*.py")])
    except PermissionError:
        raise SpecError(f"{file!r} cannot be read: permission denied") from None
    except (OSError, ValueError):  # an impossible file name
        pass
    raise SpecError(f"there is no file {file!r}", hint=f"did you mean {str(folder / close)!r}?" if close else None)
