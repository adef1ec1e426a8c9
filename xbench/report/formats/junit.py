"""JUnit XML, the source of test tables in CI systems. Any kind of record has cases; a comparison has one per mode.

No standard exists, so this follows what Jenkins and GitLab read: `testsuites` of `testsuite`s of `testcase`s. A passed
case is empty or has output. A `failure` means that the case's requirement was not met, and an `error` that it could not
be judged. The third element is `skipped`. Characters that XML 1.0 cannot hold, such as the escapes of a coloured log,
become U+FFFD.
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
    """Return JUnit XML for any kind of record. With `strict`, a case that a check could not judge is a failure."""
    properties = {"command": record.command, "created": record.created, "kind": record.kind}
    properties |= view_of(record).properties()
    return junit_xml(cases(record, strict), suite=f"xbench {record.kind}", properties=properties)


def cases(record: AnyRecord, strict: bool = False) -> list[Case]:
    """Return the cases of a record, modes in their order. A run that ended early has one more case, an error."""
    found = view_of(record).cases(strict)
    if not record.complete:
        why = getattr(record, "error", None) or "it ended before everything was measured"
        group = found[0].group if found else record.kind
        found.append(Case(group, THE_RUN, status="error", message=f"INCOMPLETE: {why}"))
    return found


def junit_xml(cases: Iterable[Case], *, suite: str = "xbench", properties: Mapping[str, str] | None = None) -> str:
    """Return the cases as one document, with one `testsuite` per group in order of first mention.

    `properties` appear in each suite. A case's text becomes the body of its `failure`, or its `system-out` if it
    passed.
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
    """Return the attributes with a suite's totals."""
    statuses = [case.status for case in cases]
    return {
        "tests": str(len(cases)),
        "failures": str(statuses.count("failed")),
        "errors": str(statuses.count("error")),
        "skipped": str(statuses.count("skipped")),
        "time": _seconds(sum(case.time_s or 0.0 for case in cases)),
    }


def _seconds(time_s: float | None) -> str:
    """Format seconds without an exponent, which some readers do not accept."""
    return f"{time_s or 0.0:.9f}".rstrip("0").rstrip(".")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
