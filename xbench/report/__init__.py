"""Report formats: each renders the same record, one file a format. No torch: the saved record is all they need.

A renderer is a function from a record to text; `terminal` also draws on a rich console (`terminal.show`).
"""

from __future__ import annotations

from collections.abc import Callable

from xbench.records import AnyRecord
from xbench.registry import Registry

Renderer = Callable[[AnyRecord], str]

FORMATS: Registry[Renderer] = Registry("report format", listing="xbench report --help", group="xbench.reports")
FORMATS.add("terminal", "xbench.report.terminal:render", "tables for people, without colour", extension="txt")
FORMATS.add("html", "xbench.report.html:render", "one page with plots, for any browser", extension="html")
FORMATS.add("json", "xbench.report.json:render", "the record itself", extension="json")
