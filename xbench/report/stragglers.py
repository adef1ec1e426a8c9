"""Sentences on ranks and links that hold the others back. There are none where nothing was found."""

from __future__ import annotations

from xbench.records import SlowLink, SlowRank, StepPart, Stragglers
from xbench.text import and_of
from xbench.units import format_percent, format_rate, format_seconds

MAX_TOLD = 3
"""Ranks with a sentence of their own, those with the largest lags."""

NAMES: dict[StepPart, str] = {"input": "its input", "forward": "forward", "backward": "backward",
                              "optimizer": "its optimizer"}  # fmt: skip
"""Parts of a step in a sentence."""

_FETCH = "prefetch it, or give its loader more workers"
_FREE = "free its cores from other work"


def straggler_lines(found: Stragglers | None) -> list[str]:
    """Return one sentence for each slow rank and link, the largest lag first; one counts those beyond MAX_TOLD."""
    if found is None:
        return []
    lines = [rank_line(one) for one in found.ranks[:MAX_TOLD]]
    more = [str(one.rank) for one in found.ranks[MAX_TOLD:]]
    if more:
        who = f"Rank {more[0]} holds" if len(more) == 1 else f"Ranks {and_of(more)} hold"
        lines.append(f"{who} them back too, by less.")
    return [*lines, *map(link_line, found.links)]


def rank_line(slow: SlowRank) -> str:
    """Describe a slow rank: 'Rank 1 (host 1) holds the others back: backward from fc on, 62.0 ms a step (17 %).'."""
    who = f"Rank {slow.rank}" + (f" ({slow.host})" if slow.host is not None else "")
    parts = [NAMES[part] for part in slow.parts]
    if parts and slow.layer is not None:
        parts[0] += f" from {slow.layer} on"
    where = and_of(parts) if parts else "its step"
    said = (
        f"{who} holds the others back: {where}, {format_seconds(slow.lag_s)} a step ({format_percent(slow.share, 0)})"
    )
    if slow.waited_share is not None:
        return f"{said}. It waited {format_percent(slow.waited_share, 0)} of the time for a processor: {_FREE}."
    return f"{said}: {_FETCH}." if slow.parts[:1] == ["input"] else f"{said}."


def link_line(slow: SlowLink) -> str:
    """Describe a slow link, its rate and the others', and what it costs a step."""
    who = f"The link of {slow.hosts[0]}" if len(slow.hosts) == 1 else f"The link between {and_of(slow.hosts)}"
    beside = f"of the {format_rate(slow.typical_bps)} asked for"
    if not slow.typical_is_asked:
        beside = f"where other links carry {format_rate(slow.typical_bps)}"
    return (
        f"{who} holds the others back: {format_rate(slow.rate_bps)} {beside}, {format_seconds(slow.lag_s)} for all "
        f"gradients of a step ({format_percent(slow.share, 0)}): check the speed it has negotiated, and its errors."
    )
