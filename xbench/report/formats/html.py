"""The report as one HTML file that opens anywhere, without a network.

`page` makes it of one record of any kind, or of several comparisons side by side. What a record's page shows is in a
file of that kind; the figures are plain plotly traces, a file a group; `assemble` puts template, style and scripts
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xbench.errors import UsageError
from xbench.records import AnyRecord
from xbench.registry import Registry
from xbench.report.page.assemble import assemble
from xbench.report.page.model import Page

PAGES: Registry[Callable[[Any], Page]] = Registry("kind of record", listing="xbench schema")
for _kind, _module in (
    ("comparison", "kinds.comparison_page"),
    ("profile", "charts.plans"),
    ("scaling", "charts.scaling"),
    ("validation", "charts.validation"),
    ("convergence", "charts.convergence"),
    ("tuned", "kinds.tuned_page"),
    ("regression", "kinds.regression_page"),
    ("baseline", "kinds.baseline"),
    ("noise", "kinds.baseline"),
    ("cluster", "charts.cluster"),
    ("live", "kinds.live_page"),
    ("restart", "kinds.restart_page"),
):
    PAGES.add(_kind, f"xbench.report.{_module}:{_kind}_page", f"the page of a {_kind}")


def page(records: Sequence[AnyRecord]) -> str:
    """The HTML of one record, or of several that can be compared. Raises UsageError where they cannot."""
    return assemble(contents(records))


def render(record: AnyRecord) -> str:
    """The HTML of one record."""
    return page([record])


def contents(records: Sequence[AnyRecord]) -> Page:
    """What stands on the page of these records. Raises UsageError as `page` does."""
    if not records:
        raise UsageError("there is no result to report on")
    if len(records) > 1:
        from xbench.report.kinds.compare_records import several_page

        return several_page(records)
    return PAGES.load(records[0].kind)(records[0])
