"""Common parts of the views of a comparison and a profile: header, footer, layers and measurement."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from rich.console import Console

from xbench.records import Comparison, Contention, Job, Label, Layer, Profile
from xbench.report import markup, sentences
from xbench.report.answer import layer_figures
from xbench.report.charts.trace import Process
from xbench.report.console import fact, say
from xbench.report.page.common_sections import fabric_pairs
from xbench.report.view import Row, StepTrace, Table, View, fields
from xbench.text import and_of

TOP_LAYERS = 20

M = TypeVar("M", bound=Comparison | Profile)


class MeasuredView(View[M]):
    """View of a record of real or emulated steps."""

    @abstractmethod
    def jobs(self) -> Sequence[Job | Profile]:
        """Return the jobs, each with a workload and layers."""

    @abstractmethod
    def contention(self) -> Contention | None:
        """Return how collectives and computation slow each other, if that was measured."""

    def draw_top(self, console: Console) -> None:
        """Print that the run ended early or that modes failed, if so."""
        note = self.incomplete()
        if note:
            say(console, note, "bold yellow")
            console.print()

    def draw_bottom(self, console: Console, *, effort: str | None = None, verbose: bool = False) -> None:
        """Print fabric, cost model, effort, machine and warnings; with `verbose`, also the usual setup of ranks."""
        record = self.record
        fact(console, "fabric", sentences.fabric_line(record.fabric))
        for note in record.fabric.notes:
            if verbose or not sentences.is_usual(note):
                fact(console, "", note)
        tuning = sentences.tuning_line(record.spec)
        if tuning is not None and (verbose or not record.spec.host_tuning):
            fact(console, "tuning", tuning)
        if record.emulated is not None:
            fact(console, "emulated", sentences.emulated_line(record.emulated))
        if record.cost_model is not None:
            fact(console, "cost model", sentences.cost_line(record.cost_model))
            contention = sentences.contention_line(self.contention())
            if contention is not None:
                fact(console, "contention", contention)
        if effort:
            fact(console, "effort", effort)
        fact(console, "machine", sentences.environment_line(record.environment))
        for warning in record.warnings:
            fact(console, "warning", warning, "yellow")
        usual = record.spec.tunes_ranks or any(map(sentences.is_usual, record.fabric.notes))
        hidden = [*self.hidden_tables(), *(["how threads and memory were set up"] if usual else [])]
        if hidden and not verbose:
            fact(console, "-v", f"shows {and_of(hidden)} too")

    def hidden_tables(self) -> list[str]:
        """Name the tables that a terminal shows only with -v."""
        return []

    def fabric_facts(self) -> list[tuple[str, str]]:
        """Return facts on the connection between the ranks, and on the cost of collectives."""
        record, contention = self.record, sentences.contention_line(self.contention())
        pairs = fabric_pairs(record.fabric, record.cost_model, record.emulated, sentences.tuning_line(record.spec))
        return [*pairs, *([("contention", contention)] if contention is not None else [])]

    def markdown_title(self, workload: str) -> str:
        """Return a title with workload, fabric and label."""
        fabric = self.record.fabric
        return f"### {markup.plain(workload)} on {markup.code(fabric.spec)} ({fabric.label})"

    def markdown_layers(self) -> list[str]:
        """Return the layers of every job, folded."""
        return [_layers(job.workload.title, job.layers, self.record.fabric.label) for job in self.jobs()]

    def markdown_how(self, effort: str | None = None) -> str:
        """Return workload, bounds, fabric, cost model, effort and machine, folded."""
        record = self.record
        told = [("workload", sentences.workload_line(job.workload)) for job in self.jobs()]
        if record.bounds is not None:
            told.append(("bounds", sentences.bounds_line(record.bounds)))
        told.append(("fabric", sentences.fabric_line(record.fabric)))
        told += [("fabric", note) for note in record.fabric.notes]
        tuning = sentences.tuning_line(record.spec)
        if tuning is not None:
            told.append(("host tuning", tuning))
        if record.emulated is not None:
            told.append(("emulated", sentences.emulated_line(record.emulated)))
        if record.cost_model is not None:
            told.append(("cost model", sentences.cost_line(record.cost_model)))
        if effort is not None:
            told.append(("effort", effort))
        told.append(("machine", sentences.environment_line(record.environment)))
        return markup.details("Environment", markup.facts(list(dict.fromkeys(told))))

    def setting(self, label: Label) -> Row:
        """Return the columns at the start of every tidy table."""
        record = self.record
        return {
            "label": label,
            "created": record.created,
            "complete": record.complete,
            "fabric": record.fabric.spec,
            "backend": record.fabric.backend,
            "ranks": record.fabric.world_size,
        }

    def layer_rows(self) -> Table:
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
        facts = {
            "machine": sentences.environment_line(record.environment),
            "fabric": sentences.fabric_line(record.fabric),
        }
        return StepTrace(processes, notes, facts | ({"incomplete": early} if early else {}))


def _layers(title: str, layers: Sequence[Layer], label: str) -> str:
    """Return the layers that take longest, in gradient-ready order."""
    if not layers:
        return ""
    numbered = list(enumerate(layers, start=1))
    shown = sorted(sorted(numbered, key=lambda pair: -pair[1].share)[:TOP_LAYERS], key=lambda pair: pair[0])
    rows = [
        [str(number), markup.code(layer.name), markup.code(layer.kind), *layer_figures(layer)]
        for number, layer in shown
    ]
    headings = ["ready", "layer", "kind", "parameters", "gradient", "forward", "backward", "ready at", "share"]
    rest = f"\n\n{len(layers) - len(shown)} shorter ones are left out." if len(shown) < len(layers) else ""
    count = f"{len(shown)} of {len(layers)} layers" if rest else f"{len(layers)} layers"
    return markup.details(
        f"{count} of {title} in gradient-ready order ({label}, without communication)",
        markup.table(headings, rows, left=3) + rest,
    )
