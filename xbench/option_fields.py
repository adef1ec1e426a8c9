"""Dataclass fields that are command-line options: flag, help, choices, and a reader of the typed text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import click

from xbench.errors import SpecError
from xbench.text import entries
from xbench.units import parse_seconds

Config = TypeVar("Config")
Parsed = TypeVar("Parsed")


class Option(NamedTuple):
    """Command-line facts of a field."""

    flags: tuple[str, ...]
    click: Mapping[str, Any]
    read: Callable[[Any], Any] | None = None


def option(
    *flags: str,
    unset: Any = dataclasses.MISSING,
    read: Callable[[Any], Any] | None = None,
    **arguments: Any,
) -> Any:
    """Return a field that has a flag.

    `arguments` are those of `click.option`. `read` converts click's value to the field's value. `unset` is the value,
    or its factory, when a config is constructed from Python; without it, click's default is used.
    """
    metadata = {"option": Option(flags, arguments, read)}
    value = arguments.get("default") if unset is dataclasses.MISSING else unset
    if callable(value):
        return dataclasses.field(default_factory=value, metadata=metadata)
    return dataclasses.field(default=value, metadata=metadata)


def whole(flag: str, low: int, high: int, **arguments: Any) -> Any:
    """Return a field for an option that is a whole number in [low, high]."""
    return option(flag, type=click.IntRange(low, high), **arguments)


def choice(flag: str, *names: str, **arguments: Any) -> Any:
    """Return a field for an option that is one of these names."""
    return option(flag, type=click.Choice(names), **arguments)


def group(options: type, **default: Any) -> Any:
    """Return a field whose value is `read()` of several options."""
    return dataclasses.field(metadata={"group": options}, **default)


def read_config(kind: type[Config], values: dict[str, Any]) -> Config:
    """Build the config from a command's parameters. Those that are no field of it stay in `values`."""
    made: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        options, own = field.metadata.get("group"), field.metadata.get("option")
        if options is not None:
            names = [one.name for one in dataclasses.fields(options) if one.name in values]
            if names:
                made[field.name] = options(**{name: values.pop(name) for name in names}).read()
        elif own is not None and field.name in values:
            value = values.pop(field.name)
            if value is not None:  # what is not given leaves the field's default
                made[field.name] = own.read(value) if own.read is not None else value
    return kind(**made)


def option_of(kind: Any, name: str) -> Option:
    """Return the option of a field. Raises LookupError if there is none."""
    found: Option = {field.name: field for field in dataclasses.fields(kind)}[name].metadata["option"]
    return found


def options_of(kind: Any, name: str) -> list[tuple[type, str]]:
    """Return the options of that name, each as its class and the name of its field.

    The name is one of three: a field's, a group's (all of its fields), or that of a field in a group.
    """
    groups = {field.name: field.metadata["group"] for field in dataclasses.fields(kind) if "group" in field.metadata}
    members = {
        group: [field.name for field in dataclasses.fields(group) if "option" in field.metadata]
        for group in groups.values()
    }
    if name in groups:
        return [(groups[name], member) for member in members[groups[name]]]
    return next(([(group, name)] for group, names in members.items() if name in names), [(kind, name)])


def parsed(flag: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    """Parse the text of an option. The parser's SpecError gets the option's name."""
    try:
        return parse(text)
    except SpecError as error:
        raise SpecError(f"{flag}: {error}", hint=error.hint) from None


def listed(flag: str, text: str) -> list[str]:
    """Split the text at commas (`text.entries`); drop repeated entries. Raises SpecError if it names nothing."""
    found = list(dict.fromkeys(entry for entry in entries(text) if entry))
    if not found:
        raise SpecError(f"{flag}: {text!r} names nothing", hint="separate names by commas")
    return found


class Finite(click.FloatRange):
    """Range of numbers. click's own accepts `nan`, which is below no limit and above none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse `nan`; otherwise convert as `click.ParamType.convert` does."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self.min:g}<=x<={self.max:g}.", param, ctx)
        return number


class Device(click.Choice[str]):
    """Choice of device: `auto`, `cpu`, `cuda`, or `cuda:3` for one GPU."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Accept `cuda:N`; otherwise convert as `click.ParamType.convert` does."""
        if isinstance(value, str) and re.fullmatch(r"cuda:[0-9]+", value):
            return value
        return str(super().convert(value, param, ctx))


def read_timeout(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """Read seconds from 90, 90s or 1.5min. Raises click.BadParameter, which names the option."""
    try:
        seconds = parse_seconds(value)
    except SpecError as error:
        raise click.BadParameter(f"{error}: {error.hint}", context, parameter) from None
    if not 1 <= seconds <= 86_400:
        raise click.BadParameter(f"{value} is not in the range 1 s to 86400 s", context, parameter)
    return seconds


def within(flag: str, low: float, high: float) -> Callable[[float], float]:
    """Return a reader that accepts a number in [low, high]. The reader raises SpecError for any other."""

    def read(value: float) -> float:
        if math.isfinite(value) and low <= value <= high:
            return value
        close = min(max(value, low), high) if math.isfinite(value) else low
        raise SpecError(f"{flag}: {value:g} is not in the range {low:g} to {high:g}", hint=f"try {flag} {close:g}")

    return read


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Sizes of a workload and its training step: options of every command, and keys of a workload's own text.

    `--amp bf16 --clip 1` and `resnet18:amp=bf16,clip=1` say the same. `config.WorkloadOptions` makes options of these
    fields, and `workloads.parse` reads the keys with their types.
    """

    batch_size: int | None = whole("--batch-size", 1, 1_000_000, help="Samples per rank and step.")
    image_size: int | None = whole("--image-size", 1, 16_384, help="Height and width of images, in pixels.")
    seq_len: int | None = whole("--seq-len", 1, 1_000_000, help="Tokens (text) or frames (speech) per sample.")
    dtype: str = choice("--dtype", "fp32", "bf16", default="fp32", help="Type of weights and gradients.")
    optimizer: str = choice("--optimizer", "sgd", "adamw", default="sgd", help="Optimizer used for the step.")
    optimizer_impl: str = choice(
        "--optimizer-impl", "default", "foreach", "fused", default="default", help="Kernels of the optimizer."
    )
    accumulate: int = whole(
        "--accumulate", 1, 1024, default=1, help="Micro-steps of a step; only the last one communicates."
    )
    amp: str | None = choice("--amp", "bf16", "fp16", help="Type of autocast; fp16 with a GradScaler.")
    checkpoint: str | None = choice("--checkpoint", "blocks", help="Modules whose activations backward computes again.")
    clip: float | None = option("--clip", type=float, metavar="NORM", help="Largest norm of a step's gradients.")
    seed: int = whole("--seed", 0, 2**31 - 1, default=0, help="Random seed for weights and data.")
