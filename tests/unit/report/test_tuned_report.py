"""The file that `xbench tune` keeps: drawn, pasted, and read again from its golden copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sample_records as made

from xbench.errors import RecordError
from xbench.records import Plan, Ratio, Tuned, dump, load, load_measured
from xbench.report import FORMATS
from xbench.report.formats.terminal import render
from xbench.report.kinds.tuned import PLAIN_DDP, judged, snippet
from xbench.report.snippets import attach_snippet

GOLDEN = Path(__file__).parents[2] / "golden"
AUTO = Ratio(value=0.9, ci95=(0.88, 0.92), verdict="faster")
OPTIMAL = Ratio(value=0.97, ci95=(0.93, 1.01), verdict="inconclusive")


def tuned(**changes: object) -> Tuned:
    """auto won, with two buckets."""
    record = Tuned(
        created="2026-03-01T12:00:00Z", command="xbench tune resnet18", xbench="0.1.0", torch="2.15.0", device="cpu",
        label="real", record="results/runs/20260301-120000-comparison-resnet18/record.json", workload=made.WORKLOAD,
        fabric=made.FABRIC, schedule="auto", reference="ddp", margin=0.02, ratio=AUTO,
        tried={"auto": AUTO, "optimal": OPTIMAL}, buckets=[["fc.bias", "fc.weight"], ["conv1.weight"]],
        bucket_bytes=[1024, 4096], bucket_cap_mb_list=[1024 / 2**20, 4096 / 2**20],
    )  # fmt: skip
    return record.model_copy(update=changes)


def test_the_newest_version_loads_to_exactly_what_was_written() -> None:
    path = GOLDEN / "tuned-v1.json"
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(dump(tuned()), encoding="utf-8")
    assert load(path) == tuned()
    assert dump(load(path)) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [entry.name for entry in FORMATS if "tuned" in entry.facts.get("kinds", ["tuned"])])
def test_every_format_renders_it(name: str) -> None:
    assert "resnet18" in FORMATS.load(name)(tuned())


def test_in_40_columns_no_word_is_broken() -> None:
    lines = render(tuned(), width=40).splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.strip() for line in lines if "[0." in line][1:] == [
        "auto 0.900 [0.880, 0.920]: faster",
        "optimal 0.970 [0.930, 1.010]:",
    ]


def test_it_is_drawn_with_the_answer_first() -> None:
    text = render(tuned())
    assert text.startswith("auto trains resnet18 in 0.900 [0.880, 0.920] of DDP's time: 10 % less a step.\n")
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "auto 0.900 [0.880, 0.920] faster" in rows
    assert "optimal 0.970 [0.930, 1.010] inconclusive" in rows
    assert "buckets 2 buckets" in rows
    plain = render(tuned(schedule="ddp", ratio=None, buckets=None))
    assert plain.startswith("DDP's default is best for resnet18: nothing tried is faster by more than 2 %.\n")


def test_what_to_paste_is_the_schedule_that_won_with_the_file() -> None:
    told = "2 buckets, 0.900 [0.880, 0.920] of DDP's time per sample (real)"
    text = snippet(tuned(), "/home/me/tuned.json")
    plan = Plan(mode="auto", buckets=[], bucket_bytes=[], predicted_step_s=0, predicted_exposed_s=0)
    assert text == attach_snippet(plan, "/home/me/tuned.json", told)
    assert text.startswith(f"# auto: {told}\n")
    assert 'xbench.attach(model, optimizer, schedule="auto", plan=\'/home/me/tuned.json\', wait="step")' in text


def test_ddp_tuned_is_one_argument_of_ddp_and_ddp_is_ddp() -> None:
    text = snippet(tuned(schedule="ddp-tuned"), "tuned.json")
    assert f"    bucket_cap_mb_list=[{1024 / 2**20!r}, {4096 / 2**20!r}],\n" in text
    assert "find_unused_parameters" not in text
    assert "    find_unused_parameters=True,\n" in snippet(
        tuned(schedule="ddp-tuned", unused_parameters=True), "t.json"
    )
    assert snippet(tuned(schedule="ddp", ratio=None, buckets=None), "tuned.json") == PLAIN_DDP
    for pasted in (text, PLAIN_DDP):
        compile(pasted, "pasted", "exec")


def test_it_holds_no_measurements_to_plan_from() -> None:
    with pytest.raises(RecordError, match="is a tuned record, which holds no measurements"):
        load_measured(GOLDEN / "tuned-v1.json")


def test_verdicts_are_given_by_the_margin_that_was_asked_for() -> None:
    record = made.comparison()
    strict = judged(record, 0.2)
    assert record.modes["optimal"].ratio is not None
    assert record.modes["optimal"].ratio.verdict == "faster"
    assert strict.modes["optimal"].ratio is not None
    assert strict.modes["optimal"].ratio.verdict == "equivalent"  # [0.884, 0.900] lies within 20 %
    assert strict.modes["ddp"] == record.modes["ddp"]
