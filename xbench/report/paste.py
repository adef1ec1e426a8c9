"""What to do with a comparison's answer: one sentence, and where there are any, the lines to paste.

Only a mode that was found faster is worth a change. A plan is written out, bucket by bucket, so that what is pasted
needs no other file.
"""

from __future__ import annotations

from typing import NamedTuple

from xbench.planning.plans import DDP_REDUCER, NEXT_FORWARD, bucket_caps_mib
from xbench.records import Comparison, ModeResult
from xbench.report.answer import rankings, reference_of
from xbench.report.snippets import attach_snippet, ddp_snippet, is_schedule, quoted


class Paste(NamedTuple):
    """What to change in a training script. `code` is None where nothing is, or where no line does it."""

    told: str
    code: str | None = None


def what_to_paste(record: Comparison) -> Paste | None:
    """What follows from the answer; None where nothing was measured or nothing to compare with."""
    questions = rankings(record)
    order = questions[-1] if questions else []  # of one job, where any mode is
    if len(order) < 2:
        return None
    best, reference = order[0], reference_of(record, order[0])
    if best.ratio is not None and best.ratio.verdict == "inconclusive":
        return Paste(f"Stay with {reference} until more launches decide.")
    if best.ratio is None or best.ratio.verdict != "faster":
        return Paste(f"Nothing to change: stay with {reference}.")
    spec = next((mode for mode in record.spec.modes if mode.text == best.mode), None)
    if spec is not None and spec.paired:
        return Paste(f"Nothing to paste: {best.mode} is a way in which two jobs share devices, not a line of one job.")
    carrier = spec.name if spec is not None else best.mode
    schedule = best.plan.carrier or best.plan.mode if best.plan is not None else carrier
    if not is_schedule(schedule):
        return Paste(f"Nothing to paste: {schedule!r} is no schedule of this xbench.")
    if best.plan is None:
        return Paste(f"Use xbench.attach(model, optimizer, schedule={quoted(carrier)}): it takes no plan.")
    if carrier in DDP_REDUCER:
        caps = bucket_caps_mib(best.plan)
        return Paste(f"Give DistributedDataParallel the buckets of {best.mode}:",
                     ddp_snippet(best.plan, caps, _measured(best, reference), record.fabric,
                                 tuned=record.spec.tunes_ranks))  # fmt: skip
    put_off = (best.plan.carrier or carrier) in NEXT_FORWARD
    later = " It updates parameters in the next forward pass: call handle.finish() before anything else reads them."
    return Paste(
        f"Put {best.mode} under the training loop.{later if put_off else ''}",
        attach_snippet(best.plan, told=_measured(best, reference), fabric=record.fabric, tuned=record.spec.tunes_ranks),
    )


def _measured(best: ModeResult, reference: str) -> str:
    assert best.plan is not None  # its caller asked
    assert best.ratio is not None
    low, high = best.ratio.ci95
    count = "1 bucket" if len(best.plan.buckets) == 1 else f"{len(best.plan.buckets)} buckets"
    return f"{count}, {best.ratio.value:.3f} [{low:.3f}, {high:.3f}] of {reference}'s time per sample ({best.label})"
