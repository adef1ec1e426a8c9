"""T(M) of an all-reduce from files that other tools wrote.

| file | what is read |
| --- | --- |
| nccl-tests, as printed | the rows of `all_reduce_perf`: in-place times, else out-of-place ones |
| nccl-tests, `-J FILE` | the same from its `results` |
| NCCL Inspector, JSON lines | `coll_exec_time_us` of each AllReduce, of its shortest rank, which waited for no other |
| CSV | a column of sizes (`bytes`) and one of times (`seconds`, `time_ms` or `time_us`) |

Gradients are reduced in place, so in-place times come first. Of several values for one size, the median counts.
A launcher may put a label before each line of nccl-tests (`mpirun --tag-output`, `srun -l`, timestamps). A row that
contradicts itself is refused, and so is a file whose times are not those of one all-reduce.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xbench.errors import UsageError
from xbench.planning.cost import fit
from xbench.records import CostModel, CostPoint
from xbench.stats.summary import median_estimate
from xbench.traces.arguments import number_of

BYTES = ("bytes", "nbytes", "size", "size_bytes", "message_bytes")
SECONDS = {"seconds": 1.0, "time_s": 1.0, "transfer_s": 1.0, "time_ms": 1e-3, "ms": 1e-3, "time_us": 1e-6, "us": 1e-6}
RANKS = ("ranks", "nranks", "n_ranks", "world_size")
OTHERS = ("allgather", "reducescatter", "broadcast", "reduce", "alltoall", "sendrecv", "gather", "scatter")
MAX_RATIO = 1.5
"""Largest ratio of two columns of times that differ by their rounding."""

_TEST = re.compile(r"Collective test starting:\s*(\w+?)(?:_perf)?\s*$")
_RANK = re.compile(r"#\s+Rank\s+(\d{1,9})\b.*?\bon\s+\S+\s+device")
_ROOT = re.compile(r"-?\d{1,9}")
_OTHER_TIMES = (
    (re.compile(r"#.*\bagg iters:\s*(?!1\b)\d"), ("aggregated_iterations", 1), "of several all-reduces at once", "-m"),
    (re.compile(r"#.*\bBlocking Enabled"), ("blocking_collectives", False), "with the host's wait after each", "-z"),
    (re.compile(r"#.*\bcputime\b"), ("cpu_time", False), "of the launches on the CPU", "-C"),
)
"""How the header tells times that are not those of an all-reduce, the usual value in `-J`, and the option at fault."""
_HINT = "give the output of all_reduce_perf, as text or from -J, NCCL Inspector's JSON, or a CSV of bytes and time_us"


@dataclass(frozen=True)
class _Row:
    """One row of nccl-tests: size [B], time [s], bandwidths [GB/s] of the algorithm and of the bus, wrong values."""

    nbytes: int
    seconds: float
    algorithm: float | None
    bus: float | None
    wrong: float | None


@dataclass(frozen=True)
class LinkTimes:
    """Times of all-reduces [s] by size [B], and the ranks of the run where the file tells them."""

    seconds: dict[int, list[float]]
    world_size: int | None = None
    rows: tuple[_Row, ...] = ()
    """Rows of nccl-tests, whose bandwidths tell the number of ranks, too."""


def link_cost(paths: Sequence[Path], *, world_size: int | None = None, backend: str = "nccl") -> CostModel:
    """Fit T(M) to one or more files of one link.

    `world_size` is used where no file tells the number of ranks; `backend` is that of the ranks. Raises UsageError for
    a file that cannot be read or is of another collective, for files of different numbers of ranks, and for fewer than
    two sizes.
    """
    found = [read_link(path) for path in paths]
    told = sorted({one.world_size for one in found if one.world_size is not None})
    if len(told) > 1:
        raise UsageError(f"the link files are of {told[0]} and of {told[1]} ranks", hint="give files of one link")
    ranks = told[0] if told else world_size
    if ranks is None or ranks < 2:
        what = "does not say how many ranks took part" if ranks is None else "is of one rank, which sends nothing"
        raise UsageError(f"{paths[0]} {what}", hint="keep the lines '# Rank …' of nccl-tests' output")
    together: dict[int, list[float]] = defaultdict(list)
    for path, one in zip(paths, found, strict=True):
        _check_bus(path, one.rows, ranks)
        for nbytes, seconds in one.seconds.items():
            together[nbytes].append(statistics.median(seconds))
    points = []
    for nbytes, seconds in sorted(together.items()):
        estimate = median_estimate(seconds)
        points.append(
            CostPoint(
                nbytes=nbytes, transfer_s=estimate.median, ci95=estimate.ci95, wait_s=0.0, repetitions=len(seconds)
            )
        )
    if len(points) < 2:
        raise UsageError(f"{paths[0]} has {len(points)} size, and T(M) needs two at least", hint=_HINT)
    return fit(points, backend=backend, world_size=ranks)


def read_link(path: Path) -> LinkTimes:
    """Read one file, whatever its format. Raises UsageError for anything that is not one."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if head.lstrip().startswith("{"):
        found = _inspector(path) if '"coll_perf"' in head else _json(path)
    else:
        found = _text(path)
        first = next((line for line in head.splitlines() if line.strip()), "")
        if not found.seconds and "," in first:
            found = _csv(path)
    if not found.seconds:
        raise UsageError(f"{path} holds no time of an all-reduce", hint=_HINT)
    return found


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        yield from file


def _text(path: Path) -> LinkTimes:
    runs: list[set[int]] = []
    rows: list[_Row] = []
    for line in _lines(path):
        for pattern, _, what, option in _OTHER_TIMES:
            _check_times(path, pattern.search(line) is not None, what, option)
        if (test := _TEST.search(line)) is not None:
            _check_collective(path, test.group(1))
        elif (rank := _RANK.search(line)) is not None:
            number = int(rank.group(1))
            if not runs or number in runs[-1]:  # the ranks of one more run
                runs.append(set())
            runs[-1].add(number)
        elif (row := _row(path, line.split())) is not None:
            rows.append(row)
    told = sorted({len(run) for run in runs})
    if len(told) > 1:
        raise UsageError(f"{path} holds runs of {told[0]} and of {told[-1]} ranks", hint="give one file for each run")
    return _of_rows(path, rows, told[0] if told else None)


def _of_rows(path: Path, rows: Sequence[_Row], world_size: int | None) -> LinkTimes:
    seconds: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        _check_row(path, row)
        seconds[row.nbytes].append(row.seconds)
    if world_size is not None:
        _check_bus(path, rows, world_size)
    return LinkTimes(dict(seconds), world_size, tuple(rows))


def _check_times(path: Path, is_other: bool, what: str, option: str) -> None:
    if is_other:
        raise UsageError(
            f"{path} has times {what}, and T(M) is of one all-reduce", hint=f"run all_reduce_perf without {option}"
        )


def _check_row(path: Path, row: _Row) -> None:
    """Refuse a row whose sums are wrong, or whose time is not that of its bandwidth (printed with two decimals)."""
    told = row.nbytes / row.seconds / 1e9
    if row.algorithm is not None and abs(row.algorithm - told) > 0.0051 + 0.01 * told:
        raise UsageError(
            f"{path}: the row of {row.nbytes} B contradicts itself: {row.seconds * 1e6:.4g} µs are {told:.3g} GB/s, "
            f"and its algbw is {row.algorithm:.3g}",
            hint="-C 1 puts the CPU's time in place of the transfer's: run all_reduce_perf without it",
        )
    if row.wrong is not None and row.wrong >= 1:  # older versions print the largest error, which is far below 1
        raise UsageError(
            f"{path}: the row of {row.nbytes} B has {row.wrong:g} wrong values, so this link does not work",
            hint="repair it, and measure again",
        )


def _check_bus(path: Path, rows: Sequence[_Row], world_size: int) -> None:
    """Refuse rows of another collective: only an all-reduce of n ranks loads the bus 2 (n - 1) / n times its bytes.

    Bandwidths are printed with two decimals, so the smallest ones tell nothing.
    """
    factor = 2 * (world_size - 1) / world_size
    for row in rows:
        if world_size < 2 or not row.algorithm or row.bus is None:
            continue
        if abs(row.bus - factor * row.algorithm) > 0.0051 * (1 + factor) + 0.01 * row.bus:
            raise UsageError(
                f"{path} is not of an all-reduce of {world_size} ranks: its bus bandwidth is "
                f"{row.bus / row.algorithm:.3g} times that of the algorithm, and an all-reduce has {factor:.3g}",
                hint=_HINT,
            )


def _row(path: Path, words: Sequence[str]) -> _Row | None:
    """Return what a row of nccl-tests says, after any label; None for any other line."""
    return next((row for start in range(len(words) - 5) if (row := _bare_row(path, words[start:])) is not None), None)


def _bare_row(path: Path, words: Sequence[str]) -> _Row | None:
    """Return what a row says that begins with its size; None for anything else.

    After size, count and names come the root (since 2.11) and the columns out-of-place and in-place, of one length.
    The root of an all-reduce is -1.
    """
    if not words[0].isdecimal() or not words[1].isdecimal() or not words[2].isalnum():
        return None
    rest = list(words[2:])
    names = []
    while rest and not _is_column(rest[0]):
        names.append(rest.pop(0))
    while rest and not _is_column(rest[-1]):
        rest.pop()
    root = rest.pop(0) if len(rest) % 2 else "-1"
    if not names or len(rest) < 4 or _ROOT.fullmatch(root) is None:
        return None
    if len(names) > 1 and names[1] == "none":
        _check_collective(path, "a collective without a reduction")
    if int(root) >= 0:
        _check_collective(path, f"a collective with root {int(root)}")
    sides = [rest[len(rest) // 2 :], rest] if len(rest) >= 8 else [rest]
    columns = next((side for side in sides if (number_of(side[0]) or 0.0) > 0), None)
    size = int(words[0])
    if columns is None or not size:
        return None
    time_us, algorithm, bus = (number_of(column) for column in columns[:3])
    return _Row(size, (time_us or 0.0) / 1e6, algorithm, bus, _wrong(side[3] for side in (rest, sides[0])))


def _wrong(sides: Iterable[object]) -> float | None:
    """The larger number of wrong values, out of place or in place; None where none were counted."""
    return max((number for one in sides if (number := number_of(one)) is not None), default=None)


def _json(path: Path) -> LinkTimes:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not whole JSON", hint=_HINT) from error
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list):
        raise UsageError(f"{path} has no results of nccl-tests", hint=_HINT)
    arguments = document.get("args")
    if isinstance(arguments, list) and arguments:
        _check_collective(path, Path(str(arguments[0])).name.removesuffix("_perf"))
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    for _, (key, usual), what, option in _OTHER_TIMES:
        _check_times(path, config.get(key, usual) != usual, what, option)
    devices = config.get("devices")
    used = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    ranks = {str(one.get("rank", place)) for place, one in enumerate(used)}
    rows = []
    for row in results:
        size = row.get("size") if isinstance(row, dict) else None
        both = [row.get(key) for key in ("in_place", "out_of_place")] if isinstance(row, dict) else []
        sides = [one for one in both if isinstance(one, dict) and (number_of(one.get("time")) or 0.0) > 0]
        if isinstance(size, int) and 0 < size < 2**62 and sides:
            time_us, algorithm, bus = (number_of(sides[0].get(key)) for key in ("time", "alg_bw", "bus_bw"))
            wrong = _wrong(side.get("nwrong") for side in sides)
            rows.append(_Row(size, (time_us or 0.0) / 1e6, algorithm, bus, wrong))
    return _of_rows(path, rows, len(ranks) or None)


def _inspector(path: Path) -> LinkTimes:
    by_collective: dict[tuple[int, Any, Any], list[float]] = defaultdict(list)
    ranks: set[int] = set()
    for entry in _json_lines(path):
        header, perf = entry.get("header"), entry.get("coll_perf")
        if not isinstance(header, dict) or not isinstance(perf, dict) or perf.get("coll") != "AllReduce":
            continue
        size, micros = perf.get("coll_msg_size_bytes"), number_of(perf.get("coll_exec_time_us"))
        if isinstance(size, int) and 0 < size < 2**62 and micros:
            by_collective[size, str(header.get("id")), str(perf.get("coll_sn"))].append(micros / 1e6)
            ranks |= {header["n_ranks"]} if isinstance(header.get("n_ranks"), int) else set()
    if len(ranks) > 1:
        raise UsageError(f"{path} has communicators of {min(ranks)} and of {max(ranks)} ranks", hint=_HINT)
    shortest: dict[int, list[float]] = defaultdict(list)
    for (size, _, _), seconds in by_collective.items():
        shortest[size].append(min(seconds))
    if all(len(seconds) == 1 for seconds in by_collective.values()):  # one rank: only repetitions show its waiting
        shortest = {size: [min(seconds)] for size, seconds in shortest.items()}
    return LinkTimes(dict(shortest), max(ranks, default=None))


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in _lines(path):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry


def _csv(path: Path) -> LinkTimes:
    rows = csv.reader(line for line in _lines(path) if line.strip())
    names = [name.strip().lower() for name in next(rows)]
    size_at = next((names.index(name) for name in BYTES if name in names), None)
    times_at = [(names.index(name), scale) for name, scale in SECONDS.items() if name in names]
    ranks_at = next((names.index(name) for name in RANKS if name in names), None)
    if size_at is None or not times_at:
        missing = f"sizes ({', '.join(BYTES)})" if size_at is None else f"times ({', '.join(SECONDS)})"
        raise UsageError(f"{path} has no column of {missing}", hint=_HINT)
    seconds: dict[int, list[float]] = defaultdict(list)
    told: set[int] = set()
    for number, row in enumerate(rows, start=2):
        values = dict(enumerate(map(number_of, row)))
        size, times = values.get(size_at), [scale * (values.get(place) or 0.0) for place, scale in times_at]
        if size is None or not size >= 1 or not min(times) > 0:
            raise UsageError(f"{path}, line {number}: a size and a time above zero belong there", hint=_HINT)
        if max(times) > MAX_RATIO * min(times):
            raise UsageError(f"{path}, line {number}: the times contradict each other", hint="keep one column of times")
        for cell in row:
            if cell.strip().lower().replace("_", "").replace("-", "") in OTHERS:
                _check_collective(path, cell.strip())
        seconds[int(size)].append(times[0])
        ranks = values.get(ranks_at) if ranks_at is not None else None
        told |= {int(ranks)} if ranks is not None else set()
    if len(told) > 1:
        raise UsageError(
            f"{path} holds runs of {min(told)} and of {max(told)} ranks", hint="give one file for each run"
        )
    return LinkTimes(dict(seconds), max(told, default=None))


def _check_collective(path: Path, name: str) -> None:
    if name.replace("_", "").lower() != "allreduce":
        raise UsageError(f"{path} is of {name}, and T(M) is of an all-reduce", hint=_HINT)


def _is_column(word: str) -> bool:
    return word == "N/A" or number_of(word) is not None
