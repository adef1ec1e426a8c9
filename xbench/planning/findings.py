"""Crossover points in sentences: the number of workers from which another mode is fastest.

A change counts only when it lasts: "from 256 workers on" holds at 256 and at every larger size that was computed. Two
steps within half a percent of each other are equal, since no prediction is more accurate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xbench.modes import EXACT
from xbench.records import ScalingPoint
from xbench.text import and_of

EQUAL = 0.005
CLOSE = 0.01
HALF = 0.5
DEFAULT = "ddp"


def crossovers(by_mode: Mapping[str, Sequence[ScalingPoint]], *, dtypes: int = 1) -> list[str]:
    """Sentences, the most useful first. `by_mode` holds the points of each mode, with equal, ascending sizes.

    `dtypes` is the number of gradient dtypes. No bucket holds two dtypes, so it is the least possible number of
    buckets.
    """
    modes = {mode: points for mode, points in by_mode.items() if points}
    if not modes:
        return []
    return [*_fastest(modes), *_one_bucket(modes, dtypes), *_default(modes), *_waiting(modes)]


def _best(modes: Mapping[str, Sequence[ScalingPoint]], place: int) -> list[str]:
    """Modes that are fastest at one size, in their order, including those equal to the fastest."""
    least_s = min(points[place].step_s for points in modes.values())
    return [mode for mode, points in modes.items() if points[place].step_s <= least_s * (1 + EQUAL)]


def _fastest(modes: Mapping[str, Sequence[ScalingPoint]]) -> list[str]:
    """The fastest mode of each range of sizes. Among equal modes, the one that is fastest most often."""
    if len(modes) == 1:
        return []
    sizes = [point.workers for point in next(iter(modes.values()))]
    best = [_best(modes, place) for place in range(len(sizes))]
    everywhere = [mode for mode in modes if all(mode in names for names in best)]
    if everywhere:
        where = "at every size" if len(sizes) > 1 else f"with {sizes[0]} workers"
        return [f"{and_of(everywhere)} {'is' if len(everywhere) == 1 else 'are'} fastest {where}."]
    runs: list[tuple[int, str]] = []
    for size, names in zip(sizes, best, strict=True):
        if not runs or runs[-1][1] not in names:
            runs.append((size, max(names, key=lambda mode: sum(mode in other for other in best))))
    first, *rest = runs
    return [
        f"{first[1]} is fastest with {first[0]} workers" + "".join(f", {name} from {n} on" for n, name in rest) + "."
    ]


def _one_bucket(modes: Mapping[str, Sequence[ScalingPoint]], dtypes: int) -> list[str]:
    """The size from which one bucket per dtype is fastest.

    The exact plan ignores contention, so another mode can be faster. Without the exact plan, no mode searched for the
    best buckets, and there is no sentence.
    """
    if EXACT not in modes:
        return []
    points = modes[EXACT]
    one = "one bucket" if dtypes == 1 else "one bucket a dtype"
    best = [[modes[mode][place] for mode in _best(modes, place)] for place in range(len(points))]
    since = _from_on(points, [any(point.buckets <= dtypes for point in found) for found in best])
    if since is None:
        last = min(best[-1], key=lambda point: point.step_s)
        return [f"Up to {last.workers} workers several buckets are best: {last.mode} has {last.buckets} there."]
    return [f"{_since(points, since) if len(points) > 1 else f'With {since} workers'} {one} is best."]


def _default(modes: Mapping[str, Sequence[ScalingPoint]]) -> list[str]:
    """The sizes at which DDP's default buckets are more than 1 % behind the fastest mode."""
    if DEFAULT not in modes or len(modes) == 1:
        return []
    points = modes[DEFAULT]
    least = [min(others[place].step_s for others in modes.values()) for place in range(len(points))]
    behind = [point.step_s / fastest_s - 1 for point, fastest_s in zip(points, least, strict=True)]
    since = _from_on(points, [share > CLOSE for share in behind])
    last = points[-1].workers
    if since is None:
        if max(behind) <= CLOSE:
            return ["DDP's default buckets are within 1 % of the fastest at every size."]
        place = max(range(len(points)), key=lambda index: behind[index])
        return [
            f"DDP's default buckets are within 1 % of the fastest with {last} workers, and {100 * behind[place]:.0f} % "
            f"behind with {points[place].workers}."
        ]
    worst = max(range(len(points)), key=lambda index: behind[index])
    return [
        f"DDP's default buckets are more than 1 % behind the fastest {_since(points, since).lower()}, by "
        f"{100 * behind[worst]:.0f} % with {points[worst].workers}."
    ]


def _waiting(modes: Mapping[str, Sequence[ScalingPoint]]) -> list[str]:
    """The size from which even the fastest mode waits for more than half of the step."""
    points = next(iter(modes.values()))
    most = [max(others[place].efficiency for others in modes.values()) for place in range(len(points))]
    since = _from_on(points, [efficiency < HALF for efficiency in most])
    if since is None:
        return []
    what = "the fastest mode" if len(modes) > 1 else next(iter(modes))
    return [f"{_since(points, since)} even {what} waits for gradients for more than half of the step."]


def _since(points: Sequence[ScalingPoint], since: int) -> str:
    return "At every size" if since == points[0].workers else f"From {since} workers on"


def _from_on(points: Sequence[ScalingPoint], holds: Sequence[bool]) -> int | None:
    """The first size from which `holds` is true up to the last size; None when it is false at the last."""
    since = None
    for point, true in zip(reversed(points), reversed(holds), strict=True):
        if not true:
            break
        since = point.workers
    return since
