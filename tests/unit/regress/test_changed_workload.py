"""A workload that is another one than base's: how it is named, what fails for it, and when it is meant."""

from __future__ import annotations

import pytest
import sample_regressions as made
from sample_regressions import DDP, WFBP
from test_regress_judge import BUCKETS, PLANNED, of, with_figure

from xbench.records import Case, Regression, Side
from xbench.regress import exit_code, worth_timing
from xbench.regress.metrics import workload_change
from xbench.report import FORMATS
from xbench.report import regression_sentences as told
from xbench.report.formats.junit import cases
from xbench.report.kinds.regression import regression_markdown, workflow_commands


def another(**changes: object) -> Side:
    """Head with another resnet18."""
    return made.side("this tree", workloads={"resnet18": made.WORKLOAD.model_copy(update=changes)})


LARGER = {"parameters": 12_689_512, "tensors": 64, "grad_bytes": 50_758_048}
LARGER_TOLD = "the model changed: 11.7 M -> 12.7 M parameters"
LARGER_EXACT = "parameters 11689512 -> 12689512, tensors 62 -> 64, grad bytes 46758048 -> 50758048"


def test_a_larger_model_fails_every_case_of_its_check_and_no_other() -> None:
    record = made.regression(head=another(**LARGER), pairs=[])
    remedy = f"if that is meant, write expect_change = \"{LARGER_EXACT}\" into check 'resnet18'"
    assert of(record, BUCKETS).reason == f"{LARGER_TOLD}; {remedy}"
    assert of(record, DDP).reason == f"not timed, because {LARGER_TOLD}; {remedy}"
    assert {case.verdict for case in record.cases if case.check == "resnet18"} == {"changed"}
    assert (of(record, BUCKETS).base, of(record, BUCKETS).head, of(record, DDP).base) == (3.0, 3.0, None)
    assert of(record, Case("small", "wfbp", "collectives")).verdict == "equivalent"
    assert of(record, WFBP).verdict == "missing"
    assert of(record, WFBP).reason == "not timed, because resnet18/ddp buckets fails already"
    assert (exit_code(record, strict=False), exit_code(record, strict=True)) == (3, 3)


@pytest.mark.parametrize("layers", [("deterministic",), ("wall",), ("deterministic", "wall")])
def test_a_larger_model_fails_whichever_layer_is_asked_for(layers: tuple[str, ...]) -> None:
    assert exit_code(made.regression(head=another(**LARGER), pairs=[], layers=layers), strict=False) == 3


def test_against_a_baseline_a_larger_model_fails_as_well() -> None:
    record = made.regression(head=another(**LARGER), pairs=[], against="baseline")
    assert of(record, BUCKETS).reason == f"{LARGER_TOLD}; make a new baseline if that was meant"
    assert exit_code(record, strict=False) == 3


def test_a_count_of_a_larger_model_is_judged_all_the_same() -> None:
    record = failing()
    assert (of(record, BUCKETS).verdict, of(record, BUCKETS).head) == ("regressed", 4.0)
    assert of(record, BUCKETS).reason.startswith(f"{LARGER_TOLD}; if that is meant")
    assert of(record, PLANNED).verdict == "changed"


def expecting(text: str, **changes: object) -> Regression:
    """A check of that other resnet18, whose suite expects this change."""
    check = made.RESNET.model_copy(update={"expect_change": text})
    suite = made.SUITE.model_copy(update={"checks": (check, made.SMALL)})
    pairs = made.pairs({WFBP: 1.0})
    return made.regression(head=another(**changes), suite=suite, pairs=pairs)


def test_a_change_that_the_suite_expects_passes_and_other_checks_are_judged() -> None:
    record = expecting(LARGER_EXACT, **LARGER)
    assert {case.verdict for case in record.cases if case.check == "resnet18"} == {"expected"}
    assert of(record, DDP).reason == f"not timed, because {LARGER_TOLD}, as the suite expects"
    assert of(record, WFBP).verdict == "equivalent"
    assert (exit_code(record, strict=False), exit_code(record, strict=True)) == (0, 0)


def test_an_expected_change_covers_no_other_change() -> None:
    for further in ({"parameters": 12_689_513}, {"batch_size": 16}):
        record = expecting(LARGER_EXACT, **(LARGER | further))
        assert {case.verdict for case in record.cases if case.check == "resnet18"} == {"changed"}
        assert exit_code(record, strict=False) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parameters": 11_689_513}, "the model changed: 11689512 -> 11689513 parameters"),
        ({"tensors": 61}, "the model changed: 62 -> 61 tensors"),
        ({"grad_bytes": 23_379_024}, "the model changed: 44.6 MiB -> 22.3 MiB of gradients"),
        ({"buffer_bytes": [4096, 8]}, "the model changed: 0 B -> 4.01 KiB of buffers"),
        ({"batch_size": 16}, "the workload changed: batch size 8 -> 16"),
        ({"input": "3×32×32 images"}, "the workload changed: input 3×64×64 images -> 3×32×32 images"),
        (
            {"spec": made.WORKLOAD.spec.model_copy(update={"optimizer": "adamw"})},
            "the workload changed: optimizer sgd -> adamw",
        ),
        (
            {"parameters": 12_689_512, "batch_size": 16},
            "the model changed: 11.7 M -> 12.7 M parameters, batch size 8 -> 16",
        ),
    ],
)
def test_a_change_is_named_with_its_amount(changes: dict[str, object], said: str) -> None:
    assert workload_change("resnet18", made.side("base"), another(**changes)).said == said


def test_a_workload_that_one_side_could_not_build_has_not_changed() -> None:
    assert workload_change("small", made.side("base"), made.side("head")) is None
    assert workload_change("resnet18", made.side("base"), another(title="another title")) is None


def test_only_what_launches_could_decide_is_worth_timing() -> None:
    assert worth_timing(made.regression(pairs=[])) == ["resnet18", "small"]
    assert worth_timing(made.regression(head=another(**LARGER), pairs=[])) == []
    assert worth_timing(expecting(LARGER_EXACT, **LARGER)) == ["small"]
    assert worth_timing(made.regression(pairs=[], layers=("deterministic",))) == []
    elsewhere = made.side("b", environment=made.ENVIRONMENT.model_copy(update={"cores": 16}))
    assert worth_timing(made.regression(base=elsewhere, pairs=[])) == []
    assert worth_timing(with_figure(BUCKETS, 4.0)) == []
    assert worth_timing(with_figure(PLANNED, 0.39)) == ["resnet18", "small"]


def failing() -> Regression:
    """A larger resnet18, and a bucket more in one of its modes."""
    head = another(**LARGER)
    figures = [one.model_copy(update={"value": 4.0}) if one.case == BUCKETS else one for one in head.measurements]
    return made.regression(head=head.model_copy(update={"measurements": figures}), pairs=[])


def test_every_report_shows_the_change_and_no_pass_unless_it_is_expected() -> None:
    record, expected = failing(), expecting(LARGER_EXACT, **LARGER)
    assert [line.partition(":")[0] for line in told.answer(record)] == [
        "In resnet18 the model changed", "Regression in 1 of 8 cases", "Deterministic figures are real and simulated.",
    ]  # fmt: skip
    assert told.answer(expected)[0] == "No regression in 8 cases: 2 equivalent and 6 expected."
    for name in ("terminal", "html", "markdown", "junit", "json", "csv"):
        text = FORMATS.load(name)(record).replace("&gt;", ">").replace("&#45;", "-").replace("\\u003e", ">")
        assert "11.7 M -> 12.7 M parameters" in " ".join(text.split()), name
        assert "changed" in text, name
    for judged, status in ((record, "failed"), (expected, "passed")):
        assert [case.status for case in cases(judged) if case.group == "resnet18"] == [status] * 6
    rows = [line for line in regression_markdown(record).splitlines() if line.startswith("| resnet18/")]
    assert len(rows) == 6
    assert all("❌ changed" in row or "❌ regressed" in row for row in rows)
    lines = workflow_commands(record)
    assert [line.partition(" ")[0] for line in lines] == ["::error"] * 6 + ["::warning"]
    assert lines[0].startswith("::error title=regressed%3A resnet18/optimal buckets::3 → 4, threshold exact: the model")
