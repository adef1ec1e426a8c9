"""Decision which ranks, and which links between hosts, hold the others back. Nothing is named by chance, or for little.

**Ranks** time their own steps without communication. A rank is slow if its steps are longer than those of the typical
rank (the lower median) by more than LEAST of a step, by the exact one-sided median test (Mood 1950), and if steps that
are measured later say the same. ALARM bounds the chance that a run without a slow rank names one (Bonferroni over the
ranks). The lag is described, not tested again: its largest parts, and the layer from which on it lags.

**Links**: pairs of hosts exchange messages (`profilers.host_links`). A host's link is slow if its pairs are slower than
those without it; a link between two hosts, if their pair is slower than the other pairs of both. Two hosts have one
pair, and the sign test holds it against the rate that was asked for. A pair with a busy processor is never slow.

`tests/unit/stats/test_stragglers.py` counts false alarms in simulations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import comb
from statistics import median

from xbench.records import SlowLink, SlowRank, StepPart

ALARM = 0.01
LEAST = 0.05
"""Smallest lag that is named, as a share of the typical step."""

LEAST_OF_LINK = 0.25
"""Smallest difference between exchanges that is named, as a share of the typical exchange. Hosts on one machine, which
share its cores, differ by less."""

LEAST_OF_ASKED = 0.5
"""Share of the rate that was asked for, below which a link is slow. Headers and processors short of time take some too.
"""

BUSY = 0.9
"""Processors that a rank uses or waits for in its exchanges, from which on they may be the limit."""

MOST_OF_LAG = 0.75
"""Share of the lag that the named parts explain at least."""

APART = 0.25
"""Least distance between the courses of a lag and of the time of the layers, as shares, to name a layer."""

ONSET = 0.1
"""Share of a lag from which on it has begun."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class OwnSteps:
    """Steps of one rank without communication [s]."""

    steps_s: Sequence[float]
    again_s: Sequence[float] = ()
    """Steps that were measured later; none: a slow rank is not confirmed by others."""
    parts_s: Mapping[StepPart, float] = field(default_factory=dict)
    """Median of each part."""
    ends_s: Mapping[StepPart, Mapping[str, float]] = field(default_factory=dict)
    """Time from the start of a part to the end of each of its layers, in the order of these."""
    waited_share: float = 0.0
    """Share of the time in which the rank waited for its processor."""
    host: str | None = None


@dataclass(frozen=True)
class Exchanges:
    """Exchanges of `nbytes` in each direction between hosts, and what they mean for a step."""

    nbytes: int
    times_s: Mapping[Pair, Sequence[float]]
    """Times of the exchanges of each pair of hosts [s], the smaller host first."""
    hosts: Sequence[str]
    """Names of the hosts."""
    all_gradients_s: float
    """Time of all gradients in one collective."""
    step_s: float
    """Time of a step without communication."""
    asked_bps: float | None = None
    busy: Mapping[Pair, float] = field(default_factory=dict)
    """Processors that the exchanges of a pair took, or waited for, on the busier host."""

    def all_of(self, pairs: Sequence[Pair]) -> list[float]:
        """Times of the exchanges of all these pairs [s]."""
        return [time_s for pair in pairs for time_s in self.times_s[pair]]


def chance(slow: Sequence[float], typical: Sequence[float]) -> float:
    """Probability that values like the typical ones look as slow as `slow`: the exact median test, one-sided.

    Values that equal the median of all count as above it if that divides all values more evenly, else as below it.
    Raises ValueError if one of the two is empty.
    """
    if not slow or not typical:
        raise ValueError("the median test needs values on both sides")
    pooled = sorted([*slow, *typical])
    middle = pooled[(len(pooled) - 1) // 2]
    more, less = sum(value > middle for value in pooled), sum(value < middle for value in pooled)
    with_ties = less > more
    above = sum(value > middle or (with_ties and value == middle) for value in slow)
    high = len(pooled) - less if with_ties else more
    ways = sum(comb(len(slow), k) * comb(len(typical), high - k) for k in range(above, min(len(slow), high) + 1))
    return ways / comb(len(pooled), high)


def slow_ranks(ranks: Sequence[OwnSteps]) -> list[SlowRank]:
    """Return the ranks that hold the others back, the largest lag first. `ranks` is by rank."""
    if len(ranks) < 2:
        return []
    typical = sorted(ranks, key=lambda one: median(one.steps_s))[(len(ranks) - 1) // 2]
    typical_s = median(typical.steps_s)
    found = []
    for number, own in enumerate(ranks):
        lag_s = median(own.steps_s) - typical_s
        if own is typical or lag_s < LEAST * typical_s:
            continue
        by_chance = _longer(own.steps_s, typical.steps_s)
        if by_chance > ALARM / len(ranks) or _longer(own.again_s, typical.again_s) > ALARM:
            continue
        parts = _parts(own, typical)
        layer = _onset(own.ends_s.get(parts[0], {}), typical.ends_s.get(parts[0], {})) if parts else None
        found.append(
            SlowRank(
                rank=number,
                host=own.host,
                parts=parts,
                layer=layer,
                lag_s=lag_s,
                share=lag_s / median(own.steps_s),
                chance=by_chance,
                waited_share=own.waited_share if _waits(own, typical) else None,
            )
        )
    return sorted(found, key=lambda one: -one.lag_s)


def _longer(steps_s: Sequence[float], typical_s: Sequence[float]) -> float:
    """Return the chance that steps look longer than typical ones by LEAST of a typical step; 0 without steps."""
    if not steps_s or not typical_s:
        return 0.0
    least_s = LEAST * median(typical_s)
    return chance([step_s - least_s for step_s in steps_s], typical_s)


def _waits(own: OwnSteps, typical: OwnSteps) -> bool:
    """True if at most half of the lag would be left if the rank waited for its processor as often as the typical one.

    Where all ranks wait alike, the slow one does so for longer only because it has more to compute.
    """
    own_s, typical_s = median(own.steps_s), median(typical.steps_s)
    as_often_s = own_s * (1 - own.waited_share) / max(0.01, 1 - typical.waited_share)
    return as_often_s - typical_s <= (own_s - typical_s) / 2


def _parts(own: OwnSteps, typical: OwnSteps) -> list[StepPart]:
    """Return the fewest parts that explain most of the lag, the largest lag first."""
    lags_s = {part: max(0.0, own.parts_s[part] - typical.parts_s.get(part, 0.0)) for part in own.parts_s}
    order = sorted((part for part in lags_s if lags_s[part] > 0), key=lambda part: -lags_s[part])
    sums_s = list(accumulate(lags_s[part] for part in order))
    needed = next((count for count, sum_s in enumerate(sums_s, 1) if sum_s >= MOST_OF_LAG * sums_s[-1]), 0)
    return order[:needed]


def _onset(own_s: Mapping[str, float], typical_s: Mapping[str, float]) -> str | None:
    """Return the layer from which on a pass lags; None if it lags all along, in proportion to its layers."""
    names = [name for name in typical_s if name in own_s]
    if not names:
        return None
    whole_lag_s, whole_s = own_s[names[-1]] - typical_s[names[-1]], typical_s[names[-1]]
    if whole_lag_s <= 0 or whole_s <= 0:
        return None
    lags = [(own_s[name] - typical_s[name]) / whole_lag_s for name in names]
    if max(abs(lag - typical_s[name] / whole_s) for lag, name in zip(lags, names, strict=True)) < APART:
        return None
    before = [index for index, lag in enumerate(lags) if lag < ONSET]
    return names[before[-1] + 1 if before else 0]


def slow_links(found: Exchanges) -> list[SlowLink]:
    """Return the links that carry less than the others, the slowest first."""
    hosts = range(len(found.hosts))
    if len(hosts) == 2:
        return _below_asked(found)
    level = ALARM / (len(hosts) + len(found.times_s))
    slow: list[SlowLink] = []
    named: set[int] = set()
    for host in hosts:
        own = [pair for pair in found.times_s if host in pair]
        others = [pair for pair in found.times_s if host not in pair]
        by_chance = _slower(found, own, others)
        if by_chance <= level:
            named.add(host)
            slow += _named(found, [host], own, others, by_chance)
    for pair in found.times_s:
        others = [other for other in found.times_s if len({*other} & {*pair}) == 1 and not named & {*other}]
        by_chance = 1.0 if named & {*pair} else _slower(found, [pair], others)
        if by_chance <= level:
            slow += _named(found, list(pair), [pair], others, by_chance)
    return sorted(slow, key=lambda one: one.rate_bps)


def _slower(found: Exchanges, pairs: Sequence[Pair], others: Sequence[Pair]) -> float:
    """Return the chance that these pairs look slower than others by LEAST_OF_LINK.

    It is 1 if one of them is not slower, or if its link may not be the reason.
    """
    others_s = found.all_of(others)
    if not pairs or not others_s or any(found.busy.get(pair, 0.0) >= BUSY for pair in pairs):
        return 1.0
    least_s = LEAST_OF_LINK * median(others_s)
    if any(median(found.times_s[pair]) <= median(others_s) + least_s for pair in pairs):
        return 1.0
    return chance([time_s - least_s for time_s in found.all_of(pairs)], others_s)


def _below_asked(found: Exchanges) -> list[SlowLink]:
    """Return the link between two hosts if it carries less than the rate that was asked for."""
    times_s = found.times_s.get((0, 1), ())
    if found.asked_bps is None or not times_s or found.busy.get((0, 1), 0.0) >= BUSY:
        return []
    limit_s = 8 * found.nbytes / (LEAST_OF_ASKED * found.asked_bps)
    over = sum(time_s > limit_s for time_s in times_s)
    by_chance = sum(comb(len(times_s), count) for count in range(over, len(times_s) + 1)) / 2 ** len(times_s)
    if by_chance > ALARM:
        return []
    return _named(found, [0, 1], [(0, 1)], [], by_chance)


def _named(
    found: Exchanges, hosts: Sequence[int], pairs: Sequence[Pair], others: Sequence[Pair], by_chance: float
) -> list[SlowLink]:
    """Return the slow link, or nothing if all gradients of a step take hardly longer over it.

    Without other pairs, the rate that was asked for is the typical one.
    """
    asked_s = 8 * found.nbytes / found.asked_bps if found.asked_bps else 0.0
    own_s, typical_s = median(found.all_of(pairs)), median(found.all_of(others) or [asked_s])
    lag_s = found.all_gradients_s * max(0.0, 1 - typical_s / own_s)
    share = lag_s / (found.step_s + found.all_gradients_s)
    if share < LEAST:
        return []
    return [
        SlowLink(
            hosts=[found.hosts[host] for host in hosts],
            rate_bps=8 * found.nbytes / own_s,
            typical_bps=8 * found.nbytes / typical_s,
            typical_is_asked=not others,
            lag_s=lag_s,
            share=share,
            chance=by_chance,
        )
    ]
