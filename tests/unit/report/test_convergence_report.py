"""The record of `xbench converge`: read again from its golden copy, and told in sentences."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sample_records as made

from xbench.errors import RecordError
from xbench.records import (
    Converged,
    Convergence,
    ConvergenceCurve,
    Dataset,
    Training,
    WorkFormula,
    dump,
    load,
    load_measured,
)
from xbench.report import FORMATS
from xbench.report.formats.html import page
from xbench.report.formats.junit import cases
from xbench.report.kinds.convergence import by_formula, verdicts
from xbench.stats.convergence import converged

GOLDEN = Path(__file__).parents[2] / "golden"


def _curve(mode: str, seed: int, accuracy: float, part: float = 1.0) -> ConvergenceCurve:
    return ConvergenceCurve(
        mode=mode, seed=seed, train_loss=[2.5, 1.0], test_loss=[0.5], test_accuracy=[accuracy], steps_s=[0.25, 0.5],
        sent_bytes=1024.0 * part, activation_bytes=[4096.0 * part], activation_peak_bytes=[4096.0],
        backward_flops=[2e6 * part], ranks_agree=True,
        formula=[WorkFormula(sent_bytes=750.0, activation_bytes=3072.0, backward_flops=1.6e6)] if part < 1 else [],
    )  # fmt: skip


def convergence(**changes: object) -> Convergence:
    """ddp and optimal train alike, spb a little less; one mode failed."""
    curves = [_curve("ddp", 0, 0.97), _curve("ddp", 1, 0.98), _curve("optimal", 0, 0.97), _curve("optimal", 1, 0.98),
              _curve("spb", 0, 0.875, 0.75), _curve("spb", 1, 0.905, 0.75)]  # fmt: skip
    modes = {"ddp": 1, "optimal": 1, "spb": 1, "wfbp": 1}
    record = Convergence(
        created="2026-03-01T12:00:00Z", command="xbench converge resnet18", environment=made.ENVIRONMENT,
        fabric=made.FABRIC, label="real", complete=True, workload=made.WORKLOAD,
        dataset=Dataset(name="digits", source="scikit-learn's load_digits", train=1437, test=360, classes=10),
        training=Training(seeds=[0, 1], steps=2, samples=64, epochs=0.5, batch_size=16, optimizer="sgd", lr=0.01),
        reference="ddp", modes=converged(modes, curves, "ddp", {"wfbp": "it needs a plan"}), curves=curves,
    )  # fmt: skip
    return record.model_copy(update=changes)


def test_the_newest_version_loads_to_exactly_what_was_written() -> None:
    path = GOLDEN / "convergence-v1.json"
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(dump(convergence()), encoding="utf-8")
    assert load(path) == convergence()
    assert dump(load(path)) == path.read_text(encoding="utf-8")


def test_verdicts_say_where_a_mean_lies() -> None:
    assert verdicts(convergence()) == [
        "ddp, the reference, ends with an accuracy of 97.50 %, 95 % CI 91.15 to 100.00.",
        "optimal ends with 97.50 %: within ddp's interval (+0.00 points [+0.00, +0.00] seed by seed).",
        "spb ends with 89.00 %: below ddp's interval by 2.15 points (-8.50 points [-21.21, +4.21] seed by seed).",
        "wfbp FAILED: it needs a plan.",
    ]


@pytest.mark.parametrize(
    "name", [entry.name for entry in FORMATS if "convergence" in entry.facts.get("kinds", ["convergence"])]
)
def test_every_format_shows_it(name: str) -> None:
    assert "spb" in FORMATS.load(name)(convergence())


def test_an_incomplete_one_says_so_and_shows_what_is_there() -> None:
    text = FORMATS.load("terminal")(convergence(complete=False, error="rank 1 was killed"))
    assert "INCOMPLETE: rank 1 was killed. What was finished is below." in text
    assert "97.50 %" in text


def test_it_is_no_source_of_measurements() -> None:
    with pytest.raises(RecordError, match="convergence record, which holds no measurements"):
        load_measured(GOLDEN / "convergence-v1.json")


def test_what_spb_should_cost_stands_beside_what_was_measured() -> None:
    assert by_formula(convergence()) == [
        "spb by the formula (simulated): sent 750 B, measured 2.4 % more; kept 3.00 KiB, as measured; "
        "backward 1.60 MFLOP, measured 6.2 % less."
    ]
    assert "spb by the formula (simulated): sent 750 B" in page([convergence()])


def test_a_mode_that_was_not_trained_has_not_failed() -> None:
    record = convergence(complete=False, error="interrupted")
    modes = {**record.modes, "wfbp": Converged(mode="wfbp", status="not trained")}
    record = record.model_copy(update={"modes": modes})
    for name in ("terminal", "markdown", "html"):
        assert "FAILED" not in FORMATS.load(name)(record)
        assert "not trained" in FORMATS.load(name)(record)
    assert [(case.status, case.message) for case in cases(record) if case.name == "wfbp"] == [
        ("skipped", "wfbp was not trained")
    ]
