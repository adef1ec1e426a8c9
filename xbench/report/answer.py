"""The answer of a comparison in words: which mode is fastest, by how much, and how sure that is.

Modes are ranked by their ratio to the reference, which is paired within launches, and not by their absolute times,
which drift. Modes whose ratio is proven below 1 come first: a noisy mode with the best estimate hides none of them. A
mode whose gradients differ from DDP's, or that failed, takes no part; nor does a control, which trains no common
network at all.
"""

from __future__ import annotations

from xbench.records import Comparison, ModeResult
from xbench.schedules import MODES
from xbench.units import format_percent

MORE = "More launches may decide: --rigorous, or --launches 5."


def trusted(result: ModeResult) -> bool:
    """Whether the mode's times may be shown: it ran, was timed, and trained the same network as DDP."""
    gate = result.parity is None or result.parity.ok
    return result.status == "ok" and gate and result.seconds_per_sample is not None


def was_reached(record: Comparison) -> bool:
    """Whether any mode was measured or failed: a run that ended before its first block has nothing to tabulate."""
    return any(result.status != "not measured" for result in record.modes.values())


def is_control(name: str) -> bool:
    """Whether a mode does not train one network on all ranks, such as `compute`: it is compared with, never advised."""
    return name in MODES and not MODES.entry(name).facts.get("synchronous", True)


def controls(record: Comparison) -> set[str]:
    """The modes of the record that are controls."""
    return {mode.text for mode in record.spec.modes if is_control(mode.name)}


def partial(record: Comparison) -> set[str]:
    """The modes that train one network on all ranks, by gradients that are not DDP's: shown beside, never advised."""
    return {
        mode.text
        for mode in record.spec.modes
        if mode.name in MODES and MODES.entry(mode.name).facts.get("gradients") == "partial"
    }


def ranking(record: Comparison) -> list[ModeResult]:
    """Modes that may win: those that are proven faster than the reference, then the others; fastest first."""
    out = controls(record)

    def key(result: ModeResult) -> tuple[int, float]:
        if result.mode == record.reference:
            return 1, 1.0
        if result.ratio is not None:
            return 0 if result.ratio.verdict == "faster" else 1, result.ratio.value
        assert result.seconds_per_sample is not None  # trusted() asked for it
        return 2, result.seconds_per_sample.median

    return sorted((r for name, r in record.modes.items() if name not in out and trusted(r)), key=key)


def answer(record: Comparison) -> list[str]:
    """One or two sentences, and one that says what kind of numbers these are."""
    order = ranking(record)
    if not order:
        return ["No mode was measured, so there is no answer."]
    return [*_verdict(record, order), *_partial(record), _kind(order)]


def _verdict(record: Comparison, order: list[ModeResult]) -> list[str]:
    best, reference = order[0], record.reference
    if len(order) == 1:
        beside = any(trusted(result) for name, result in record.modes.items() if name != best.mode)
        only = f"Only {best.mode} is a mode to advise" if beside else f"Only {best.mode} was measured"
        return [f"{only}: there is nothing to compare it with."]
    if best.mode == reference:
        unsure = [r.mode for r in order[1:] if r.ratio is not None and r.ratio.verdict == "inconclusive"]
        if unsure:
            return [f"Inconclusive: {reference}, the reference, looks fastest by paired ratios, but this run "
                    f"cannot tell {_and(unsure)} from it.", MORE]  # fmt: skip
        return [f"{reference}, the reference, is fastest of {len(order)}: no other mode had a shorter time per sample."]
    ratio = best.ratio
    if ratio is None:
        return [f"{best.mode} had the shortest time per sample, but without {reference}, the reference, there is no "
                "ratio to judge it."]  # fmt: skip
    low, high = ratio.ci95
    interval = f"ratio {ratio.value:.3f}" + (
        f", 95 % CI {low:.3f} to {high:.3f}" if ratio.interval else ", of one pair"
    )
    if ratio.verdict == "faster":
        saved = format_percent(1 - ratio.value)
        span = f"95 % CI {format_percent(1 - high)} to {format_percent(1 - low)}"
        unproven = [r for r in order[1:] if r.ratio is not None and r.ratio.value < ratio.value]
        shown = "faster" if unproven else "fastest"
        return [f"{best.mode} is {shown}: {saved} less time per sample than {reference}, the reference ({span}).",
                *_perhaps(unproven, reference), *_close(order)]  # fmt: skip
    if ratio.verdict == "equivalent":
        return [
            f"No mode is faster than {reference}, the reference, by an amount that matters; {best.mode} is equivalent "
            f"({interval})."
        ]
    if ratio.verdict == "slower":
        return [f"{reference}, the reference, is fastest: next comes {best.mode} ({interval})."]
    return [
        f"Inconclusive: {best.mode} looks fastest by its paired ratio, but this run cannot tell it from "
        f"{reference}, the reference ({interval}).",
        MORE,
    ]


def _perhaps(unproven: list[ModeResult], reference: str) -> list[str]:
    """Modes with a better estimate than the winner's that are not proven faster than the reference."""
    if not unproven:
        return []
    names = _and([result.mode for result in unproven])
    return [f"{names} may be faster still, but this run cannot tell {'it' if len(unproven) == 1 else 'them'} from "
            f"{reference}.", MORE]  # fmt: skip


def _partial(record: Comparison) -> list[str]:
    """What modes with gradients of their own took, and why none of them is the answer."""
    said = []
    for mode in sorted(partial(record)):
        result = record.modes.get(mode)
        if result is not None and trusted(result) and result.ratio is not None and result.ratio.verdict != "reference":
            low, high = result.ratio.ci95
            said.append(
                f"{mode} takes {result.ratio.value:.3f} of {record.reference}'s time per sample (95 % CI {low:.3f} to "
                f"{high:.3f}) and is no answer: it leaves gradients out, which changes their noise. xbench converge "
                "shows what that does to training."
            )
    return said


def _close(order: list[ModeResult]) -> list[str]:
    """Who cannot be told from the winner: their intervals of the ratio overlap."""
    best = order[0].ratio
    assert best is not None
    close = [r.mode for r in order[1:] if r.ratio is not None and r.ratio.verdict != "reference"
             and r.ratio.value >= best.value and r.ratio.ci95[0] <= best.ci95[1]]  # fmt: skip
    if not close:
        return []
    return [f"This run cannot tell {_and(close)} from {order[0].mode}: the intervals overlap."]


def _kind(order: list[ModeResult]) -> str:
    labels = sorted({result.label for result in order})
    meaning = {
        "real": "real (real compute, real collectives over real links)",
        "emulated": "emulated (real compute, collectives delayed by the cost model)",
        "simulated": "simulated (from the model alone)",
    }
    if len(labels) == 1:
        return f"Times are {meaning[labels[0]]}; predictions and bounds are simulated."
    return "Times are " + _and(
        [f"{label} for {_and([r.mode for r in order if r.label == label])}" for label in labels]
    ) + "; predictions and bounds are simulated."  # fmt: skip


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
