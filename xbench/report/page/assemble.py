"""From a page's parts to one file of HTML that needs nothing else: no font, no script, no picture from anywhere.

The page says so to the browser as well: its content security policy allows its own two scripts, by their hashes, and
no request at all, so text from a record that slipped through the escaping could neither run nor call home.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from xbench.report.page.model import Page, figures


def assemble(page: Page) -> str:
    """The whole document. The same page makes the same bytes."""
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
    """How templates are rendered: every text in them is escaped."""
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                       keep_trailing_newline=True)  # fmt: skip


@cache
def own_file(name: str) -> str:
    """The text of a file of this package: a template, a style sheet, a script."""
    return (files("xbench.report.page") / name).read_text(encoding="utf-8")


def _data(page: Page) -> str:
    """What the script draws, as JSON that no '</script>' can end."""
    drawn = [
        {
            "key": figure.key,
            "traces": figure.traces,
            "layout": figure.layout,
            "narrow": figure.narrow,
            "height": figure.height,
        }
        for figure in figures(page)
    ]
    return json.dumps(drawn, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plotly() -> str:
    """plotly.js's basic bundle: bars and scatter plots are all that pages draw."""
    return own_file("plotly-basic.min.js")


@cache
def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
