"""Table of record kinds, and how records are loaded, saved and migrated.

A new kind is one class in this package, and one line in `AnyRecord`.

| schema_version | meaning |
| --- | --- |
| 1 | the first: profiles and comparisons; later other kinds and optional fields |
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from xbench.errors import RecordError
from xbench.former_words import former
from xbench.record_files import MIB, RECORD, frame_kind, read_regular, write_whole
from xbench.records.cluster import ClusterComparison, LiveRun
from xbench.records.comparison import Comparison, Profile, Scaling, Tuned
from xbench.records.convergence import Convergence
from xbench.records.parts import FOREIGN
from xbench.records.regression import Baseline, Regression
from xbench.registry import Registry
from xbench.text import cut, one_line, visible

SCHEMA_VERSION = 1

AnyRecord = Profile | Comparison | Scaling | Tuned | Convergence | Baseline | Regression | ClusterComparison | LiveRun
"""Any record that `load` reads and `xbench report` shows."""

KINDS: dict[str, type[AnyRecord]] = {kind.model_fields["kind"].default: kind for kind in AnyRecord.__args__}
"""Class of each kind of record, by the value of its `kind` field."""

R = TypeVar("R")


def of_kind(record: object, kind: type[R]) -> R | None:
    """Return the record if it is of this kind, else None."""
    return record if isinstance(record, kind) else None


ADAPTER: TypeAdapter[AnyRecord] = TypeAdapter(
    Annotated[AnyRecord, Field(discriminator="kind")], config=ConfigDict(defer_build=True)
)

REBUILDERS: Registry[Callable[[Path], AnyRecord]] = Registry("kind of run", listing="xbench list runs")
"""Functions that rebuild a killed run's record from its journals, by the kind in the run's `frame.json`."""
REBUILDERS.add("measured", "xbench.runs.rebuild:measured", "profile, compare, tune")
REBUILDERS.add("convergence", "xbench.runs.rebuild:convergence", "converge")
REBUILDERS.add("live", "xbench.cluster.live.outcome:rebuilt", "cluster run")

MAX_BYTES = 256 * MIB
"""Largest file [B] that `load` reads. The largest record so far has a hundredth of this size."""

WHICH = "give a record.json, or the folder of a run under results/runs"


_GONE = {
    "baseline record": ("launches",),
    "regression record": ("injected",),
    "spec": ("collectives", "copies", "gloo_threads", "heap", "mps", "nvtx", "overlap"),
    "modes": ("processes",),
    "contention": ("stalls",),
    "runs": ("bound_exact",),
    "results": ("gap_exact",),
}
"""Fields that only older versions had, by the kind of record or the part of one that had them."""

_PARTS = {*_GONE, "emulated", "fabric", "jobs"}
"""Parts of a record that have such fields, or hold such parts."""

_RENAMED = {"fsdp-tuned": "auto:shard"}
"""Modes of a run's spec in records of older versions, whose names changed."""


def migrated(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a record without what only older versions had, and under its kind of today."""
    if data.get("kind") == "noise":
        data = data | {"kind": "baseline"}
    if data.get("kind") == "baseline" and data.get("launches"):  # floors of launches that were not in pairs
        data = data | {"floors": []}
    spec = data.get("spec")
    if isinstance(spec, dict) and (spec.get("gloo_threads"), spec.get("heap")) == ("first", "keep"):
        data = data | {"spec": {"host_tuning": True} | spec}
    modes = spec.get("modes") if isinstance(spec, dict) else None
    for mode in modes if isinstance(modes, list) else ():
        if isinstance(mode, dict) and str(mode.get("name")) in _RENAMED:
            mode |= dict.fromkeys(("name", "carrier"), _RENAMED[str(mode["name"])])
    return cast(dict[str, Any], _without(data, f"{data.get('kind')} record"))


def _without(part: Any, name: str) -> Any:
    """Return a record, or the part of one of this name, without the fields that are gone."""
    if isinstance(part, list):
        return [_without(one, name) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key not in _GONE.get(name, ())}
    return {key: _without(value, key) if key in _PARTS else value for key, value in kept.items()}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of all records (draft 2020-12), as docs/schema.json holds it."""
    return ADAPTER.json_schema()


def dump(record: AnyRecord) -> str:
    """Return the record as JSON text."""
    return record.model_dump_json(indent=1) + "\n"


def save(record: AnyRecord, path: Path) -> Path:
    """Write the record atomically: the file is whole or absent. Raises OSError."""
    return write_whole(dump(record), path)


def load(path: str | os.PathLike[str]) -> AnyRecord:
    """Read a record from a file or from the folder of a run, as the class of its kind.

    A run that was killed before it wrote its record leaves journals. The record is then rebuilt from them, with
    `complete` False. Raises RecordError for a file that is missing, truncated, foreign or of a newer schema.
    """
    path = Path(path)
    try:
        if path.is_dir():
            path = path / RECORD
        if path.name == RECORD and not path.exists() and frame_kind(path.parent) in REBUILDERS.names():
            return REBUILDERS.load(str(frame_kind(path.parent)))(path.parent)
        text = read_regular(path, MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise RecordError(f"there is no result file {_short(path)}", hint=WHICH) from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecordError(f"{_short(path)} cannot be read: {_one_line(reason)}") from None
    return loads(text, str(path))


def load_measured(path: str | os.PathLike[str]) -> Profile | Comparison:
    """Read a profile or a comparison, as `load` does. Raises RecordError for a record of another kind."""
    record = load(path)
    if isinstance(record, (Profile, Comparison)):
        return record
    raise RecordError(
        f"{_short(path)} is a {record.kind} record, which holds no measurements",
        hint="it takes what xbench profile or xbench compare wrote",
    )


def loads(text: str, name: str = "record") -> AnyRecord:
    """Parse a record's JSON text; errors use `name` for it. Raises RecordError."""
    shown = repr(_one_line(name))
    try:
        data = json.loads(text)
        if "\\ud" in text.lower():  # half of a surrogate pair is valid JSON, but cannot be written again
            json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise RecordError(f"{shown} is not whole JSON: it was cut off or is another kind of file") from None
    except MemoryError:
        raise RecordError(f"{shown} needs more memory than there is") from None
    if not isinstance(data, dict) or "schema_version" not in data or "kind" not in data:
        raise RecordError(f"{shown} is not an xbench result", hint=WHICH)
    version = data["schema_version"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        found = reprlib.repr(version)  # limits each part of a nested value, but not the whole
        raise RecordError(f"{shown} has no valid schema_version: {found[:100]}{'…' if len(found) > 100 else ''}")
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{shown} has schema version {reprlib.repr(version)}, and this xbench reads up to {SCHEMA_VERSION}",
            hint="install a newer xbench",
        )
    if instead := former("record", str(data["kind"])):
        raise RecordError(f"{shown} is a record of a kind that is gone: {instead}")
    try:
        return ADAPTER.validate_python(migrated(data), context=FOREIGN)
    except (ValidationError, RecursionError) as error:
        raise RecordError(f"{shown} is not a valid xbench result: {_explain(error)}") from None


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{_one_line(where) or 'record'}: {_one_line(first['msg'])}"
    return "nested too deeply"


def _one_line(text: str) -> str:
    """Return foreign text for an error message: one harmless line of at most 160 characters."""
    return cut(visible(one_line(text)), 160)


def _short(path: str | os.PathLike[str]) -> str:
    return repr(_one_line(str(path)))
