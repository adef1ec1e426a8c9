"""Sentences on a profile's instrumented step."""

from __future__ import annotations

from xbench.records import StepTimes
from xbench.report.sentences import seconds_text
from xbench.text import counted
from xbench.units import format_seconds, format_signed_percent

MEDIANS_APART = 0.02
"""Share above which the difference between the medians with and without instruments is explained."""


def parts_line(step: StepTimes) -> str:
    """Describe the instrumented step and its parts."""
    return (
        f"With instruments it takes {seconds_text(step.step_s, step.step_ci95)}: {_input(step)}{_earlier(step)}forward "
        f"{format_seconds(step.forward_s)}, backward {format_seconds(step.backward_s)}, optimizer "
        f"{format_seconds(step.optimizer_s)}."
    )


def _input(step: StepTimes) -> str:
    """Return the wait for a loader, which is the first part."""
    return f"input {format_seconds(step.input_s)}, " if step.input_s else ""


def _earlier(step: StepTimes) -> str:
    """Return the part of all micro-steps but the last, which the others are of."""
    if step.micro_steps == 1:
        return ""
    return f"{counted(step.micro_steps - 1, 'micro-step')} {format_seconds(step.accumulate_s)}, then "


def instruments_line(step: StepTimes) -> str:
    """Describe the cost of the instruments, from paired steps, and any disagreement of the two unpaired medians."""
    cost, low, high = map(format_signed_percent, (step.overhead_ratio, *step.overhead_ci95))
    text = f"Instruments cost {cost} [{low}, {high}], by pairs of neighbouring steps."
    apart = step.step_s / step.uninstrumented_step_s - 1
    if abs(apart - step.overhead_ratio) > MEDIANS_APART:
        text += (
            f" The two medians differ by {format_signed_percent(apart)}: they are not of pairs, and the machine's "
            "speed may have changed in between."
        )
    return text
