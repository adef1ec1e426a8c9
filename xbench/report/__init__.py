"""Report formats, each of which renders any record. No torch: the saved record is all they need.

`kinds` holds a view of each kind of record, `formats` a file for each format, which walks any view; `charts` holds
drawings that several kinds share, and `page` the shell of the HTML page.

A renderer is a function from a record to text; `terminal` also draws on a rich console (`terminal.show`), and `csv` has
further tables (`csv.tables`). Facts of an entry: `extension`, what a file of the format ends in, and `kinds`, the kinds
of record that it can show where it cannot show all.
"""

from __future__ import annotations

from collections.abc import Callable

from xbench.records import AnyRecord
from xbench.registry import Registry

Renderer = Callable[[AnyRecord], str]

FORMATS: Registry[Renderer] = Registry("report format", listing="xbench report --help", group="xbench.reports")
FORMATS.add("terminal", "xbench.report.formats.terminal:render", "tables for people, without colour", extension="txt")
FORMATS.add("html", "xbench.report.formats.html:render", "one page with plots, for any browser", extension="html")
FORMATS.add("json", "xbench.records:dump", "the record itself", extension="json")
FORMATS.add(
    "trace",
    "xbench.report.formats.perfetto:render",
    "steps for ui.perfetto.dev",
    extension="trace.json",
    kinds=("comparison", "profile"),
)
FORMATS.add("markdown", "xbench.report.formats.markdown:render", "short, for pull requests", extension="md")
FORMATS.add("csv", "xbench.report.formats.csv:render", "tidy tables: samples, steps, modes, layers", extension="csv")
FORMATS.add("junit", "xbench.report.formats.junit:render", "one case a mode, for CI systems", extension="junit.xml")
