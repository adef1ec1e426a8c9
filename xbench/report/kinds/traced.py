"""View of a profile that came from profiler traces."""

from __future__ import annotations

import shlex

from rich.console import Console

from xbench.records import Profile, StepTimes
from xbench.records.traced import Traced
from xbench.report.advice import Advice
from xbench.report.console import as_text, say
from xbench.report.kinds.profile import ProfileView
from xbench.report.page.model import Block, Section, Sentences, Table, columns
from xbench.report.view import Detail
from xbench.text import counted
from xbench.units import format_bytes, format_percent, format_seconds, format_signed_percent

CLOSE = 0.05
"""A prediction of the traced step further off than this is no basis for others."""


class TracedView(ProfileView):
    """One traced run: its step, what of it is exposed, and what any schedule could remove."""

    name = "Traced run"

    def headline(self) -> list[str]:
        return [*answer(self.record), *(one.told for one in self.advice() if one.command is None)]

    def answer_before_plans(self) -> list[str]:
        return answer(self.record)

    def step_sentences(self, step: StepTimes) -> list[str]:
        return step_lines(self.record)

    def step_told(self, step: StepTimes) -> str:
        return " ".join(step_lines(self.record))

    def step_table(self, step: StepTimes) -> Table:
        parts = (
            ("forward", step.forward_s),
            ("backward", step.backward_s),
            ("optimizer and all else", step.optimizer_s),
            ("step without its wait for gradients", step.uninstrumented_step_s),
            ("step as traced", step.step_s),
        )
        rows = [[name, format_seconds(time_s)] for name, time_s in parts]
        title = f"Where the traced step goes ({self.record.fabric.label})"
        return Table(title, columns(("part", "time"), ("part",)), rows, opened=True)

    def advice(self, path: str | None = None) -> list[Advice]:
        """Return the recommendation, and the command that shows the buckets: nothing here can be run to prove it."""
        return [
            *super().advice(path),
            Advice("For the buckets, other links and what to paste:", f"xbench plan {shlex.quote(path or self.place)}"),
        ]

    def draw(self, console: Console, detail: Detail) -> None:
        super().draw(console, detail)
        if detail.verbose and self.record.traced is not None:
            table = bucket_table(self.record.traced)
            say(console, f"\n{table.title}")
            console.print(as_text(table))

    def markdown(self) -> list[str]:
        title, *rest = super().markdown()
        return [title, *answer(self.record), *rest]

    def sections(self) -> list[Section]:
        traced = self.record.traced
        assert traced is not None
        blocks: list[Block] = [Sentences(step_lines(self.record)), bucket_table(traced)]
        return [Section("traced", "The traced step", blocks), *super().sections()]


def answer(record: Profile) -> list[str]:
    """Say what the traced step takes, what of it is exposed, and how much of that any schedule could remove."""
    traced, step = record.traced, record.step
    if traced is None or step is None:
        return []
    whole_s = step.step_s
    exposed = (
        f"In {_share(traced.exposed_s, whole_s)} of it a collective ran and nothing computed (exposed communication)."
    )
    waited = f"The step waited for its gradients during {_share(traced.waited_s, whole_s)}."
    found = [_the_step(record, traced), f"{exposed} {waited}"]
    removable_s = removable(record)
    if removable_s is not None:
        found.append(f"No schedule can remove more than {_share(removable_s, whole_s)} (simulated).")
    return found


def removable(record: Profile) -> float | None:
    """Seconds by which the traced step is above the bound of any schedule; None without bounds."""
    if record.traced is None or record.step is None or record.bounds is None:
        return None
    return max(0.0, record.step.step_s - record.bounds.overlap_bound_s)


def fidelity(record: Profile) -> str | None:
    """Say how close the model comes to the traced step itself; None where the run was not DDP's."""
    traced, step = record.traced, record.step
    if traced is None or step is None or traced.collective != "all_reduce" or "ddp" not in record.plans:
        return None
    gap = record.plans["ddp"].predicted_step_s / step.step_s - 1
    sure = "" if abs(gap) <= CLOSE else ": too far off to trust its other predictions"
    return f"For the traced buckets the model's step is {format_signed_percent(gap)} off the traced one{sure}."


def step_lines(record: Profile) -> list[str]:
    """Describe the parts of the traced step."""
    traced, step = record.traced, record.step
    if traced is None or step is None:
        return []
    parts = (
        f"Without waiting it takes {format_seconds(step.uninstrumented_step_s)} (real): forward "
        f"{format_seconds(step.forward_s)}, backward {format_seconds(step.backward_s)}, and "
        f"{format_seconds(step.optimizer_s)} for the optimizer and all else."
    )
    told = fidelity(record)
    slower = traced.compute_slowdown
    beside = f"Kernels beside a collective took {slower:.2f} times as long as alone." if slower is not None else None
    return [line for line in (parts, told, beside) if line is not None]


def bucket_table(traced: Traced) -> Table:
    """The collectives of a step: after which gradient each was launched, its bytes, and its time."""
    rows = [
        [str(number), str(one.gradients), format_bytes(one.nbytes), format_seconds(one.launched_s),
         format_seconds(one.duration_s)]
        for number, one in enumerate(traced.buckets, start=1)
    ]  # fmt: skip
    note = "launched: since the first gradient, by the host; ran: waiting for peers included, shortest rank; medians."
    title = f"Collectives of a traced step ({traced.collective}, real)"
    return Table(title, columns(["#", "after gradient", "bytes", "launched", "ran"]), rows, note, opened=True)


def _the_step(record: Profile, traced: Traced) -> str:
    assert record.step is not None
    low, high = record.step.step_ci95
    steps = counted(len(traced.periods_s), "step")
    return (
        f"The traced step takes {format_seconds(record.step.step_s)} [{format_seconds(low)}, {format_seconds(high)}] "
        f"(real, {steps} of {counted(traced.ranks, 'rank')} of {record.fabric.world_size})."
    )


def _share(seconds: float, whole_s: float) -> str:
    return f"{format_seconds(seconds)} ({format_percent(seconds / whole_s)})"
