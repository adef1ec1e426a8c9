"""A record as JUnit cases: what passes, fails, is an error or skipped, and what each says."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import sample_records as made

from xbench.records import ModeResult
from xbench.report.formats.junit import THE_RUN, cases, render


def test_a_case_a_mode_with_its_step_and_label() -> None:
    found = cases(made.comparison())
    assert [(case.name, case.status) for case in found] == [
        (name, "passed") for name in ("compute", "ddp", "single", "wfbp", "mgwfbp", "optimal")
    ]
    assert {case.group for case in found} == {"resnet18 on shaped:hosts=2,rate=1gbit (real)"}
    optimal = found[-1]
    assert optimal.time_s == 0.586
    assert optimal.message == (
        "step 586 ms [580 ms, 593 ms] (real); 36.6 ms a sample; ratio to ddp 0.892 [0.884, 0.900]: faster; "
        "predicted 577 ms (simulated), error -1.5 %; same network: yes (±2e-07)"
    )


def test_a_gate_that_was_not_passed_is_a_failure_and_a_crash_an_error() -> None:
    found = {case.name: case for case in cases(made.troubled())}
    assert found["mgwfbp"].status == "failed"
    assert "FAILED the correctness gate against ddp" in found["mgwfbp"].message
    assert (found["single"].status, found["single"].time_s) == ("error", None)
    assert found["single"].message == "single FAILED: rank 1 on host 1 died: killed by SIGKILL"
    assert (found[THE_RUN].status, found[THE_RUN].message) == (
        "error",
        "INCOMPLETE: interrupted in round 3 of launch 1",
    )


def test_a_mode_that_is_not_installed_is_skipped() -> None:
    missing = ModeResult(
        mode="horovod:fusion=32",
        status="failed",
        label="real",
        error="Horovod is not installed: make horovod builds it",
    )
    crashed = missing.model_copy(update={"mode": "horovod", "error": "rank 1 died"})
    found = cases(made.comparison([missing, crashed], reference="horovod"))
    assert [case.status for case in found] == ["skipped", "error"]


def test_goals_of_a_validation_pass_or_fail() -> None:
    record = made.validation()
    found = [case for case in cases(record) if case.group == "goals"]
    assert [case.status for case in found] == ["passed" if goal.held else "failed" for goal in record.goals]
    assert "failed" in {case.status for case in found}
    (lost,) = [case for case in cases(record) if case.status == "error"]
    assert lost.message == "rank 1 on host 1 died: killed by SIGKILL"


def test_a_profile_and_a_scaling_have_cases_that_pass() -> None:
    assert [case.name for case in cases(made.profile())][:2] == ["profile", "plan of single"]
    scaling = made.scaling()
    assert len(cases(scaling)) == len(scaling.points)
    assert all("(simulated)" in case.message for case in cases(scaling))


def test_the_document_counts_them() -> None:
    root = ET.fromstring(render(made.troubled()))
    assert {key: root.attrib[key] for key in ("tests", "failures", "errors")} == {
        "tests": "5",
        "failures": "1",
        "errors": "2",
    }
