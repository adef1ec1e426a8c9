"""The answer of a comparison in words: which mode is fastest, by how much, and how sure that is.

Modes are ranked by their ratio to the reference, which is paired within launches, and not by their absolute times,
which drift. Modes whose ratio is proven below 1 come first: a noisy mode with the best estimate hides none of them.
Whether two other modes differ is judged likewise, by the ratio of their own blocks, and never by whether two intervals
overlap. A mode whose gradients differ from DDP's, or that failed, takes no part; nor does a control, which trains no
common network at all.

Two jobs that share the devices are another question than one job, so each has an answer of its own: paired modes are
compared with `sequential`, and the others with the schedule of one job that is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.modes import IN_SEQUENCE, mode_info
from xbench.records import Comparison, ModeResult
from xbench.report.lines import and_of
from xbench.stats.blocks import mode_values
from xbench.stats.compare import MARGIN, paired_ratio
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
    return not mode_info(name).equivalent_to_ddp


def controls(record: Comparison) -> set[str]:
    """The modes of the record that are controls."""
    return {mode.text for mode in record.spec.modes if is_control(mode.name)}


def partial(record: Comparison) -> set[str]:
    """The modes that train one network on all ranks, by gradients that are not DDP's: shown beside, never advised."""
    return {mode.text for mode in record.spec.modes if mode_info(mode.name).gradients == "partial"}


def paired_modes(record: Comparison) -> set[str]:
    """The modes of the record in which two jobs share the devices."""
    return {mode.text for mode in record.spec.modes if mode.paired}


def jobs_of(record: Comparison, mode: str) -> int:
    """How many jobs share the devices under a mode."""
    return max(2, len(record.jobs)) if mode in paired_modes(record) else 1


def reference_of(record: Comparison, result: ModeResult) -> str:
    """The mode that a mode's ratio is to."""
    return result.ratio_to or record.reference


def references(record: Comparison) -> str:
    """What ratios are to: 'ddp', or 'ddp (sequential of two jobs)' where they are to different modes."""
    others = dict.fromkeys(result.ratio_to for result in record.modes.values() if result.ratio_to is not None)
    two = "one job" if record.reference in paired_modes(record) else "two jobs"
    return record.reference + (f" (of {two} {and_of(list(others))})" if others else "")


def ranking(record: Comparison) -> list[ModeResult]:
    """Modes that may win: those that are proven faster than their reference, then the others; fastest first."""
    out = controls(record)

    def key(result: ModeResult) -> tuple[int, float]:
        if result.mode == reference_of(record, result):
            return 1, 1.0
        if result.ratio is not None:
            return 0 if result.ratio.verdict == "faster" else 1, result.ratio.value
        assert result.seconds_per_sample is not None  # trusted() asked for it
        return 2, result.seconds_per_sample.median

    return sorted((r for name, r in record.modes.items() if name not in out and trusted(r)), key=key)


def rankings(record: Comparison) -> list[list[ModeResult]]:
    """The ranking of each question that the record answers: of two jobs, if any mode is of two, and of one job."""
    order, two = ranking(record), paired_modes(record)
    groups = [[r for r in order if r.mode in two], [r for r in order if r.mode not in two]]
    return [group for group in groups if group]


def winners(record: Comparison) -> set[str]:
    """The mode that is proven faster than its reference, and first, of each question."""
    first = [group[0] for group in rankings(record)]
    return {result.mode for result in first if result.ratio is not None and result.ratio.verdict == "faster"}


def answer(record: Comparison) -> list[str]:
    """A sentence or two for each question, and one that says what kind of numbers these are."""
    groups = rankings(record)
    if not groups:
        return ["No mode was measured, so there is no answer."]
    two = paired_modes(record)
    said = []
    for group in groups:
        first, *others = _verdict(record, group)
        if len(groups) > 1 and not first.startswith("Two jobs "):
            word = first[0].lower() if first.startswith(("Inconclusive", "No mode", "Only ")) else first[0]
            first = f"Of {'two jobs' if group[0].mode in two else 'one job alone'}: {word}{first[1:]}"
        said += [first, *others]
    return list(dict.fromkeys([*said, *_partial(record), _kind(ranking(record))]))


def _verdict(record: Comparison, order: list[ModeResult]) -> list[str]:
    best, reference = order[0], reference_of(record, order[0])
    if len(order) == 1:
        beside = any(trusted(result) for name, result in record.modes.items() if name != best.mode)
        only = f"Only {best.mode} is a mode to advise" if beside else f"Only {best.mode} was measured"
        return [f"{only}: there is nothing to compare it with."]
    if best.mode == reference:
        unsure = [r.mode for r in order[1:] if r.ratio is not None and r.ratio.verdict == "inconclusive"]
        if unsure:
            return [f"Inconclusive: {reference}, the reference, looks fastest by paired ratios, but this run "
                    f"cannot tell {and_of(unsure)} from it.", MORE]  # fmt: skip
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
        unproven = [r for r in order[1:] if r.ratio is not None and r.ratio.value < ratio.value]
        return [_gain(record, best, fastest=not unproven), *_perhaps(unproven, reference), *_close(record, order)]
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


def _gain(record: Comparison, best: ModeResult, *, fastest: bool) -> str:
    """What the winner saves. Of two jobs, against the same two one after the other."""
    assert best.ratio is not None
    low, high = best.ratio.ci95
    reference = reference_of(record, best)
    saved = format_percent(1 - best.ratio.value)
    span = f"95 % CI {format_percent(1 - high)} to {format_percent(1 - low)}"
    names = {mode.text: mode.name for mode in record.spec.modes}
    way = mode_info(names.get(best.mode, best.mode)).sharing
    if way is not None and way != mode_info(IN_SEQUENCE).sharing and names.get(reference) == IN_SEQUENCE:
        return (
            f"Two jobs {way} ({best.mode}) take {saved} less time per sample than one after the other ({reference}; "
            f"{span})."
        )
    shown = "fastest" if fastest else "faster"
    return f"{best.mode} is {shown}: {saved} less time per sample than {reference}, the reference ({span})."


def _perhaps(unproven: list[ModeResult], reference: str) -> list[str]:
    """Modes with a better estimate than the winner's that are not proven faster than the reference."""
    if not unproven:
        return []
    names = and_of([result.mode for result in unproven])
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
                f"{mode} takes {result.ratio.value:.3f} of {reference_of(record, result)}'s time per sample (95 % CI "
                f"{low:.3f} to {high:.3f}) and is no answer: it leaves gradients out, which changes their noise. "
                "xbench converge shows what that does to training."
            )
    return said


def _close(record: Comparison, order: list[ModeResult]) -> list[str]:
    """Who is as fast as the winner, and who cannot be told from it: by the ratio of their blocks to the winner's."""
    best = order[0]
    blocks = {mode.text: mode_values(record.spec, mode, record.samples) for mode in record.spec.modes}
    alike: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for result in order[1:]:
        assert best.ratio is not None
        if result.ratio is None or result.mode == reference_of(record, result):
            continue
        if result.ratio.value < best.ratio.value or not _met(blocks.get(result.mode, []), blocks.get(best.mode, [])):
            continue
        ratio = paired_ratio(blocks[result.mode], blocks[best.mode])
        if ratio.verdict == "slower":
            continue
        low, high = ratio.ci95
        kept = alike if ratio.verdict == "equivalent" else unsure
        kept[result.mode] = f"{ratio.value:.3f} [{low:.3f}, {high:.3f}]"
    said = []
    if alike:
        said.append(
            f"{and_of(list(alike))} {'is' if len(alike) == 1 else 'are'} as fast as {best.mode}, within "
            f"{format_percent(MARGIN, 0)}: {_beside(alike)}."
        )
    if unsure:
        said.append(f"This run cannot tell {and_of(list(unsure))} from {best.mode}: {_beside(unsure)}.")
    return said


def _met(ours: Sequence[tuple[int, int, float]], theirs: Sequence[tuple[int, int, float]]) -> bool:
    """Whether two modes were timed in a round in common."""
    return bool({block[:2] for block in ours} & {block[:2] for block in theirs})


def _beside(ratios: dict[str, str]) -> str:
    """'block by block it takes 1.010 [0.998, 1.022] of its time'."""
    takes = "it takes" if len(ratios) == 1 else "they take"
    return f"block by block {takes} {and_of(list(ratios.values()))} of its time"


def _kind(order: list[ModeResult]) -> str:
    labels = sorted({result.label for result in order})
    meaning = {
        "real": "real (real compute, real collectives over real links)",
        "emulated": "emulated (real compute, collectives delayed by the cost model)",
        "simulated": "simulated (from the model alone)",
    }
    if len(labels) == 1:
        return f"Times are {meaning[labels[0]]}; predictions and bounds are simulated."
    return "Times are " + and_of(
        [f"{label} for {and_of([r.mode for r in order if r.label == label])}" for label in labels]
    ) + "; predictions and bounds are simulated."  # fmt: skip
