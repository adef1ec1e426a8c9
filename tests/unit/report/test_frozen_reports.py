"""Whole reports of every kind of record, in every format, as they were before features were taken away.

`XBENCH_UPDATE_GOLDEN=1` rewrites tests/frozen. A difference may show only what a commit removes or changes on purpose.
"""

from __future__ import annotations

import pytest
from golden_file import FROZEN, golden
from sample_kinds import EVERY
from test_html_page import Reader

from xbench.report.formats import csv, html, junit, markdown, perfetto, terminal
from xbench.report.kinds import view_of

NAMED = {kind.replace(" ", "-"): make for kind, make in EVERY.items()}


def _tables(kind: str) -> str:
    return "\n".join(f"{name}\n{table}" for name, table in csv.tables(NAMED[kind]()).items())


FORMATS = {
    "txt": lambda kind: terminal.render(NAMED[kind](), width=100, verbose=True, all_layers=True),
    "md": lambda kind: markdown.render(NAMED[kind]()),
    "html.txt": lambda kind: "\n".join(Reader(html.render(NAMED[kind]())).text) + "\n",
    "csv": _tables,
    "junit.xml": lambda kind: junit.render(NAMED[kind]()),
}


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("form", FORMATS)
def test_a_report_is_frozen(kind: str, form: str) -> None:
    golden(f"{kind}.{form}", FORMATS[form](kind), FROZEN)


@pytest.mark.parametrize("kind", [kind for kind, make in NAMED.items() if view_of(make()).trace().processes])
def test_a_trace_is_frozen(kind: str) -> None:
    golden(f"{kind}.trace.json", perfetto.render(NAMED[kind]()), FROZEN)
