"""One HTML file per report. It opens in any browser, without a network.

`page` makes it from one record of any kind, or from several comparisons side by side. The view of a kind holds the
content of its page. Figures are plain plotly traces. `assemble` joins template, style and scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from xbench.errors import UsageError
from xbench.records import AnyRecord
from xbench.report.advice import RECORD
from xbench.report.kinds import view_of
from xbench.report.page.model import Figure, Page, Table, figures

MAX_ROWS = 20
"""Most rows of the table in a notebook cell."""


def page(records: Sequence[AnyRecord], place: str = RECORD) -> str:
    """Return the HTML of one record, or of several that can be compared. `place` is its path in commands to copy.

    Raises UsageError if they cannot be compared.
    """
    return assemble(contents(records, place))


def render(record: AnyRecord) -> str:
    """Return the HTML of one record."""
    return page([record])


def contents(records: Sequence[AnyRecord], place: str = RECORD) -> Page:
    """Return the page of these records. Raises UsageError as `page` does."""
    if not records:
        raise UsageError("there is no result to report on")
    if len(records) > 1:
        from xbench.report.kinds.compare_records import several_page

        return several_page(records)
    return view_of(records[0], place).page()


def summary(record: AnyRecord) -> str:
    """Return a notebook cell: the answer and the first table of the page, without style sheets, scripts or plots.

    It is a `<div>` in the notebook's own colours. The table has at most MAX_ROWS rows and says how many it omits.
    """
    page = contents([record])
    blocks = (block for section in page.sections for block in section.blocks)
    tables = (block.table if isinstance(block, Figure) else block for block in blocks)
    table = next((one for one in tables if isinstance(one, Table)), None)
    return environment().from_string(own_file("summary.html.jinja")).render(page=page, table=table, most=MAX_ROWS)


def assemble(page: Page) -> str:
    """Return the whole document. The same page always gives the same bytes."""
    plotly, script = _plotly(), own_file("page.js") + own_file("keys.js")
    scripts = f"script-src {_hash(plotly)} {_hash(script)}"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; {scripts}"
    return environment().from_string(own_file("page.html.jinja")).render(
        page=page,
        policy=policy,
        style=Markup(own_file("page.css")),
        script=Markup(script),
        plotly=Markup(plotly),
        figures=Markup(_data(page)),
    )  # fmt: skip


def environment() -> Environment:
    """Return the settings of templates, which escape every text."""
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                       keep_trailing_newline=True)  # fmt: skip


@cache
def own_file(name: str) -> str:
    """Return the text of a file of the page: a template, a style sheet or a script."""
    return (files("xbench.report.page") / name).read_text(encoding="utf-8")


def _data(page: Page) -> str:
    """Return the figures for the script, as JSON that no '</script>' can end."""
    facts = ("key", "traces", "layout", "narrow", "height")
    drawn = [{fact: getattr(figure, fact) for fact in facts} for figure in figures(page)]
    return json.dumps(drawn, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plotly() -> str:
    """Return plotly.js's basic bundle. Pages draw only bars and scatter plots."""
    return own_file("plotly-basic.min.js")


@cache
def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
