"""View of a record: the parts that a format may show of any kind.

Each kind of record has one view, in `kinds`. A format reads the parts that it shows and does not depend on the kind.
Only the view holds the text, figures and cases of its kind. `MeasuredView` holds what a comparison and a profile share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

from rich.console import Console

from xbench import records
from xbench.environment import fingerprint, must_match
from xbench.report import markup, sentences
from xbench.report.advice import RECORD, Advice
from xbench.report.answer import layer_figures
from xbench.report.charts.trace import Process
from xbench.report.console import fact, say
from xbench.report.page.model import Badge, Block, Cell, Code, Facts, Page, Section, Sentences, Table, columns
from xbench.text import and_of, counted
from xbench.units import format_bytes

MARKDOWN_LAYERS = 20
"""Most layers in Markdown."""

R = TypeVar("R", bound=records.AnyRecord)
M = TypeVar("M", bound=records.Comparison | records.Profile)

Row = dict[str, Any]
Rows = list[Row]
Status = Literal["passed", "failed", "skipped", "error"]


@dataclass(frozen=True)
class Case:
    """One JUnit case: its address `group` and `name`, a `message` of one sentence, and a `text` of any length.

    `time_s` is the quantity of the case, a step for example, and not the time of the measurement. None is shown as 0.
    """

    group: str
    name: str
    time_s: float | None = None
    status: Status = "passed"
    message: str = ""
    text: str = ""


@dataclass(frozen=True)
class Detail:
    """Amount of detail on a terminal. `verbose` shows every table and note."""

    verbose: bool = False
    all_layers: bool = False


@dataclass(frozen=True)
class StepTrace:
    """Recorded and predicted steps to draw, notes on them, and facts of the run."""

    processes: Sequence[Process]
    notes: Sequence[str]
    facts: dict[str, str]


def ends(name: str, interval: tuple[float, float] | None, unit: str = "") -> Row:
    """Return the columns for an interval in a tidy table: 'step_low_s' and 'step_high_s' for 'step' in '_s'."""
    low, high = interval if interval is not None else (None, None)
    return {f"{name}_low{unit}": low, f"{name}_high{unit}": high}


def fields(one: object, *names: str) -> Row:
    """Return columns of a tidy table with the names and values of attributes."""
    return {name: getattr(one, name) for name in names}


class View(ABC, Generic[R]):
    """View of one record, for any format."""

    name: ClassVar[str]
    """Name of the kind on its page."""
    cut_short: ClassVar[str] = "it ended before everything was measured"
    """Reason given for an incomplete record that has no error."""
    aftermath: ClassVar[str] = " What follows is what had been measured by then."
    keeps_empty_sections: ClassVar[bool] = False

    def __init__(self, record: R, place: str = RECORD) -> None:
        """Make the view of a record; `place` is the record's path in suggested commands."""
        self.record = record
        self.place = place

    @abstractmethod
    def title(self) -> str:
        """Title of the page."""

    @abstractmethod
    def headline(self) -> list[str]:
        """Return the answer. Its first sentence is the largest text of a report."""

    @abstractmethod
    def labels(self) -> Sequence[records.Label]:
        """Return the labels of the figures: real, emulated or simulated."""

    @abstractmethod
    def sections(self) -> list[Section]:
        """Return the sections of the page, without the common ones at its end."""

    @abstractmethod
    def tables(self) -> dict[str, Rows]:
        """Return tidy tables by name, the main one first. Rows of a table share columns; None is a missing value."""

    @abstractmethod
    def cases(self, strict: bool) -> list[Case]:
        """Return the JUnit cases, modes in their order. With `strict`, a case that was not judged is a failure."""

    @abstractmethod
    def draw(self, console: Console, detail: Detail) -> None:
        """Print the record on a terminal."""

    @abstractmethod
    def markdown(self) -> list[str]:
        """Return the parts of a Markdown summary, without the command at its end. Empty parts are omitted."""

    def subtitle(self) -> str:
        """Say when and on which machine the record was made."""
        where = self.environment()
        return sentences.made_at(self.record.created) + (f" · {where.hostname}" if where is not None else "")

    def incomplete(self) -> str | None:
        """Say that the run ended early, and why; None for a complete one."""
        if self.record.complete:
            return None
        why = getattr(self.record, "error", None) or self.cut_short
        return f"INCOMPLETE: {why.rstrip('.')}.{self.aftermath}"

    def draw_incomplete(self, console: Console) -> bool:
        """Print that the run ended early, if it did; return whether anything was printed."""
        note = self.incomplete()
        if note is not None:
            say(console, note, "bold yellow")
        return note is not None

    def draw_top(self, console: Console) -> None:
        """Print that the run ended early or that modes failed, and a blank line, if so."""
        if self.draw_incomplete(console):
            console.print()

    def failures(self) -> list[str]:
        """Return one sentence for each part that failed."""
        return []

    def advice(self) -> list[Advice]:
        """Return the advice, the most important first."""
        return []

    def paste(self) -> Sequence[Block]:
        """Return the lines to paste, for the top of the page."""
        return []

    def trace(self) -> StepTrace:
        """Return the steps to draw; none by default."""
        return StepTrace([], [], {})

    def warnings(self) -> list[str]:
        """Return sentences on disturbances of the run."""
        found: list[str] = getattr(self.record, "warnings", [])
        return found

    def environment(self) -> records.Environment | None:
        """Return the machine of the record; None if nothing was measured."""
        where: records.Environment | None = getattr(self.record, "environment", None)
        return where

    def commands(self) -> list[str]:
        """Return the commands that make the record again."""
        return [self.record.command]

    def properties(self) -> dict[str, str]:
        """Return the facts for each JUnit suite."""
        where = self.environment()
        return {"machine": sentences.environment_line(where)} if where is not None else {}

    def environment_sections(self) -> list[Section]:
        """Return the section about the machine, if there is one."""
        where = self.environment()
        return [environment_section(where)] if where is not None else []

    def ending(self) -> list[Section]:
        """Return the sections at the end of every page."""
        return [*self.environment_sections(), warnings_section(self.warnings()), command_section(*self.commands())]

    def page(self) -> Page:
        """Return the whole page, before it becomes HTML."""
        return Page(
            kind=self.name,
            warnings=len(self.warnings()),
            title=self.title(),
            subtitle=self.subtitle(),
            labels=self.labels(),
            answer=self.answer(),
            incomplete=self.incomplete(),
            failures=self.failures(),
            paste=self.paste(),
            sections=[one for one in (*self.sections(), *self.ending()) if one.blocks or self.keeps_empty_sections],
        )

    def answer(self) -> list[str]:
        """Return the headline of the page."""
        return self.headline()

    def markdown_command(self) -> str:
        """Return the folded command at the end of a Markdown summary."""
        return markup.details("Command", markup.fenced(self.record.command, "sh"))


class MeasuredView(View[M]):
    """View of a record of real or emulated steps."""

    def jobs(self) -> Sequence[records.Job | records.Profile]:
        """Return the jobs, each with a workload and layers."""
        return self.record.profiled

    def contention(self) -> records.Contention | None:
        """Return how collectives and computation slow each other; None if that was not measured."""
        jobs = self.jobs()
        return jobs[0].contention if jobs else None

    def stragglers(self) -> list[str]:
        """Return sentences on ranks and links that hold the others back."""
        return list(dict.fromkeys(line for job in self.jobs() for line in sentences.straggler_lines(job.stragglers)))

    def effort(self) -> str | None:
        """Describe how often each thing was repeated; None if the record does not say."""
        return None

    def hidden_tables(self) -> list[str]:
        """Name the tables that a terminal shows only with -v."""
        return []

    def link_facts(self) -> list[tuple[str, str]]:
        """Return facts on the connection between the ranks, and on the cost of collectives."""
        record = self.record
        told = {
            "host tuning": sentences.tuning_line(record.spec),
            "emulated": None if record.emulated is None else sentences.emulated_line(record.emulated),
            "cost model": None if record.cost_model is None else sentences.cost_line(record.cost_model),
            "contention": sentences.contention_line(self.contention()),
            "launches": sentences.launches_line(self.contention()),
            "left out": None if record.cost_model is None else sentences.left_out_line(record.spec, self.contention()),
        }
        return [
            *sentences.fabric_pairs(record.fabric),
            *((name, said) for name, said in told.items() if said is not None),
        ]

    def draw_bottom(self, console: Console, *, verbose: bool) -> None:
        """Print fabric, cost model, effort, machine and warnings; with `verbose`, also the usual setup of ranks."""
        record = self.record
        for name, said in self.link_facts():
            usual = sentences.is_usual(said) or (name == "host tuning" and record.spec.host_tuning)
            if verbose or not usual:
                fact(console, name.removeprefix("host "), said)
        effort = self.effort()
        if effort is not None:
            fact(console, "effort", effort)
        fact(console, "machine", sentences.environment_line(record.environment))
        for warning in record.warnings:
            fact(console, "warning", warning, "yellow")
        setup = record.spec.tunes_ranks or any(map(sentences.is_usual, record.fabric.notes))
        hidden = [*self.hidden_tables(), *(["how threads and memory were set up"] if setup else [])]
        if hidden and not verbose:
            fact(console, "-v", f"shows {and_of(hidden)} too")

    def markdown_title(self, workload: str) -> str:
        """Return a title with workload, fabric and label."""
        fabric = self.record.fabric
        return f"### {markup.plain(workload)} on {markup.code(fabric.spec)} ({fabric.label})"

    def markdown_layers(self) -> list[str]:
        """Return the layers of every job, folded."""
        return [_layers(job.workload.title, job.layers, self.record.fabric.label) for job in self.jobs()]

    def markdown_how(self) -> str:
        """Return workload, bounds, fabric, cost model, effort and machine, folded."""
        record, effort = self.record, self.effort()
        told = [sentences.workload_pair(job.workload) for job in self.jobs()]
        if record.bounds is not None:
            told.append(("bounds", sentences.bounds_line(record.bounds, record.modes)))
        told += [(name or "fabric", said) for name, said in self.link_facts() if name != "contention"]
        if effort is not None:
            told.append(("effort", effort))
        told.append(("machine", sentences.environment_line(record.environment)))
        return markup.details("Environment", markup.facts(list(dict.fromkeys(told))))

    def setting(self, label: records.Label) -> Row:
        """Return the columns at the start of every tidy table."""
        record, fabric = self.record, self.record.fabric
        made = fields(record, "created", "complete")
        return {"label": label, **made, "fabric": fabric.spec, "backend": fabric.backend, "ranks": fabric.world_size}

    def layer_rows(self) -> Rows:
        """Return the tidy table of layers in gradient-ready order; 1 is nearest the loss."""
        return [
            {
                **self.setting(self.record.fabric.label),
                "job": number,
                "workload": job.workload.title,
                "ready_order": place,
                "layer": layer.name,
                "kind": layer.kind,
                "tensors": len(layer.tensors),
                **fields(layer, "parameters", "grad_bytes", "forward_s", "backward_s", "ready_s"),
                "share_of_step": layer.share,
            }
            for number, job in enumerate(self.jobs())
            for place, layer in enumerate(job.layers, start=1)
        ]

    def trace_of(self, processes: Sequence[Process], notes: Sequence[str]) -> StepTrace:
        """Return the trace with facts of the run."""
        record, early = self.record, self.incomplete()
        machine, fabric = sentences.environment_line(record.environment), sentences.fabric_line(record.fabric)
        facts = {"machine": machine, "fabric": fabric, **({"incomplete": early} if early else {})}
        return StepTrace(processes, notes, facts)


def longest_layers(layers: Sequence[records.Layer], most: int) -> list[tuple[int, records.Layer]]:
    """Return at most `most` layers that take longest, with their numbers in gradient-ready order."""
    longest = sorted(enumerate(layers, start=1), key=lambda pair: -pair[1].share)[:most]
    return sorted(longest, key=lambda pair: pair[0])


def _layers(title: str, layers: Sequence[records.Layer], label: str) -> str:
    if not layers:
        return ""
    shown = longest_layers(layers, MARKDOWN_LAYERS)
    rows = [
        [str(number), markup.code(layer.name), markup.code(layer.kind), *layer_figures(layer)]
        for number, layer in shown
    ]
    headings = ["ready", "layer", "kind", "parameters", "gradient", "forward", "backward", "ready at", "share"]
    hidden = len(layers) - len(shown)
    rest = f"\n\n{'1 shorter one is' if hidden == 1 else f'{hidden} shorter ones are'} left out." if hidden else ""
    count = f"{len(shown)} of {counted(len(layers), 'layer')}" if rest else f"{counted(len(layers), 'layer')}"
    return markup.details(
        f"{count} of {title} in gradient-ready order ({label}, without communication)",
        markup.table(headings, rows, left=3) + rest,
    )


def environment_section(environment: records.Environment, *more: tuple[str, str]) -> Section:
    """Return machine and software in pairs, after those in `more`, and the fingerprint of comparable results."""
    device = "CPU" if environment.device == "cpu" else f"{environment.device_count} × {environment.device}"
    pairs = [
        *more,
        ("machine", f"{environment.hostname}: {environment.cpu}"),
        ("cores", str(environment.cores)),
        ("memory", format_bytes(environment.memory_bytes)),
        ("device", device),
        ("Python", environment.python),
        ("torch", environment.torch or "not installed"),
        ("xbench", environment.xbench + (f", commit {environment.commit}" if environment.commit else "")),
        ("fingerprint", f"{fingerprint(environment)}: results that share it were made on machines that compare"),
    ]
    facts = Table(
        "Everything else that was noted of the machine",
        columns(("fact", "value"), ("fact", "value")),
        [[name, value] for name, value in sorted(environment.facts.items())],
        bulk=True,
    )
    return Section("environment", "Environment", [Facts(pairs), *([facts] if facts.rows else [])])


def environments_section(
    base: records.Environment, head: records.Environment, named: Sequence[tuple[str, str]]
) -> Section:
    """Return the differences between the machines of two sides, what they share, and the sides in words."""
    before, after = _facts(base), _facts(head)
    matters = {"fingerprint", *(name for one in (base, head) for part in must_match(one) for name in part)}
    names = sorted(dict.fromkeys([*before, *after]), key=lambda name: name not in matters)
    must = Badge("must be the same", "failed")
    different: list[list[Cell]] = [
        [name, before.get(name, "–"), after.get(name, "–"), must if name in matters else "may differ"]
        for name in names
        if before.get(name) != after.get(name)
    ]
    same = [[name, before[name]] for name in names if before.get(name) == after.get(name)]
    headings = ("what", "base", "head", "for wall-clock figures")
    tables = [
        Table("What differs between base and head", columns(headings, headings), different, opened=True),
        Table("What is the same", columns(headings[:2], headings), same, bulk=True),
    ]
    return Section("environment", "Environment", [Facts(named), *(table for table in tables if table.rows)])


def _facts(environment: records.Environment) -> dict[str, str]:
    machine, software = must_match(environment)
    more = {
        "host": environment.hostname,
        "Python, all of it": environment.python,
        "torch, all of it": environment.torch or "not installed",
        "xbench": environment.xbench,
        "commit": environment.commit or "unknown",
        "fingerprint": fingerprint(environment),
    }
    return {**machine, **software, **more, **dict(sorted(environment.facts.items()))}


def caution_blocks(cautions: Sequence[str]) -> list[Block]:
    """Return cautions on predictions, if there are any."""
    return [Sentences(cautions, mark="warning")] if cautions else []


def warnings_section(warnings: Sequence[str]) -> Section:
    """Return the section of warnings, also if there are none."""
    said = Sentences(list(warnings), mark="warning") if warnings else Sentences(["None was recorded."])
    return Section("warnings", "Warnings", [said])


def command_section(*commands: str) -> Section:
    """Return the section of commands that make the record again."""
    return Section("reproduce", "Do it again", [Code(command, "the command", wrapped=True) for command in commands])


def following(found: Sequence[Advice]) -> list[Block]:
    """Return advice as sentences, each with its command to copy."""
    blocks: list[Block] = []
    for told, command in found:
        blocks += [Sentences([told]), *([Code(command, "the command", wrapped=True)] if command else [])]
    return blocks
