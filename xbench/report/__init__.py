"""Report formats. Each renders any record from its saved file, without torch.

`kinds` holds one view per kind of record. `formats` holds one file per format; a format reads any view. `charts` holds
drawings that several kinds share, and `page` holds the shell of the HTML page.

A renderer is a function from a record to text. `terminal` also draws on a rich console (`terminal.show`), and `csv` has
further tables (`csv.tables`). An entry has the fact `extension`, the ending of the format's files. Its fact `kinds`
lists the kinds of record that a format can show, if it cannot show all.
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
