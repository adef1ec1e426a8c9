"""Answer of a comparison in words, and the text of the cells of its tables.

The answer says which mode is fastest, by how much, and how sure that is.

Modes are ranked by their ratio to the reference, which is paired within launches. Their absolute times drift, so they
decide nothing. Modes with a ratio proven below 1 come first, so that a noisy mode with a better estimate does not hide
them. Two other modes are compared in the same way, by the ratio of their own blocks and never by overlapping intervals.
A mode that failed, or whose gradients differ from DDP's, is not ranked. Neither is a control, which trains no common
network.

A paired mode answers a different question from a one-job mode, so each has its own answer. Paired modes are compared
with `sequential`, the others with the reference of one job.
"""

from __future__ import annotations

from xbench.modes import IN_SEQUENCE, mode_info
from xbench.records import RANKS, Comparison, Estimate, Interval, Layer, ModeResult
from xbench.report.sentences import ratio_text
from xbench.stats.blocks import mode_values
from xbench.stats.compare import MARGIN, launches_needed, ratios_to
from xbench.text import and_of
from xbench.units import format_bytes, format_count, format_percent, format_seconds, format_signed_percent

MORE = "More launches may decide: --launches 8, or --until 2%."
MORE_ROUNDS = "More rounds (--rounds N) may decide it, for this launch alone."
PRECISION = 0.02
"""Precision of a ratio [share] that a sentence gives the number of launches for."""


def was_reached(record: Comparison) -> bool:
    """True if any mode was measured or failed. Otherwise the run ended before its first block, without a table."""
    return any(result.status != "not measured" for result in record.modes.values())


def is_control(name: str) -> bool:
    """True for modes that do not train what DDP trains, and for ranks without host tuning. None is recommended."""
    return not mode_info(name).equivalent_to_ddp


def controls(record: Comparison) -> set[str]:
    """Return the record's controls."""
    return {mode.text for mode in record.spec.modes if is_control(mode.name)}


def partial(record: Comparison) -> set[str]:
    """Return modes that train one network by gradients unlike DDP's. They are shown and never recommended."""
    return {mode.text for mode in record.spec.modes if mode_info(mode.name).gradients == "partial"}


def paired_modes(record: Comparison) -> set[str]:
    """Return the modes of the record in which two jobs share the devices."""
    return {mode.text for mode in record.spec.modes if mode.paired}


def jobs_of(record: Comparison, mode: str) -> int:
    """Return how many jobs share the devices under a mode."""
    return max(2, len(record.jobs)) if mode in paired_modes(record) else 1


def reference_of(record: Comparison, result: ModeResult) -> str:
    """Return the reference of a mode's ratio."""
    return result.ratio_to or record.reference


def references(record: Comparison) -> str:
    """Name the references of all ratios: 'ddp', or 'ddp (of two jobs sequential)' if references differ."""
    others = dict.fromkeys(result.ratio_to for result in record.modes.values() if result.ratio_to is not None)
    two = "one job" if record.reference in paired_modes(record) else "two jobs"
    return record.reference + (f" (of {two} {and_of(list(others))})" if others else "")


def ranking(record: Comparison) -> list[ModeResult]:
    """Return modes that may win, fastest first. Modes proven faster than their reference precede the others."""
    out = controls(record)

    def key(result: ModeResult) -> tuple[int, float]:
        if result.mode == reference_of(record, result):
            return 1, 1.0
        if result.ratio is not None:
            return 0 if result.ratio.verdict == "faster" else 1, result.ratio.value
        assert result.seconds_per_sample is not None  # .is_trusted checked it
        return 2, result.seconds_per_sample.median

    return sorted((r for name, r in record.modes.items() if name not in out and r.is_trusted), key=key)


def rankings(record: Comparison) -> list[list[ModeResult]]:
    """Return one ranking per question: for two jobs, if there are paired modes, and for one job."""
    order, two = ranking(record), paired_modes(record)
    groups = [[r for r in order if r.mode in two], [r for r in order if r.mode not in two]]
    return [group for group in groups if group]


def winners(record: Comparison) -> set[str]:
    """Return the winner of each question: the first mode, if it is proven faster than its reference."""
    first = [group[0] for group in rankings(record)]
    return {result.mode for result in first if result.ratio is not None and result.ratio.verdict == "faster"}


def answer(record: Comparison) -> list[str]:
    """Return one or two sentences per question, and one on the kind of numbers."""
    groups = rankings(record)
    if not groups:
        advised = " that may be advised" if any(result.is_trusted for result in record.modes.values()) else ""
        return [f"No mode{advised} was measured, so there is no answer."]
    two = paired_modes(record)
    said = []
    for group in groups:
        first, *others = _verdict(record, group)
        if len(groups) > 1 and not first.startswith("Two jobs "):
            word = (
                first[0].lower()
                if first.startswith(("Inconclusive", "No mode", "Only ", "The reference "))
                else first[0]
            )
            first = f"Of {'two jobs' if group[0].mode in two else 'one job alone'}: {word}{first[1:]}"
        said += [first, *others]
    return list(dict.fromkeys([*said, *_partial(record), _kind(ranking(record))]))


def _verdict(record: Comparison, order: list[ModeResult]) -> list[str]:
    best, reference = order[0], reference_of(record, order[0])
    if len(order) == 1:
        beside = any(result.is_trusted for name, result in record.modes.items() if name != best.mode)
        only = f"Only {best.mode} is a mode to advise" if beside else f"Only {best.mode} was measured"
        return [f"{only}: there is nothing to compare it with."]
    scope = scope_of(order)
    if reference in controls(record):
        return [f"The reference {reference} is no mode to advise, so this run does not say which mode is fastest. "
                f"{best.mode} has the smallest ratio to it.", *scope]  # fmt: skip
    if best.mode == reference:
        unsure, alike = _of_verdict(order, "inconclusive"), _of_verdict(order, "equivalent")
        if unsure:
            return [f"Inconclusive: {reference}, the reference, looks fastest by paired ratios, but this run "
                    f"cannot tell {and_of(unsure)} from it.", *more(record, order)]  # fmt: skip
        if alike:
            return [f"No mode is faster than {reference}, the reference; {and_of(alike)} "
                    f"{'is' if len(alike) == 1 else 'are'} equivalent.", *scope]  # fmt: skip
        return [f"{reference}, the reference, is fastest of {len(order)}: every other mode is slower.", *scope]
    ratio = best.ratio
    if ratio is None:
        return [f"{best.mode} had the shortest time per sample, but without {reference}, the reference, there is no "
                "ratio to judge it."]  # fmt: skip
    low, high = ratio.ci95
    span = f"95 % CI {low:.3f} to {high:.3f}" if ratio.interval else "of one pair"
    interval = f"ratio {ratio.value:.3f}, {span}"
    if ratio.verdict == "faster":
        unproven = [r.mode for r in order[1:] if r.ratio is not None and r.ratio.value < ratio.value]
        close, undecided = _close(record, order)
        said = [_gain(record, best, fastest=is_fastest(record, order)), *scope]
        if unproven:
            them = "it" if len(unproven) == 1 else "them"
            still = f"{and_of(unproven)} may be faster still, but this run cannot tell {them} from {reference}."
            said.append(still)
        return [*said, *close, *(more(record, order) if unproven or undecided else [])]
    if ratio.verdict == "equivalent":
        unsure = _of_verdict(order, "inconclusive")
        known = f"{best.mode} is equivalent to {reference}, the reference ({interval})"
        if unsure:
            return [f"Inconclusive: {known}, and this run cannot tell {and_of(unsure)} from {reference}.",
                    *more(record, order)]  # fmt: skip
        return [
            f"No mode is faster than {reference}, the reference, by an amount that matters; {best.mode} is equivalent "
            f"({interval}).",
            *scope,
        ]
    if ratio.verdict == "slower":
        return [f"{reference}, the reference, is fastest: next comes {best.mode} ({interval}).", *scope]
    return [
        f"Inconclusive: {best.mode} looks fastest by its paired ratio, but this run cannot tell it from "
        f"{reference}, the reference ({interval}).",
        *more(record, order),
    ]


def _of_verdict(order: list[ModeResult], verdict: str) -> list[str]:
    """Return the modes after the first whose ratio has that verdict."""
    return [result.mode for result in order[1:] if result.ratio is not None and result.ratio.verdict == verdict]


def is_fastest(record: Comparison, order: list[ModeResult]) -> bool:
    """True if the first mode of a question is proven faster than every other one."""
    best, reference = order[0], reference_of(record, order[0])
    if len(order) < 2 or best.ratio is None or reference in controls(record):
        return False
    if best.mode == reference:
        return len(_of_verdict(order, "slower")) == len(order) - 1
    if best.ratio.verdict != "faster" or any(r.ratio and r.ratio.value < best.ratio.value for r in order[1:]):
        return False
    return not _close(record, order)[0]


def scope_of(order: list[ModeResult]) -> list[str]:
    """Return the sentence of a run of one launch: another launch may differ. Empty if there were several."""
    if any(result.ratio is not None and result.ratio.launches == 1 for result in order):
        return ["This speaks of one launch; another may differ by a percent or two."]
    return []


def more(record: Comparison, order: list[ModeResult]) -> list[str]:
    """Return what would decide: the number of launches for ±2 %, if this run shows it.

    Ranks that another launcher started have one launch each time.
    """
    if record.spec.fabric.name == "cluster":
        return [*scope_of(order), MORE_ROUNDS]
    decided = ("reference", "slower", "equivalent")
    ratios = [r.ratio for r in order if r.ratio is not None and r.ratio.verdict not in decided]
    needed = [launches_needed(ratio, PRECISION) for ratio in ratios if ratio.launches is not None]
    if not needed or None in needed:
        return [*scope_of(order), MORE]
    launches = max(one for one in needed if one is not None)
    return [f"More launches may decide: ratios to ±{format_percent(PRECISION, 0)} need about {launches} launches of as "
            "many rounds here (--until 2%)."]  # fmt: skip


def _gain(record: Comparison, best: ModeResult, *, fastest: bool) -> str:
    """Describe the time that the winner saves. Two jobs at once are compared with the same two in sequence."""
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


def _partial(record: Comparison) -> list[str]:
    """Describe the times of modes with partial gradients, and why none of them is the answer."""
    said = []
    for mode in sorted(partial(record)):
        result = record.modes.get(mode)
        if (
            result is not None
            and result.is_trusted
            and result.ratio is not None
            and result.ratio.verdict != "reference"
        ):
            said.append(
                f"{mode} takes {ratio_cell(result)} of {reference_of(record, result)}'s time per sample and is no "
                "answer: it leaves gradients out, which changes their noise. xbench converge shows what that does to "
                "training."
            )
    return said


def _close(record: Comparison, order: list[ModeResult]) -> tuple[list[str], bool]:
    """Name modes that are as fast as the winner or cannot be told from it, by the ratios of blocks.

    Also return whether there is one that cannot be told from it. Modes that met the winner in no round are not named.
    """
    best = order[0]
    assert best.ratio is not None
    blocks = {mode.text: mode_values(record.spec, mode, record.samples) for mode in record.spec.modes}
    others = {result.mode: blocks.get(result.mode, []) for result in order[1:]}
    ratios = ratios_to(blocks.get(best.mode, []), others)
    alike: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for result in order[1:]:
        ratio = ratios.get(result.mode)
        if ratio is None or result.ratio is None or result.mode == reference_of(record, result):
            continue
        if result.ratio.value < best.ratio.value or ratio.verdict == "slower":
            continue
        kept = alike if ratio.verdict == "equivalent" else unsure
        kept[result.mode] = ratio_text(ratio.value, ratio.ci95)
    said = []
    if alike:
        said.append(
            f"{and_of(list(alike))} {'is' if len(alike) == 1 else 'are'} as fast as {best.mode}, within "
            f"{format_percent(MARGIN, 0)}: {_beside(alike)}."
        )
    if unsure:
        said.append(f"This run cannot tell {and_of(list(unsure))} from {best.mode}: {_beside(unsure)}.")
    return said, bool(unsure)


def _beside(ratios: dict[str, str]) -> str:
    """Format ratios as 'block by block it takes 1.010 [0.998, 1.022] of its time'."""
    takes = "it takes" if len(ratios) == 1 else "they take"
    return f"block by block {takes} {and_of(list(ratios.values()))} of its time"


def _kind(order: list[ModeResult]) -> str:
    labels = sorted({result.label for result in order})
    meaning = {
        "real": "real (real compute, real collectives over real links)",
        "emulated": "emulated (real compute, collectives delayed by the cost model)",
        "simulated": "simulated (from the model alone)",
    }
    said = [f"{label} for {and_of([r.mode for r in order if r.label == label])}" for label in labels]
    what = meaning[labels[0]] if len(labels) == 1 else and_of(said)
    return f"Times are {what}; predictions and bounds are simulated."


def verdict(record: Comparison, result: ModeResult) -> str:
    """Return the verdict in one word. Colour only repeats it."""
    if result.status == "failed" or (result.parity is not None and not result.parity.ok):
        return "FAILED"
    if result.status == "not measured":
        return "not measured"
    if result.mode == reference_of(record, result):
        return "reference"
    if result.mode in partial(record):
        return "partial"
    if result.mode in controls(record):
        return "control"
    return result.ratio.verdict if result.ratio is not None else "not measured" if not result.is_trusted else "no ratio"


def ratio_cell(result: ModeResult) -> str:
    """Format a ratio as '0.891 [0.872, 0.910]'. The reference's own ratio is 1, without an interval."""
    if not result.is_trusted or result.ratio is None:
        return "–"
    if result.ratio.verdict == "reference":
        return ratio_text(result.ratio.value, None)
    return ratio_text(result.ratio.value, result.ratio.interval) + (" (1 pair)" if not result.ratio.interval else "")


def span_cell(estimate: Estimate | None, between: str = " – ") -> str:
    """Format an interval as '1.23 s – 1.25 s', 'one sample' for a single value, and '–' for None."""
    if estimate is None:
        return "–"
    return between.join(map(format_seconds, estimate.interval)) if estimate.interval is not None else "one sample"


def parity_cell(result: ModeResult) -> str:
    """Format a parity check: 'yes' with any difference from DDP, 'not shown', 'FAILED', or '–' without a check."""
    parity = result.parity
    if parity is None:
        return "–"
    if not parity.ok:
        return "FAILED"
    if not parity.shown:
        return "not shown"
    if parity.reference == RANKS:
        return "no (ranks agree)"
    return f"yes (±{parity.max_relative_difference:.0e})" if parity.max_relative_difference else "yes"


def removed_cell(share: float | None, ci95: Interval | None = None) -> str:
    """Format a share and its interval: '62 % [55, 70]'; None becomes '–', what is no share '< 0 %' or '> 100 %'."""
    if share is None:
        return "–"
    value = "< 0 %" if share < 0 else "> 100 %" if share > 1 else format_percent(share, 0)
    return value if ci95 is None else f"{value} [{100 * ci95[0]:.0f}, {100 * ci95[1]:.0f}]"


def layer_figures(layer: Layer) -> list[str]:
    """Format the parameters, gradient, forward, backward, ready and share of a layer."""
    times_s = (layer.forward_s, layer.backward_s, layer.ready_s)
    sizes = [format_count(layer.parameters), format_bytes(layer.grad_bytes)]
    return [*sizes, *map(format_seconds, times_s), format_percent(layer.share)]


def step_cells(result: ModeResult) -> dict[str, str]:
    """Format where a mode's step goes: measured, exposed, removed, predicted, and whether it trains what DDP trains.

    A failed mode has only the cells that come from its plan and its parity check.
    """
    fine = result.is_trusted
    return {
        "step": format_seconds(result.step_s.median) if fine and result.step_s else "–",
        "exposed": format_seconds(result.exposed_s) if fine else "–",
        "removed": removed_cell(result.removed_share, result.removed_ci95) if fine else "–",
        "predicted": format_seconds(result.predicted_step_s),
        "error": format_signed_percent(result.prediction_error) if fine else "–",
        "buckets": str(len(result.plan.buckets)) if result.plan else "–",
        "memory": format_bytes(result.memory.peak_bytes) if fine and result.memory else "–",
        "same network": parity_cell(result),
        "label": result.label if fine else "–",
    }


def shown_cells(record: Comparison, result: ModeResult) -> dict[str, str]:
    """Return `step_cells`, without memory if no mode of the record has it."""
    cells = step_cells(result)
    if not memory_rows(record):
        del cells["memory"]
    return cells


def with_turns(result: ModeResult) -> str:
    """Return the mode's name with the pattern of its turns."""
    return result.mode + (f" (turns {result.pattern})" if result.pattern else "")


def memory_rows(record: Comparison) -> list[dict[str, str]]:
    """Return a row for each timed mode whose memory is known: its name, a rank's peak, and its four parts."""
    return [
        {
            "mode": result.mode,
            "peak": format_bytes(memory.peak_bytes) + (" (sum)" if memory.by == "counted" else ""),
            "parameters": format_bytes(memory.parameter_bytes),
            "gradients": format_bytes(memory.gradient_bytes),
            "optimizer": format_bytes(memory.optimizer_bytes),
            "activations": format_bytes(memory.activation_bytes),
        }
        for result in record.modes.values()
        if result.is_trusted and (memory := result.memory) is not None
    ]
