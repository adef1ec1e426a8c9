"""Table of views: one for each kind of record. A new kind is one file here and one row in `VIEWS`."""

from __future__ import annotations

from typing import Any

from xbench.records import AnyRecord, Profile
from xbench.registry import Registry
from xbench.report.advice import RECORD
from xbench.report.view import View

VIEWS: Registry[type[View[Any]]] = Registry("kind of record", listing="schema.json in the documentation")
for _kind, _view in (
    ("profile", "profile:ProfileView"),
    ("comparison", "comparison:ComparisonView"),
    ("scaling", "scaling:ScalingView"),
    ("tuned", "tuned:TunedView"),
    ("convergence", "convergence:ConvergenceView"),
    ("baseline", "regression:BaselineView"),
    ("regression", "regression:RegressionView"),
    ("cluster", "cluster:ClusterView"),
    ("live", "cluster:LiveView"),
):
    VIEWS.add(_kind, f"xbench.report.kinds.{_view}", f"the view of a {_kind}")


def view_of(record: AnyRecord, place: str = RECORD) -> View[Any]:
    """Return the view of a record, with its path in commands. A profile from traces has a view of its own."""
    if isinstance(record, Profile) and record.traced is not None:
        from xbench.report.kinds.profile import TracedView

        return TracedView(record, place)
    return VIEWS.load(record.kind)(record, place)
