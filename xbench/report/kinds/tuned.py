"""View of the record that `xbench tune` keeps, and text of the command: the answer, its basis, and lines to paste.

The answer gives the ratio to DDP with its 95 % interval. It also says if DDP is best already, or if the minutes were
too few.
"""

from __future__ import annotations

from rich.console import Console

from xbench.modes import mode_info
from xbench.records import Comparison, Label, Plan, Ratio, Tuned
from xbench.report import console as terminal
from xbench.report import markup, sentences
from xbench.report.advice import Advice, in_ddp
from xbench.report.charts.axes import named, plain, points, rounded, rows_axis, vertical_line, whiskers
from xbench.report.page.model import Badge, Block, Cell, Code, Facts, Figure, Section, Sentences, Table, columns
from xbench.report.snippets import PLAIN_DDP, attach_snippet, ddp_snippet, is_plain_ddp, is_schedule
from xbench.report.view import Case, Detail, Row, View, command_section, ends, fields, following
from xbench.stats.tuning import Choice
from xbench.text import and_of, counted
from xbench.units import format_brief_percent

KEPT = "tuned.json"
"""Name of the kept file in the lines to paste, because the record does not know its own path."""


class TunedView(View[Tuned]):
    """Schedule to use, and the candidates."""

    name = "Tuned"

    def title(self) -> str:
        return f"{self.record.workload.title} on {self.record.fabric.spec}"

    def headline(self) -> list[str]:
        record, title = self.record, self.record.workload.title
        if record.ratio is None:
            margin = format_brief_percent(record.margin)
            return [f"DDP's default is best for {title}: nothing tried is faster by more than {margin}."]
        saved = format_brief_percent(1 - record.ratio.value)
        took = f"{ratio_words(record.ratio)} of DDP's time"
        return [f"{record.schedule} trains {title} in {took}: {saved} less a step."]

    def answer(self) -> list[str]:
        return [*self.headline(), f"Times are {self.record.label}."]

    def labels(self) -> list[Label]:
        return [self.record.label]

    def advice(self) -> list[Advice]:
        return in_ddp(self.record.schedule, self.record.tried, self.record.record)

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        terminal.headline(console, self.headline())
        console.print()
        title = f"Time per sample over that of {record.reference} ({record.label})"
        rows = [[mode, ratio_words(ratio), ratio.verdict] for mode, ratio in record.tried.items()]
        headings = ("mode", "ratio [95 % CI]", "verdict")
        table = terminal.filled_table(title, headings, rows, ("mode", "verdict"))
        if terminal.spare_columns(console, table) >= 0:
            console.print(table)
        else:
            terminal.say(console, title, "italic")
            for mode, ratio, verdict in rows:
                terminal.indented(console, f"{mode} {ratio}: {verdict}")
        terminal.say_next(console, self.advice())
        buckets = None if record.buckets is None else counted(len(record.buckets), "bucket") + self.carried()
        terminal.facts(console, [
            *([("buckets", buckets)] if buckets is not None else []),
            *self.setup(),
            ("made by", f"xbench {record.xbench}, torch {record.torch}: {record.command}"),
            ("rests on", record.record),
        ])  # fmt: skip

    def carried(self) -> str:
        return f", carried by {self.record.carrier}" if self.record.carrier is not None else ""

    def setup(self) -> list[tuple[str, str]]:
        return [sentences.workload_pair(self.record.workload), ("fabric", sentences.fabric_line(self.record.fabric))]

    def markdown(self) -> list[str]:
        record = self.record
        rows = [[markup.code(mode), ratio_words(ratio), ratio.verdict] for mode, ratio in record.tried.items()]
        heading = markup.Markup(f"time per sample over {markup.code(record.reference)} [95 % CI]")
        return [
            f"### {markup.plain(record.workload.title)} on {markup.code(record.fabric.spec)} ({record.label})",
            markup.lead(self.headline()),
            markup.advice(self.advice()),
            markup.table(["tried", heading, "verdict"], rows) if rows else "",
            markup.details("What it rests on", markup.facts([*self.setup(), ("record", record.record)])),
        ]

    def paste(self) -> list[Block]:
        lines = snippet(self.record, KEPT)
        said = f"Paste this, with the path of the kept file in place of {KEPT}:"
        return [
            *([Sentences([said])] if KEPT in lines else []),
            Code(lines, "the lines to paste"),
            *following(self.advice()),
        ]

    def sections(self) -> list[Section]:
        record = self.record
        buckets = "as DDP forms them" if record.buckets is None else str(len(record.buckets))
        pairs = [
            sentences.workload_pair(record.workload),
            ("buckets", buckets + self.carried()),
            ("margin", f"a gain of at least {100 * record.margin:g} % was taken to be worth a change"),
            *sentences.fabric_pairs(record.fabric),
            ("device", "CPU" if record.device == "cpu" else record.device),
            ("made with", f"xbench {record.xbench}, torch {record.torch or 'not installed'}"),
            ("rests on", record.record),
        ]
        tried = tried_figure(record)
        return [
            Section("tried", "What was tried", [tried] if tried else [Sentences(["No candidate was timed."])]),
            Section("basis", "What it rests on", [Facts(pairs)]),
        ]

    def ending(self) -> list[Section]:
        return [command_section(self.record.command)]

    def tables(self) -> dict[str, list[Row]]:
        record = self.record
        rows = [
            {
                **fields(record, "label", "created"),
                "workload": record.workload.title,
                "fabric": record.fabric.spec,
                "ranks": record.fabric.world_size,
                "mode": mode,
                "chosen": mode == record.schedule,
                "reference": record.reference,
                "ratio": ratio.value if ratio else 1.0,
                **ends("ratio", ratio.ci95 if ratio else None),
                "verdict": ratio.verdict if ratio else "reference",
            }
            for mode, ratio in self._tried()
        ]
        return {"tried": rows}

    def _tried(self) -> list[tuple[str, Ratio | None]]:
        """Return the reference, which has no ratio, and every candidate that was timed."""
        return [(self.record.reference, None), *self.record.tried.items()]

    def cases(self, strict: bool) -> list[Case]:
        record = self.record
        group = f"{record.workload.title} on {record.fabric.spec} ({record.label})"
        found = []
        for mode, ratio in self._tried():
            chosen = ": chosen" if mode == record.schedule else ""
            told = "the reference"
            if ratio is not None:
                told = f"{ratio_words(ratio)} of {record.reference}'s time per sample ({record.label}): {ratio.verdict}"
            found.append(Case(group, mode, message=f"{told}{chosen}"))
        return found


def answer_sentences(choice: Choice, margin: float, title: str, label: Label, *, minutes: float) -> list[str]:
    """Return the answer in a few sentences, for tuning `title` in `minutes` with a gain of at least `margin`."""
    least = format_brief_percent(margin)
    if choice.best is None:
        return ["No answer: no candidate was timed beside DDP."]
    ratio = choice.ratios[choice.best]
    measured = f"Times are {label}; predictions and bounds are simulated."
    if choice.kind == "reference":
        return [
            f"DDP's default is already best here: nothing tried is faster by more than {least}; the nearest, "
            f"{choice.best}, takes {ratio_words(ratio)} of its time.",
            measured,
        ]
    if choice.winner is None:
        return [
            f"No clear answer in {_minutes(minutes)}: {choice.best} takes {ratio_words(ratio)} of DDP's time, and a "
            f"gain of {least} is neither shown nor ruled out. Stay with DDP until it is.",
            "More time may decide: give --minutes more.",
            measured,
        ]
    saved = format_brief_percent(1 - ratio.value)
    proven = choice.kind == "faster"
    doubt = "" if proven else f", though {_minutes(minutes)} did not show that it is {least} at least"
    said = [f"{choice.best} trains {title} in {ratio_words(ratio)} of DDP's time: {saved} less a step{doubt}."]
    if choice.close:
        said.append(f"This run cannot tell {and_of(choice.close)} from it.")
    if proven and not choice.settled:
        said.append(f"{_minutes(minutes)} ended before this was settled: more would make it surer.")
    return [*said, measured]


def judged(record: Comparison, choice: Choice) -> Comparison:
    """Return the record with the verdicts of a choice, which are for its margin, in place of a comparison's own."""
    modes = dict(record.modes)
    for name, ratio in choice.ratios.items():
        mode = modes[name]
        if mode.ratio is not None:
            modes[name] = mode.model_copy(update={"ratio": mode.ratio.model_copy(update={"verdict": ratio.verdict})})
    return record.model_copy(update={"modes": modes})


def snippet(tuned: Tuned, path: str) -> str:
    """Return the lines to paste: DDP with its argument, or `xbench.attach` with the kept file at `path`."""
    if tuned.schedule == tuned.reference or tuned.buckets is None or tuned.ratio is None:
        return PLAIN_DDP
    if not is_schedule(tuned.schedule):
        return "# nothing to paste: this xbench does not have the schedule that was best\n"
    plan = Plan(
        mode=tuned.schedule,
        buckets=tuned.buckets,
        bucket_bytes=tuned.bucket_bytes or [],
        predicted_step_s=0.0,
        predicted_exposed_s=0.0,
        parts=tuned.parts,
        carrier=tuned.carrier,
    )
    count = counted(len(tuned.buckets), "bucket")
    measured = f"{count}, {ratio_words(tuned.ratio)} of DDP's time per sample ({tuned.label})"
    if is_plain_ddp(plan):
        return PLAIN_DDP
    if mode_info(tuned.schedule).reducer != "ddp" or tuned.bucket_cap_mb_list is None:
        return attach_snippet(
            plan,
            path,
            measured,
            tuned=bool(tuned.host_tuning),
            workload=tuned.workload.spec,
            device="cpu" if tuned.device == "cpu" else "cuda",
        )
    text = ddp_snippet(plan, tuned.bucket_cap_mb_list, measured, tuned=bool(tuned.host_tuning))
    unused = "    find_unused_parameters=True,\n" if tuned.unused_parameters else ""
    return text.replace("    model,\n", f"    model,\n{unused}")


def ddp_lines(tuned: Tuned, winner: str) -> str:
    """Return the lines for DistributedDataParallel as comments, to stand below those of a winner that is no faster."""
    told = f"This run cannot tell {tuned.schedule} from {winner}. It leaves the loop as it is:"
    return "".join(f"# {line}".rstrip() + "\n" for line in ["", told, *snippet(tuned, KEPT).splitlines()])


def tried_figure(record: Tuned) -> Figure | None:
    """Draw each candidate's ratio to the reference with its interval, best first. None if none was timed."""
    tried = sorted(record.tried.items(), key=lambda pair: pair[1].value)
    if not tried:
        return None
    names = [named(mode) for mode, _ in tried]
    said = [f"<b>{plain(mode)}</b><br>{ratio_words(ratio)}: {ratio.verdict}" for mode, ratio in tried]
    bars = whiskers((ratio.value, ratio.ci95) for _, ratio in tried)
    x, marker = [rounded(ratio.value) for _, ratio in tried], {"color": "--c1", "size": 11}
    headings = ("mode", "ratio [95 % CI]", "verdict", "label")
    rows: list[list[Cell]] = [
        [mode, ratio_words(ratio), Badge.of(ratio.verdict), Badge.of(record.label)] for mode, ratio in tried
    ]
    return Figure(
        key="ratios",
        title=f"Time per sample over that of {record.reference}",
        labels=[record.label],
        told="Left of 1 is faster. Whiskers are 95 % confidence intervals.",
        traces=[points(x, names, said, error_x=bars, marker=marker)],
        layout={
            "xaxis": {"title": {"text": f"ratio to {plain(record.reference)}"}},
            "yaxis": rows_axis(names),
            "shapes": [vertical_line(1)],
            "margin": {"t": 8},
        },
        height=80 + 36 * len(names),
        table=Table("Ratios in figures", columns(headings, ("mode", "verdict", "label")), rows, opened=True),
    )


def ratio_words(ratio: Ratio) -> str:
    """Format a ratio as '0.891 [0.872, 0.910]'."""
    return sentences.ratio_text(ratio.value, ratio.ci95)


def _minutes(minutes: float) -> str:
    return "1 minute" if minutes == 1 else f"{minutes:g} minutes"
