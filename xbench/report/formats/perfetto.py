"""A comparison or a profile as a trace for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from xbench.errors import SpecError
from xbench.records import AnyRecord
from xbench.report.charts.trace import document
from xbench.report.kinds import view_of

LABELS = (
    "real: real compute and real collectives over real links; emulated: real compute, collectives that take as long as "
    "a model says; simulated: from the model alone"
)


def render(record: AnyRecord) -> str:
    """Return the trace as JSON text. Raises SpecError for a record without steps to draw."""
    trace = view_of(record).trace()
    if not trace.processes:
        raise SpecError(
            f"this {record.kind} record holds no step, recorded or predicted, to draw a trace of",
            hint="xbench compare records a step of every mode",
        )
    about = {
        "title": f"xbench {record.kind}",
        "command": record.command,
        "created": record.created,
        "labels": LABELS,
        "notes": list(trace.notes),
        **trace.facts,
    }
    return document(trace.processes, about)
