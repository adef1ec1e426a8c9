"""Sources of jobs: public traces, a user's CSV, or a seeded generator.

A trace is named as `KIND:PATH,option=value`, as `PATH.csv`, or as `generated:option=value`:

| kind | options | module |
| --- | --- | --- |
| `itp:PATH` | cluster=03 | `itp` |
| `philly:PATH` | cluster=6214e9 | `philly` |
| `pollux:FOLDER` | workload=1 | `pollux` |
| `alibaba:PATH` | status=Terminated | `alibaba` |
| `plain:PATH`, `PATH` | | `plain` |
| `generated:` | jobs, load, gpus, arrivals, burst, sizes, mean_s, seed | `generated` |

All kinds that read files also take rows=skip (see `trace`), and all take first=N: only the first N jobs. A path with a
comma or a colon cannot be named here. `fetch` downloads the public traces.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

from xbench.cluster.traces.trace import BadRow, RowsPolicy, Trace
from xbench.errors import SpecError, unknown
from xbench.registry import Registry
from xbench.spec import known_options, parse_int, parse_options

__all__ = ["TRACES", "BadRow", "RowsPolicy", "Trace", "load_trace"]

ROWS = ("refuse", "skip")
MOST = 10**9
MAX_JOBS = 2_000_000
"""Largest number of generated jobs: twice the number in the largest public trace."""

Loader = Callable[[str, dict[str, str]], Trace]

TRACES: Registry[Loader] = Registry("trace", listing="xbench cluster traces", group="xbench.traces")
"""Loaders by kind. Each takes the whole text and its options, with `path` unless `pathless`."""

_PACKAGE = "xbench.cluster.traces:"
TRACES.add("itp", _PACKAGE + "_itp", "ten Microsoft clusters, 2021 (tar.gz or one CSV)", options=("cluster",))
TRACES.add("philly", _PACKAGE + "_philly", "Microsoft Philly, 2017 (CSV)", options=("cluster",))
TRACES.add("pollux", _PACKAGE + "_pollux", "Pollux's workloads with measured speeds (folder)", options=("workload",))
TRACES.add("alibaba", _PACKAGE + "_alibaba", "Alibaba PAI tasks, 2020 (tar.gz or CSV)", options=("status",))
TRACES.add("plain", _PACKAGE + "_plain", "a CSV of your own", options=())
TRACES.add(
    "generated",
    _PACKAGE + "_generated",
    "generated jobs, reproducible by seed",
    options=("jobs", "load", "gpus", "arrivals", "burst", "sizes", "mean_s", "seed"),
    pathless=True,
)


def load_trace(text: str) -> Trace:
    """The trace that `text` names (see the module).

    Raises SpecError for an unknown kind or option (naming the nearest), an invalid value, a file that cannot be read,
    and rows that make no job unless rows=skip.
    """
    name, options = _parse(text)
    entry = TRACES.entry(name)
    pathless = bool(entry.facts.get("pathless"))
    allowed = (*entry.facts.get("options", ()), *(() if pathless else ("rows",)), "first")
    known_options(text, {key: value for key, value in options.items() if key != "path"}, allowed)
    if not pathless and "path" not in options:
        raise SpecError(f"{text!r} names no file", hint=f"write {name}:PATH")
    if options.get("rows", "refuse") not in ROWS:
        raise unknown("way to treat rows", options["rows"], ROWS)
    first = options.pop("first", None)
    count = None if first is None else parse_int(text, "first", first, 1, MOST)
    trace = TRACES.load(name)(text, options)
    return trace if count is None else trace.first(count)


def _parse(text: str) -> tuple[str, dict[str, str]]:
    """The kind, and its options with the path as `path`."""
    head, colon, rest = text.partition(":")
    kind = head.strip()
    if colon and kind not in TRACES and re.fullmatch(r"\w+", kind):
        raise unknown("trace", kind, TRACES.names(), listing=TRACES.listing)
    if kind in TRACES and (colon or not Path(text).exists()):
        if TRACES.entry(kind).facts.get("pathless"):
            return parse_options(text)
    else:
        kind, rest = "plain", text
    path, comma, options = rest.partition(",")
    if comma and not options.strip():
        raise SpecError(f"{text!r} ends with ',' and has no options", hint=f"write {kind}:PATH,rows=skip")
    if "=" in path and not Path(path).exists():
        raise SpecError(f"{text!r} has an option where its file should be", hint=f"write {kind}:PATH,{path}")
    parsed = parse_options(f"{kind}:{options}")[1] if comma else {}
    if "path" in parsed:
        raise SpecError(f"{text!r}: unknown option 'path'", hint=f"write {kind}:PATH")
    return kind, parsed | ({"path": path.strip()} if path.strip() else {})


def _rows(options: dict[str, str]) -> RowsPolicy:
    return cast(RowsPolicy, options.get("rows", "refuse"))


def _itp(text: str, options: dict[str, str]) -> Trace:
    from xbench.cluster.traces.itp import load_itp

    return load_itp(Path(options["path"]), options.get("cluster"), _rows(options))


def _philly(text: str, options: dict[str, str]) -> Trace:
    from xbench.cluster.traces.philly import load_philly

    return load_philly(Path(options["path"]), options.get("cluster"), _rows(options))


def _pollux(text: str, options: dict[str, str]) -> Trace:
    from xbench.cluster.traces.pollux import load_pollux

    workload = parse_int(text, "workload", options.get("workload", "1"), 1, MOST)
    return load_pollux(Path(options["path"]), workload, _rows(options))


def _alibaba(text: str, options: dict[str, str]) -> Trace:
    from xbench.cluster.traces.alibaba import load_alibaba

    return load_alibaba(Path(options["path"]), options.get("status", "Terminated"), _rows(options))


def _plain(text: str, options: dict[str, str]) -> Trace:
    from xbench.cluster.traces.plain import load_plain

    return load_plain(Path(options["path"]), _rows(options))


def _generated(text: str, options: dict[str, str]) -> Trace:
    from xbench.cluster.traces.generated import generate

    return generate(
        jobs=parse_int(text, "jobs", options.get("jobs", "1000"), 1, MAX_JOBS),
        load=_number(text, "load", options.get("load", "0.8")),
        gpus=parse_int(text, "gpus", options.get("gpus", "64"), 1, MOST),
        arrivals=cast(Literal["poisson", "bursty"], options.get("arrivals", "poisson")),
        burst=_burst(text, options),
        sizes=cast(Literal["lognormal", "pareto"], options.get("sizes", "lognormal")),
        mean_s=_number(text, "mean_s", options.get("mean_s", "3600")),
        seed=parse_int(text, "seed", options.get("seed", "0"), 0, 2**63 - 1),
    )


def _burst(text: str, options: dict[str, str]) -> float:
    if "burst" in options and options.get("arrivals") != "bursty":
        raise SpecError(f"{text!r}: burst= is for arrivals=bursty")
    return _number(text, "burst", options.get("burst", "16"))


def _number(text: str, key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise SpecError(f"{text!r}: {key}={value} is not a number") from None
