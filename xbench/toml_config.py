"""Reader of a user's TOML file. Each error is one sentence with the place, the key and the nearest known key.

pydantic finds the errors in a table. This module words them as the rest of xbench does.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from xbench.errors import SpecError, listed, nearest
from xbench.former_words import former
from xbench.record_files import MIB, read_regular
from xbench.text import cut, one_line, quoted, visible

MAX_BYTES = MIB
MAX_PARTS = 16
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"""(?:^|[\[{{,])[ \t]*+{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_PARTS},}}""", re.MULTILINE)
"""Key of too many parts. tomllib's time and memory grow with the square of the number of parts."""

Model = TypeVar("Model", bound=BaseModel)
Special = Callable[[ErrorDetails, str], SpecError | None]
"""Function from an error and its place to a special message, or None for the usual one."""


def read_toml(path: Path, missing: SpecError) -> dict[str, Any]:
    """Read the whole file. Raises `missing` if it does not exist, and SpecError if it cannot be read or parsed."""
    where = repr(str(path))
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
        if _DEEP_KEY.search(text):
            raise SpecError(f"{where} has a key of more than {MAX_PARTS} parts, and none that is known has so many")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise missing from None
    except OSError as error:
        raise SpecError(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not TOML, not UTF-8, or a NUL in the path
        raise SpecError(f"{where} is not TOML: {cut(one_line(str(error)), 200)}") from None
    except (RecursionError, MemoryError):
        raise SpecError(f"{where} is nested too deeply") from None


def known_keys(table: dict[str, Any], known: Iterable[str], where: str, place: str, *, kind: str = "key") -> None:
    """Raise SpecError for the first unknown key, with the nearest known one."""
    known = list(known)
    for key in table:
        if key not in known:
            if instead := former("option", "--" + key.replace("_", "-")):
                raise SpecError(f"{where}: {key!r} in {place} is gone: {instead}")
            close = nearest(key, known)
            hint = f"did you mean {close!r}?" if close else f"it takes {listed(known)}"
            raise SpecError(f"{where}: unknown {kind} {quoted(key)} in {place}", hint=hint)


def validated(
    model: type[Model], table: dict[str, Any], where: str, place: str, special: Special = lambda error, at: None
) -> Model:
    """Return the table as `model`. Raises SpecError for the first error in it."""
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
    text = f'"{visible(value)}"' if isinstance(value, str) else visible(str(value)[:200])
    told = error["msg"].removeprefix("Input ").replace("should", "has to", 1)
    return SpecError(f"{at}: {key} = {cut(text, 60)}: it {told}")
