"""The report as one HTML file that opens anywhere, without a network.

`page` makes it of one record of any kind, or of several comparisons side by side. What a record's page shows is in a
file of that kind; the figures are plain plotly traces, a file a group; `assemble` puts template, style and scripts
together.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.errors import UsageError
from xbench.records import (
    AnyRecord,
    Baseline,
    Comparison,
    Convergence,
    Profile,
    Regression,
    Scaling,
    Tuned,
    Validation,
)
from xbench.report.html.assemble import assemble
from xbench.report.html.parts import Page


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
        from xbench.report.html.several import several_page

        return several_page(records)
    return _of_one(records[0])


def _of_one(record: AnyRecord) -> Page:
    if isinstance(record, Comparison):
        from xbench.report.html.comparison import comparison_page

        return comparison_page(record)
    if isinstance(record, Profile):
        from xbench.report.html.profile import profile_page

        return profile_page(record)
    if isinstance(record, Scaling):
        from xbench.report.html.scaling import scaling_page

        return scaling_page(record)
    if isinstance(record, Validation):
        from xbench.report.html.validation import validation_page

        return validation_page(record)
    if isinstance(record, Convergence):
        from xbench.report.html.convergence import convergence_page

        return convergence_page(record)
    if isinstance(record, Tuned):
        from xbench.report.html.tuned import tuned_page

        return tuned_page(record)
    if isinstance(record, Regression):
        from xbench.report.html.regression import regression_page

        return regression_page(record)
    from xbench.report.html.stored import baseline_page, noise_page

    return baseline_page(record) if isinstance(record, Baseline) else noise_page(record)
