"""A user's TOML file, table by table: what is wrong with it is one sentence with the place, the key and the nearest.

pydantic finds what is wrong with a table; here it is said as the rest of xbench says such things.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from xbench.errors import SpecError, nearest

Model = TypeVar("Model", bound=BaseModel)
Special = Callable[[ErrorDetails, str], SpecError | None]
"""An error, and the place: what else is to be said of it, or None for the usual sentence."""


def read_toml(path: Path, missing: SpecError) -> dict[str, Any]:
    """The whole file. Raises `missing` where there is none, and SpecError for one that cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise missing from None
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise SpecError(f"{str(path)!r} is not TOML: {' '.join(str(error).split())}") from None


def known_keys(table: dict[str, Any], known: Iterable[str], where: str, place: str, *, kind: str = "key") -> None:
    """Raise SpecError for the first key that is none, with the nearest that is one."""
    known = list(known)
    for key in table:
        if key not in known:
            close = nearest(key, known)
            hint = f"did you mean {close!r}?" if close else f"it takes {', '.join(known)}"
            raise SpecError(f"{where}: unknown {kind} {key!r} in {place}", hint=hint)


def validated(
    model: type[Model], table: dict[str, Any], where: str, place: str, special: Special = lambda error, at: None
) -> Model:
    """The table as `model`. Raises SpecError for the first thing that is wrong with it."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
    at = f"{where}: {place}"
    raise special(first, at) or _said(first, at)


def _said(error: ErrorDetails, at: str) -> SpecError:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return SpecError(f"{at} has no {key!r}", hint=f"add {key} = …")
    value = error["input"]
    text = f'"{value}"' if isinstance(value, str) else str(value)
    told = error["msg"].removeprefix("Input ").replace("should", "has to", 1)
    return SpecError(f"{at}: {key} = {text if len(text) <= 60 else text[:59] + '…'}: it {told}")
