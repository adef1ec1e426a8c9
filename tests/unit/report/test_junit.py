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

EXPECTED = """\
<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="xbench" tests="4" failures="1" errors="1" skipped="1" time="0.75">
  <testsuite name="resnet18" tests="3" failures="1" errors="0" skipped="1" time="0.75">
    <properties>
      <property name="label" value="real" />
    </properties>
    <testcase classname="resnet18" name="ddp" time="0.5">
      <system-out>500 ms a step</system-out>
    </testcase>
    <testcase classname="resnet18" name="wfbp" time="0.25">
      <failure message="a &lt; b">layer1
layer2</failure>
    </testcase>
    <testcase classname="resnet18" name="horovod" time="0">
      <skipped message="not installed" />
    </testcase>
  </testsuite>
  <testsuite name="vgg11" tests="1" failures="0" errors="1" skipped="0" time="0">
    <properties>
      <property name="label" value="real" />
    </properties>
    <testcase classname="vgg11" name="ddp" time="0">
      <error message="rank 1 died" />
    </testcase>
  </testsuite>
</testsuites>
"""


def test_a_document() -> None:
    cases = [
        Case("resnet18", "ddp", 0.5, message="500 ms a step"),
        Case("vgg11", "ddp", status="error", message="rank 1 died"),
        Case("resnet18", "wfbp", 0.25, "failed", "a < b", "layer1\nlayer2"),
        Case("resnet18", "horovod", status="skipped", message="not installed"),
    ]
    assert junit_xml(cases, properties={"label": "real"}) == EXPECTED
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
