"""Gain of host tuning alone: the reference `ddp` beside the same in ranks of its own without host tuning.

Every other mode has host tuning, the reference too. So their ratios hold no part of this gain, and it is told apart.
"""

from __future__ import annotations

from xbench.modes import mode_info
from xbench.records import Comparison, Ratio
from xbench.report.sentences import ratio_text
from xbench.stats.blocks import mode_values
from xbench.stats.compare import ratios_to
from xbench.units import format_percent


def untuned_ratio(record: Comparison) -> tuple[str, Ratio] | None:
    """Return the untuned mode, and its ratio to `ddp` by pairs of blocks in one round; None if it is not there."""
    untuned = next((mode for mode in record.spec.modes if not mode_info(mode.name).host_tuning), None)
    ddp = next((mode for mode in record.spec.modes if mode.text == "ddp"), None)
    if untuned is None or ddp is None:
        return None
    if not all(mode.text in record.modes and record.modes[mode.text].is_trusted for mode in (untuned, ddp)):
        return None
    without, tuned = (mode_values(record.spec, mode, record.samples) for mode in (untuned, ddp))
    ratio = ratios_to(tuned, {untuned.text: without}).get(untuned.text)
    return None if ratio is None else (untuned.text, ratio)


def tuning_answer(record: Comparison) -> list[str]:
    """Return the sentence on what host tuning alone is worth; empty if that was not measured."""
    found = untuned_ratio(record)
    if found is None:
        return []
    untuned, ratio = found
    interval = f"ratio of {untuned} to ddp {ratio_text(ratio.value, ratio.interval)}"
    if ratio.verdict == "equivalent":
        return [f"Host tuning alone changes nothing that matters: {interval}."]
    if ratio.verdict == "inconclusive":
        return [f"What host tuning alone is worth is not settled: {interval}."]
    saved = 1 - 1 / ratio.value
    ends = sorted((1 - 1 / ratio.ci95[0], 1 - 1 / ratio.ci95[1]), key=abs)
    word = "less" if saved > 0 else "more"
    span = " to ".join(format_percent(abs(end)) for end in ends)
    return [
        f"Host tuning alone: with it ddp takes {format_percent(abs(saved))} {word} time per sample than without "
        f"({untuned}; 95 % CI {span}). Every other mode has it, the reference too, so no other figure here holds it."
    ]


def is_worth_it(record: Comparison) -> bool:
    """True if host tuning alone was proven to save time."""
    found = untuned_ratio(record)
    return found is not None and found[1].verdict == "slower"
