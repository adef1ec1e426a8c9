"""JUnit XML: what stands in a document, that any text makes one that parses, and the cases of each kind of record."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
import sample_records as made
from hypothesis import given
from hypothesis import strategies as st

from xbench.records import ModeResult
from xbench.report.formats.junit import cases, junit_xml
from xbench.report.view import Case, Status


def test_suites_are_groups_and_a_case_that_was_skipped_says_why() -> None:
    found = [
        Case("resnet18", "ddp", 0.5),
        Case("vgg11", "ddp", 0.25),
        Case("resnet18", "horovod", status="skipped", message="not installed"),
    ]
    root = ET.fromstring(junit_xml(found))
    names = ("name", "tests", "skipped", "time")
    counts = [[suite.get(name) for name in names] for suite in (root, *root)]
    assert counts == [["xbench", "3", "1", "0.75"], ["resnet18", "2", "1", "0.5"], ["vgg11", "1", "0", "0.25"]]
    assert [skipped.get("message") for skipped in root.iter("skipped")] == ["not installed"]
    assert ET.fromstring(junit_xml([])).attrib["tests"] == "0"


@given(st.text(), st.text(), st.sampled_from(["passed", "failed", "skipped", "error"]), st.floats(0, 1e6))
def test_any_text_makes_a_document_that_parses(name: str, text: str, status: Status, time_s: float) -> None:
    root = ET.fromstring(junit_xml([Case(name, name, time_s, status, text, text)], properties={name: text}))
    assert len(root.findall("testsuite/testcase")) == 1
    assert float(root.attrib["time"]) == pytest.approx(time_s, abs=1e-9)


def test_what_xml_cannot_hold_is_seen_to_be_missing() -> None:
    assert 'message="�[31mno�"' in junit_xml([Case("a", "b", status="error", message="\x1b[31mno\x00")])


def test_a_mode_that_is_not_installed_is_skipped() -> None:
    error = "Horovod is not installed: make horovod in a checkout of xbench builds it"
    missing = ModeResult(mode="horovod:fusion=32", status="failed", label="real", error=error)
    crashed = missing.model_copy(update={"mode": "horovod", "error": "rank 1 died"})
    found = cases(made.comparison([missing, crashed], reference="horovod"))
    assert [case.status for case in found] == ["skipped", "error"]
