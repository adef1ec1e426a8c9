"""Sentences of reports on less usual runs: other references, one rank, given ranks, traces, sharded modes."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_records as made
from sample_kinds import convergence

from xbench.planning.measured import measured
from xbench.planning.scenario import Change, replan, to_profile, what_if
from xbench.records import Comparison, ModeResult, Profile, load, of_kind
from xbench.report.advice import what_to_paste
from xbench.report.answer import answer, more, ranking
from xbench.report.formats import html, markdown, terminal
from xbench.report.kinds import view_of
from xbench.report.page.model import figures
from xbench.report.planned import further
from xbench.report.sentences import bounds_line, is_below
from xbench.report.snippets import PLAIN_DDP
from xbench.spec import FabricSpec
from xbench.stats.convergence import converged

RESULTS = Path(__file__).parents[3] / "results"


def compared(*results: ModeResult, reference: str = "ddp", **spec: object) -> Comparison:
    record = made.comparison(list(results), reference=reference)
    return record.model_copy(update={"spec": record.spec.model_copy(update={"reference": reference, **spec})})


def stored(name: str, kind: type[Comparison] = Comparison) -> Comparison:
    record = of_kind(load(RESULTS / name), kind)
    assert record is not None
    return record


def test_a_control_that_is_the_reference_is_neither_fastest_nor_advised() -> None:
    compute = made.mode_result("compute", 0.5, (1.0, 1.0, 1.0), "reference")
    single = made.mode_result("single", 0.6, (1.2, 1.19, 1.21), "slower")
    optimal = made.mode_result("optimal", 0.55, (1.1, 1.09, 1.11), "slower")
    record = compared(compute, single, optimal, reference="compute")
    assert "reference compute is no mode to advise" in answer(record)[0]
    assert what_to_paste(record) is None


def test_the_buckets_of_ddp_tuned_are_advised_for_a_ratio_to_ddp_alone() -> None:
    single = made.mode_result("single", 0.6, (1.0, 1.0, 1.0), "reference")
    ddp = made.mode_result("ddp", 0.42, (0.7, 0.69, 0.71), "faster", buckets=4)
    tuned = made.mode_result("ddp-tuned", 0.48, (0.8, 0.79, 0.81), "faster", buckets=4)
    assert not any(
        "ddp-tuned" in one.told for one in view_of(compared(single, ddp, tuned, reference="single")).advice()
    )
    of_ddp = [made.mode_result("ddp", 0.6, (1.0, 1.0, 1.0), "reference", buckets=4),
              made.mode_result("auto", 0.4, (0.7, 0.69, 0.71), "faster", buckets=4), tuned]  # fmt: skip
    assert any("--emit ddp" in (one.command or "") for one in view_of(compared(*of_ddp)).advice())
    sent = view_of(compared(*of_ddp, compress="bf16")).advice()
    assert not any("--emit" in (one.command or "") for one in sent)  # xbench plan refuses the record


def test_ddp_that_wins_is_pasted_as_it_comes() -> None:
    record = stored("mobilenet-v3-small-units-1gbit.json")
    assert ranking(record)[0].mode == "ddp"
    paste = what_to_paste(record)
    assert paste is not None
    assert paste.code == PLAIN_DDP
    assert view_of(record).advice()[0].command is None


def test_without_a_link_there_is_no_bound() -> None:
    record = stored("resnet50-one-rank.json")
    assert record.cost_model is None
    assert "no schedule of one job can beat" not in terminal.render(record)


def test_predictions_of_a_changed_link_or_of_a_trace_name_no_command_that_proves_them() -> None:
    record = made.profile()
    as_measured = replan(what_if(measured(record, "record.json"), Change()), ["ddp", "auto"])
    assert further(as_measured)[-1].command is not None
    changed = replan(what_if(measured(record, "record.json"), Change(workers=16)), ["ddp", "auto"])
    kept = to_profile(changed, "xbench plan")
    assert not any(one.command for one in view_of(kept).advice())
    assert not any(one.command for one in further(replan(what_if(measured(kept, "w.json"), Change()), ["ddp", "auto"])))
    traced = of_kind(load(RESULTS / "traced-a100.json"), Profile)
    assert traced is not None
    again = replan(what_if(measured(traced, "traced.json"), Change()), ["ddp", "auto"])
    assert not any(one.command for one in further(again))
    assert to_profile(again, "xbench plan").traced == traced.traced


def test_the_command_that_proves_a_plan_allows_the_overlap_that_it_was_made_for() -> None:
    planned = replan(what_if(measured(made.profile(), "record.json"), Change()), ["ddp", "auto:forward"])
    command = further(planned)[-1].command
    assert command is not None
    assert "--modes ddp,auto:forward" in command


def test_given_ranks_have_one_launch_so_more_launches_are_not_advised() -> None:
    unsure = made.mode_result("optimal", 0.64, (0.97, 0.9, 1.04), "inconclusive")
    ddp = made.mode_result("ddp", 0.66, (1.0, 1.0, 1.0), "reference")
    record = compared(ddp, unsure, fabric=FabricSpec(name="cluster", hosts=2))
    assert more(record, ranking(record)) == ["More rounds (--rounds N) may decide it, for this launch alone."]


@pytest.mark.parametrize("mode", ["zero1", "fsdp", "hsdp", "ddp+compile"])
def test_a_mode_that_computes_less_than_was_profiled_breaks_no_bound(mode: str) -> None:
    record = made.comparison()
    assert record.bounds is not None
    fast = made.mode_result(mode, record.bounds.compute_s / 2, (0.5, 0.49, 0.51), "faster")
    assert not is_below(fast, record.bounds)
    assert "no schedule of one job can beat" in bounds_line(record.bounds, {mode: fast})
    plain = made.mode_result("optimal", record.bounds.compute_s / 2, (0.5, 0.49, 0.51), "faster")
    assert is_below(plain, record.bounds)


def test_means_of_an_interrupted_run_name_how_many_seeds_each_is_of() -> None:
    whole = convergence()
    curves = [curve for curve in whole.curves if (curve.mode, curve.seed) != ("optimal", 1)]
    modes = converged({"ddp": 1, "optimal": 1}, curves, "ddp", {}, complete=False)
    record = whole.model_copy(update={"curves": curves, "modes": modes, "complete": False})
    table = next(figure for figure in figures(html.contents([record])) if figure.key == "final-accuracy").table
    assert table is not None
    assert [row[1] for row in table.rows] == ["97.50 % [91.15, 100.00]", "97.00 % (1 of 2 seeds)"]
    for text in (terminal.render(record), markdown.render(record)):
        assert text.count("(1 of 2 seeds)") == 1
        assert "2 seeds" in text
    assert "of 2 seeds" not in terminal.render(whole)
