"""JUnit XML: what CI systems draw their test tables from. Cases of any kind; of a record, one case a mode.

There is no standard but what Jenkins and GitLab read: `testsuites` of `testsuite`s of `testcase`s, where a case holds
nothing (it passed), a `failure` (the gate that it stands for was not met), an `error` (it could not be judged) or a
`skipped`. Characters that XML 1.0 cannot hold, such as the escapes of a coloured log, become U+FFFD.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping

from xbench.records import AnyRecord
from xbench.report.kinds import view_of
from xbench.report.view import Case, Status

THE_RUN = "the whole run"

_ELEMENTS: dict[Status, str] = {"failed": "failure", "error": "error", "skipped": "skipped"}
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(record: AnyRecord, strict: bool = False) -> str:
    """JUnit XML of any kind of record. `strict`: what a check could not judge is a failure."""
    properties = {"command": record.command, "created": record.created, "kind": record.kind}
    properties |= view_of(record).properties()
    return junit_xml(cases(record, strict), suite=f"xbench {record.kind}", properties=properties)


def cases(record: AnyRecord, strict: bool = False) -> list[Case]:
    """The cases of any kind of record, modes in their order; a run that ended early has one of its own, an error."""
    found = view_of(record).cases(strict)
    if not record.complete:
        why = getattr(record, "error", None) or "it ended before everything was measured"
        group = found[0].group if found else record.kind
        found.append(Case(group, THE_RUN, status="error", message=f"INCOMPLETE: {why}"))
    return found


def junit_xml(cases: Iterable[Case], *, suite: str = "xbench", properties: Mapping[str, str] | None = None) -> str:
    """The cases as one document, a `testsuite` a group in order of first mention; `properties` stand in each of them.

    The text of a case that failed is the body of its `failure`, of one that passed its `system-out`.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    every = [case for group in groups.values() for case in group]
    root = ET.Element("testsuites", {"name": _clean(suite), **_counts(every)})
    for group, members in groups.items():
        node = ET.SubElement(root, "testsuite", {"name": _clean(group), **_counts(members)})
        if properties:
            listed = ET.SubElement(node, "properties")
            for name, value in properties.items():
                ET.SubElement(listed, "property", {"name": _clean(name), "value": _clean(value)})
        for case in members:
            _add(node, case)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add(parent: ET.Element, case: Case) -> None:
    address = {"classname": _clean(case.group), "name": _clean(case.name), "time": _seconds(case.time_s)}
    node = ET.SubElement(parent, "testcase", address)
    element = _ELEMENTS.get(case.status)
    if element is not None:
        body = ET.SubElement(node, element, {"message": _clean(case.message)})
        body.text = _clean(case.text) or None
    elif case.text or case.message:
        told = "\n".join(part for part in (case.message, case.text) if part)
        ET.SubElement(node, "system-out").text = _clean(told)


def _counts(cases: list[Case]) -> dict[str, str]:
    """The attributes that sum up a suite."""

    def count(status: Status) -> str:
        return str(sum(case.status == status for case in cases))

    return {
        "tests": str(len(cases)),
        "failures": count("failed"),
        "errors": count("error"),
        "skipped": count("skipped"),
        "time": _seconds(sum(case.time_s or 0.0 for case in cases)),
    }


def _seconds(time_s: float | None) -> str:
    """Seconds without an exponent, which some readers do not know."""
    return f"{time_s or 0.0:.9f}".rstrip("0").rstrip(".")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
