"""Sources of jobs: public traces, a user's CSV, or a seeded generator.

A trace is named as `KIND:PATH,option=value`, as `PATH.csv`, or as `generated:option=value`; `TRACES` has the kinds and
their options. Without a path, `itp`, `philly` and `pollux` are the published files: pooch fetches a file when it is
first needed, checks its SHA-256, and keeps it in the folder that XBENCH_TRACES names, else in the user's cache. A path
with a comma or a colon cannot be named here.

**Bad rows.** A row that makes no job is never dropped silently. It is kept as a `BadRow`: file, row (the header is row
1, as in a spreadsheet) and reason. Under `rows=refuse`, the default, the first bad row refuses the whole trace and
gives their number. Under `rows=skip` all are left out, counted and listed in the trace. Well-formed rows that are not
wanted (another cluster's) are not bad rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import pooch

from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.traces.reading import Table
from xbench.errors import RecordError, SpecError, XbenchError, unknown
from xbench.registry import Registry, imported
from xbench.spec import known_options, parse_int, parse_options
from xbench.text import counted

RowsPolicy = Literal["refuse", "skip"]
ROWS: tuple[RowsPolicy, ...] = ("refuse", "skip")
MOST = 10**9
MAX_JOBS = 2_000_000
"""Largest number of generated jobs."""

T = TypeVar("T")


class BadRow(NamedTuple):
    """A row that makes no job."""

    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: row {self.row}: {self.reason}"


@dataclass(frozen=True)
class Trace:
    """Jobs by arrival. Raises SpecError for no jobs.

    `skipped` are the rows that `rows=skip` left out; `notes` describe other omissions and assumptions.
    """

    name: str
    jobs: tuple[Job, ...]
    skipped: tuple[BadRow, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.jobs:
            raise SpecError(f"{self.name} has no jobs")

    @property
    def gpu_hours(self) -> float:
        """GPU hours of the jobs on the requested GPUs."""
        return math.fsum(job.service_s for job in self.jobs) / 3600.0

    @property
    def span_s(self) -> float:
        """Time [s] from the first arrival to the last."""
        return self.jobs[-1].arrival_s - self.jobs[0].arrival_s

    def first(self, count: int) -> Trace:
        """The first `count` jobs alone, with a note. Raises SpecError for less than one."""
        if count < 1:
            raise SpecError(f"the first {count} jobs of {self.name} do not make a trace")
        if count >= len(self.jobs):
            return self
        note = f"the first {count} of {counted(len(self.jobs), 'job')}"
        return replace(self, jobs=self.jobs[:count], notes=(*self.notes, note))


class RigidRow(NamedTuple):
    """A job of a trace of durations, whose time zero is not yet known. Times in seconds."""

    name: str
    arrival_s: float
    gpus: int
    duration_s: float


class Rows:
    """Reads the rows of one source, and refuses or skips the bad ones at its end."""

    def __init__(self, source: str, policy: RowsPolicy) -> None:
        self.source = source
        self.policy = policy
        self.bad: list[BadRow] = []

    def read(self, table: Table, parse: Callable[[int, dict[str, str]], T | None]) -> list[T]:
        """What `parse` makes of each row, from its number and its cells by column; None is left out.

        A row is bad if `parse` raises ValueError, SpecError or RecordError.
        """
        parsed = []
        for row, cells in table.rows:
            try:
                parsed.append(parse(row, table.named(cells)))
            except (ValueError, SpecError, RecordError) as problem:
                self.bad.append(BadRow(table.file, row, str(problem)))
        return [item for item in parsed if item is not None]

    def trace(self, jobs: Iterable[Job]) -> Trace:
        """The trace of these jobs, by arrival. Raises SpecError for bad rows, unless they are to be skipped."""
        if self.bad and self.policy == "refuse":
            more = f" ({len(self.bad)} bad rows in all)" if len(self.bad) > 1 else ""
            raise SpecError(f"{self.bad[0]}{more}", hint="rows=skip leaves bad rows out and lists them")
        ordered = sorted(jobs, key=lambda job: job.arrival_s)
        if not ordered:
            skipped = f"{counted(len(self.bad), 'bad row')} skipped"
            hint = skipped if self.bad else "below the header, a row describes a job"
            raise SpecError(f"{self.source} has no jobs", hint=hint)
        return Trace(self.source, tuple(ordered), tuple(self.bad))

    def rigid(self, rows: Iterable[RigidRow]) -> Trace:
        """As `trace`. Arrivals count from the first row's; speeds on other numbers of GPUs are unknown."""
        rows = list(rows)
        began_s = min((row.arrival_s for row in rows), default=0.0)
        speeds = {gpus: RigidSpeed(gpus) for gpus in {row.gpus for row in rows}}
        return self.trace(
            Job(row.name, row.arrival_s - began_s, row.gpus, row.duration_s, speeds[row.gpus]) for row in rows
        )


Loader = Callable[[str, dict[str, str]], Trace]

TRACES: Registry[Loader] = Registry("trace", listing="xbench list traces", group="xbench.traces")
"""Loaders by kind. Each takes the whole text and its options, with `path` unless `pathless`."""

_PACKAGE = "xbench.cluster.traces:"
TRACES.add("itp", _PACKAGE + "_itp", "ten Microsoft clusters, 2021 (published, or a tar.gz or CSV)",
           options=("cluster",))  # fmt: skip
TRACES.add("philly", _PACKAGE + "_philly", "Microsoft Philly, 2017 (published, or a CSV)", options=("cluster",))
TRACES.add("pollux", _PACKAGE + "_pollux", "Pollux's workloads with measured speeds (published, or a folder)",
           options=("workload",))  # fmt: skip
TRACES.add("plain", _PACKAGE + "_plain", "a CSV of your own")
TRACES.add("generated", _PACKAGE + "_generated", "generated jobs, reproducible by seed", pathless=True,
           options=("jobs", "load", "gpus", "arrivals", "burst", "sizes", "mean_s", "seed"))  # fmt: skip


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
    if not pathless and "path" not in options and name not in PUBLIC:
        raise SpecError(f"{text!r} names no file", hint=f"write {name}:PATH")
    if options.get("rows", "refuse") not in ROWS:
        raise unknown("way to treat rows", options["rows"], ROWS)
    first = options.pop("first", None)
    count = None if first is None else parse_int(text, "first", first, 1, MOST)
    if name in PUBLIC and "path" not in options:
        options["path"] = str(public_path(name))
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
    if kind in PUBLIC and "=" in path and not Path(path).exists():
        path, comma, options = "", ",", rest
    if comma and not options.strip():
        raise SpecError(f"{text!r} ends with ',' and has no options", hint=f"write {kind}:PATH,rows=skip")
    if "=" in path and not Path(path).exists():
        raise SpecError(f"{text!r} has an option where its file should be", hint=f"write {kind}:PATH,{path}")
    parsed = parse_options(f"{kind}:{options}")[1] if comma else {}
    if "path" in parsed:
        raise SpecError(f"{text!r}: unknown option 'path'", hint=f"write {kind}:PATH")
    return kind, parsed | ({"path": path.strip()} if path.strip() else {})


def _loader(target: str, **parsers: Callable[[str, str, str], Any]) -> Loader:
    """A loader that calls a function of this package with its path and its options, which default to text."""

    def load(text: str, options: dict[str, str]) -> Trace:
        values: dict[str, Any] = {key: parsers.get(key, _word)(text, key, value) for key, value in options.items()}
        path = [Path(values.pop("path"))] if "path" in values else []
        trace: Trace = imported(f"xbench.cluster.traces.{target}")(*path, **values)
        return trace

    return load


def _word(text: str, key: str, value: str) -> str:
    return value


def _number(text: str, key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise SpecError(f"{text!r}: {key}={value} is not a number") from None


def _whole(low: int, high: int) -> Callable[[str, str, str], int]:
    return lambda text, key, value: parse_int(text, key, value, low, high)


_itp = _loader("microsoft:load_itp")
_philly = _loader("microsoft:load_philly")
_pollux = _loader("pollux:load_pollux", workload=_whole(1, MOST))
_plain = _loader("plain:load_plain")
_any_generated = _loader(
    "generated:generate", jobs=_whole(1, MAX_JOBS), load=_number, gpus=_whole(1, MOST), burst=_number,
    mean_s=_number, seed=_whole(0, 2**63 - 1),
)  # fmt: skip


def _generated(text: str, options: dict[str, str]) -> Trace:
    if "burst" in options and options.get("arrivals") != "bursty":
        raise SpecError(f"{text!r}: burst= is for arrivals=bursty")
    return _any_generated(text, options)


# The addresses name commits, not branches. itp is MIT, philly CC-BY-4.0 (the source data), pollux Apache-2.0.
_ADAPTDL = "https://raw.githubusercontent.com/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/"
_ELASTICFLOW = (
    "https://raw.githubusercontent.com/microsoft/elasticflow-traces/277ed24d0e908c31a1c98145819e2e3853d8ac00/data/"
)
_FILES = {
    "itp/raw-traces.tar.gz": "67398e1a89245c50ae0881bf997e6cda0c95f9f47980af5bc56d67998965669f",
    "philly/philly.csv": "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da",
    "pollux/bert/placements.csv": "982811b611bc8447a078289939a2ccafc1f76c06e1e8ebcc4f4866a8e8fcdc0f",
    "pollux/bert/scalability.csv": "d3fac874d45f501b8126cd1a5238f9f53eec4a1ac17cc1a5133f1a17fc891943",
    "pollux/cifar10/placements.csv": "e77d1d8781e2e48c3952580bdf705f3be4f27cbbdcd0a2087eb152224a271b6b",
    "pollux/cifar10/scalability.csv": "d4bd0dd8ab0df8ce76bbd788b210637dd204937cd4a18f112577f2a812634152",
    "pollux/deepspeech2/placements.csv": "0908c53bfc20123ad60ad6c4984cfcdf53a623773f4e44e9f01d58305e5379b7",
    "pollux/deepspeech2/scalability.csv": "d49ed2ecb5f3b3f1204ef2200eb8a0f36e373830ae54833e2318085f7d237316",
    "pollux/imagenet/placements.csv": "ac3d88937f40680c367ec83c7610eda088b8d60806e15cf3a4699fa1d15cb1e8",
    "pollux/imagenet/scalability.csv": "ca4970f3461c816237daaa4f37635cf07e78ee7a78df87788543b6e7b094e681",
    "pollux/ncf/placements.csv": "012f861bd2acc57f5f7d09c7878082905ba0150660b9f5aeae9291d025527874",
    "pollux/ncf/scalability.csv": "2c773498098fbaedbbb90d21b1b765876896b7ec0a37b543bbdcbf0ef7f066a4",
    "pollux/workloads/workload-1.csv": "0bff9c3a36b52c7025484b666d788001b1478cc4d84be409ca04b28f58f9d162",
    "pollux/workloads/workload-2.csv": "83bec266667ec209a202c10975ab321e52eb4989e5ba420d18003ed03cf15c4e",
    "pollux/workloads/workload-3.csv": "d76d5d1e3f9143b5453083de5c7a4c6576e884b41e86434a624b08f2c4277dc0",
    "pollux/workloads/workload-4.csv": "22c400f59637ba0fc2c9be3b491f67e0765d1bf33d0a57d76101d770e4443f21",
    "pollux/workloads/workload-5.csv": "4761ea418f2cb618f79e1dcfc003d24de2810ec8d0af2ecf8895690d088c3930",
    "pollux/workloads/workload-6.csv": "d6517c4d57c72e4f362f9e99f285e4f7fee0348913287033f11f02f5cb88f074",
    "pollux/yolov3/placements.csv": "6ffceb8996e3fd57e47e550fdffc21eec7d7e34de1d806d8b3568734eaec0013",
    "pollux/yolov3/scalability.csv": "feb460a4afaa48073fbd3387b7aa610b414166b0e68ff66d4374a73ed4b930bc",
}
PUBLIC = {"itp": "raw-traces.tar.gz", "philly": "philly.csv", "pollux": ""}
"""The file that the loader of each kind reads, in the folder of its name; empty: it reads the whole folder."""


def public_path(kind: str) -> Path:
    """The path that the loader of a public trace takes, once its files are there.

    Raises XbenchError for a file that cannot be fetched or has another hash.
    """
    store = pooch.create(pooch.os_cache("xbench"), base_url="", registry=_FILES, env="XBENCH_TRACES")
    for file in _FILES:
        if file.startswith(f"{kind}/"):
            path = file.removeprefix(f"{kind}/")
            folder = "" if kind == "itp" or path.startswith("workloads/") else "traces/"
            store.urls[file] = f"{_ELASTICFLOW if kind == 'itp' else _ADAPTDL}{folder}{path}"
            try:
                store.fetch(file)
            except (OSError, ValueError) as error:  # ValueError: another hash
                raise XbenchError(
                    f"{store.urls[file]} cannot be fetched: {error}",
                    hint=f"bring it here by other means and put it at {store.abspath / file}",
                ) from None
    return Path(store.abspath) / kind / PUBLIC[kind]
