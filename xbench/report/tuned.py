"""What `xbench tune` says: the answer first, in one sentence; what it rests on; and last the file and lines to paste.

The sentence names the ratio to DDP with its 95 % interval, and says as plainly that DDP is best already, or that the
minutes were too few. `render_tuned` shows a kept file again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from xbench.planning.plans import DDP_REDUCER
from xbench.records import Comparison, Label, Plan, Ratio, Tuned
from xbench.report import lines
from xbench.report.advice import advice
from xbench.report.drawing import fact, indented, say, say_next, spare_columns, titled_table
from xbench.report.snippets import attach_snippet, ddp_snippet, is_schedule
from xbench.stats.compare import verdict
from xbench.stats.tuning import Choice
from xbench.units import format_percent

PLAIN_DDP = """\
# nothing to change: DistributedDataParallel's default is what was best
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model)
"""


def told(choice: Choice, margin: float, title: str, label: Label, *, minutes: float) -> list[str]:
    """The answer in one to three sentences: of tuning `title` for `minutes`, for a gain of at least `margin`."""
    least = _percent(margin)
    if choice.best is None:
        return ["No answer: no candidate was timed beside DDP."]
    ratio = choice.ratios[choice.best]
    measured = f"Times are {label}; predictions and bounds are simulated."
    if choice.kind == "reference":
        return [
            f"DDP's default is already best here: nothing tried is faster by more than {least}; the nearest, "
            f"{choice.best}, takes {_ratio(ratio)} of its time.",
            measured,
        ]
    if choice.winner is None:
        return [
            f"No clear answer in {_minutes(minutes)}: {choice.best} takes {_ratio(ratio)} of DDP's time, and a gain of "
            f"{least} is neither shown nor ruled out. Stay with DDP until it is.",
            "More time may decide: give --minutes more.",
            measured,
        ]
    first = f"{choice.best} trains {title} in {_ratio(ratio)} of DDP's time: {_percent(1 - ratio.value)} less a step"
    if choice.kind == "faster":
        sentences = [f"{first}."]
    else:
        sentences = [f"{first}, though {_minutes(minutes)} did not show that it is {least} at least."]
    if choice.close:
        sentences.append(f"This run cannot tell {_and(choice.close)} from it.")
    if choice.kind == "faster" and not choice.settled:
        sentences.append(f"{_minutes(minutes)} ended before this was settled: more would make it surer.")
    return [*sentences, measured]


def judged(record: Comparison, margin: float) -> Comparison:
    """The record with its verdicts given by this margin in place of a comparison's own."""
    modes = {
        name: mode.model_copy(
            update={
                "ratio": mode.ratio.model_copy(update={"verdict": verdict(mode.ratio.value, mode.ratio.ci95, margin)})
            }
        )
        if mode.ratio is not None and mode.ratio.verdict != "reference"
        else mode
        for name, mode in record.modes.items()
    }
    return record.model_copy(update={"modes": modes})


def snippet(tuned: Tuned, path: str) -> str:
    """What to paste: DDP with its argument, or `xbench.attach` with the kept file at `path`."""
    if tuned.schedule == tuned.reference or tuned.buckets is None or tuned.ratio is None:
        return PLAIN_DDP
    if not is_schedule(tuned.schedule):
        return "# nothing to paste: this xbench does not have the schedule that was best\n"
    plan = _plan(tuned)
    measured = f"{_count(len(tuned.buckets))}, {_ratio(tuned.ratio)} of DDP's time per sample ({tuned.label})"
    if tuned.schedule in DDP_REDUCER and tuned.bucket_cap_mb_list is not None:
        text = ddp_snippet(plan, tuned.bucket_cap_mb_list, measured, tuned.fabric, tuned=bool(tuned.host_tuning))
        return (
            text.replace("    model,\n", "    model,\n    find_unused_parameters=True,\n")
            if tuned.unused_parameters
            else text
        )
    return attach_snippet(plan, path, measured, tuned.fabric, tuned=bool(tuned.host_tuning))


def kept_sentence(record: Tuned) -> str:
    """What was found best, in one sentence."""
    title = record.workload.title
    if record.ratio is None:
        return f"DDP's default is best for {title}: nothing tried is faster by more than {_percent(record.margin)}."
    return (
        f"{record.schedule} trains {title} in {_ratio(record.ratio)} of DDP's time: "
        f"{_percent(1 - record.ratio.value)} less a step."
    )


def render_tuned(record: Tuned, console: Console) -> None:
    """The kept file: what to use, what was tried, and what it rests on."""
    say(console, kept_sentence(record), "bold")
    console.print()
    table = titled_table(f"Time per sample over that of {record.reference} ({record.label})",
                         ("mode", "left"), ("ratio [95 % CI]", "right"), ("verdict", "left"))  # fmt: skip
    for mode, ratio in record.tried.items():
        table.add_row(Text(mode), _ratio(ratio), Text(ratio.verdict))
    if spare_columns(console, table) >= 0:
        console.print(table)
    else:
        say(console, str(table.title), "italic")
        for mode, ratio in record.tried.items():
            indented(console, f"{mode} {_ratio(ratio)}: {ratio.verdict}")
    say_next(console, advice(record))
    if record.buckets is not None:
        carrier = f", carried by {record.carrier}" if record.carrier is not None else ""
        fact(console, "buckets", _count(len(record.buckets)) + carrier)
    fact(console, "workload", lines.workload_line(record.workload))
    fact(console, "fabric", lines.fabric_line(record.fabric))
    fact(console, "made by", f"xbench {record.xbench}, torch {record.torch}: {record.command}")
    fact(console, "rests on", record.record)


def _plan(tuned: Tuned) -> Plan:
    assert tuned.buckets is not None  # its caller asked
    return Plan(
        mode=tuned.schedule,
        buckets=tuned.buckets,
        bucket_bytes=tuned.bucket_bytes or [],
        predicted_step_s=0.0,
        predicted_exposed_s=0.0,
        parts=tuned.parts,
        carrier=tuned.carrier,
    )


def _ratio(ratio: Ratio) -> str:
    low, high = ratio.ci95
    return f"{ratio.value:.3f} [{low:.3f}, {high:.3f}]"


def _percent(share: float) -> str:
    """'10 %', '1.5 %': one digit below ten, and no more than needed."""
    return format_percent(share, 1).replace(".0 ", " ")


def _minutes(minutes: float) -> str:
    return "1 minute" if minutes == 1 else f"{minutes:g} minutes"


def _count(buckets: int) -> str:
    return "1 bucket" if buckets == 1 else f"{buckets} buckets"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
