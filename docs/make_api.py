"""Write the reference of the Python API: `python docs/make_api.py` makes docs/api.md.

Signatures, docstrings and fields are those of the public names; a test holds the page to them. Records are shown with
everything that they are made of.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

import xbench
from xbench import errors, records
from xbench.schedules.attach import DEFAULTS, AttachSettings
from xbench.schedules.base import Handle

BAR = "\\|"
PAGE = Path(__file__).parent / "api.md"
FUNCTIONS = ("load_result", "attach", "tune_host")
RECORDS = ("Comparison", "Profile", "Plan")
HANDLE = ("synchronize", "finish", "no_sync", "detach")
HEAD = """\
# API reference

<!-- Made by docs/make_api.py from signatures and docstrings. -->

Everything that `import xbench` offers; [From Python](from-python.md) has examples. Importing it imports neither torch
nor pandas. Times are seconds, sizes bytes and rates bits a second: names end in their unit (`step_s`, `grad_bytes`,
`rate_bps`). Intervals are 95 % confidence intervals of the statistic beside them. A path is a string or an
`os.PathLike`.
"""
RECORDS_HEAD = """\
## Records

`load_result` returns them: immutable pydantic models, so `model_dump()` and `model_dump_json()` work. Every kind of
record has `frame`, and shows its answer and a table in a notebook. The other kinds are those of
[the schema](schema.md).
"""


def main() -> None:
    """Write the page again."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_functions(), RECORDS_HEAD, *_records(), *_errors()]) + "\n"


def _functions() -> Iterator[str]:
    yield "## Functions\n"
    for name in FUNCTIONS:
        yield _function("###", f"xbench.{name}", getattr(xbench, name))
    yield f"### The handle of attach\n\n{_told(Handle)}\n"
    yield "`handle.model` is the module to call in forward: the model itself, or DDP's wrapper of it.\n"
    for name in HANDLE:
        yield _function("####", f"handle.{name}", getattr(Handle, name))


def _records() -> Iterator[str]:
    yield _function("###", "record.frame", records.RecordBase.frame)
    for name in RECORDS:
        yield f"### {name}\n\n{_model(getattr(xbench, name))}"
    yield "### What records are made of\n"
    for part in sorted(_parts(), key=lambda part: part.__name__):
        yield f"#### {part.__name__}\n\n{_model(part)}"


def _errors() -> Iterator[str]:
    yield f"## XbenchError\n\n{_told(xbench.XbenchError)}\n"
    tree = next(block for block in str(errors.__doc__).split("\n\n") if block.startswith("    "))
    yield f"```text\n{inspect.cleandoc(tree)}\n```\n"
    yield "The others are in `xbench.errors`; `except xbench.XbenchError` catches them all."


def _function(heading: str, name: str, function: Callable[..., Any]) -> str:
    """Name, signature (a parameter a line where it is long) and docstring."""
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    given = [told for one in parameters for told in _parameter(one)]
    keywords = [at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY]
    if keywords:
        given.insert(keywords[0], "*")
    line = f"{name}({', '.join(given)})"
    if len(line) > 90:
        line = f"{name}(\n    " + ",\n    ".join(given) + ",\n)"
    shown = f"{heading} {name.rpartition('.')[2]}\n\n```text\n{line} -> {signature.return_annotation}\n```"
    return f"{shown}\n\n{_told(function)}\n"


def _parameter(one: inspect.Parameter) -> list[str]:
    """['timeout: timedelta | None = None'], or each setting. Annotations are texts, as the source has them."""
    if one.kind is one.VAR_KEYWORD:
        kinds = AttachSettings.__annotations__
        return [f"{name}: {kinds[name].__forward_arg__} = {value!r}" for name, value in DEFAULTS.items()]
    default = "" if one.default is one.empty else f" = {one.default!r}"
    return [f"{one.name}: {one.annotation}{default}"]


def _told(of: Any) -> str:
    return inspect.cleandoc(str(of.__doc__))


def _model(model: type[BaseModel]) -> str:
    rows = [
        f"| `{name}` | {_type(field.annotation)} | {(field.description or '').replace('|', BAR)} |"
        for name, field in model.model_fields.items()
        if name not in ("schema_version", "kind")
    ]
    return "\n".join([_told(model), "", "| field | type | meaning |", "| --- | --- | --- |", *rows, ""])


def _parts() -> set[type[BaseModel]]:
    """Every model that the records' fields lead to, and not the records themselves."""
    found: set[type[BaseModel]] = set()
    shown = {getattr(xbench, name) for name in RECORDS}
    waiting: list[Any] = list(shown)
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and issubclass(one, BaseModel):
            if one in found:
                continue
            found.add(one)
            waiting += [field.annotation for field in one.model_fields.values()]
        else:
            waiting += [inner for inner in get_args(one) if not isinstance(inner, str)]
    return found - shown


def _type(annotation: Any) -> str:
    """A field's type for a table: a part's name links to it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value!r}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type, arguments))
    if origin is dict:
        return f"dict of {_type(arguments[0])} to {_type(arguments[1])}"
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is tuple:
        return f"({', '.join('…' if one is Ellipsis else _type(one) for one in arguments)})"
    if annotation is type(None):
        return "None"
    name = str(annotation.__name__)
    return f"[{name}](#{name.lower()})" if issubclass(annotation, BaseModel) else name


if __name__ == "__main__":
    main()
