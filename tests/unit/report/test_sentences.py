"""Sentences that formats share: emulated links, a profile's step, a scaling's error band, and short predictions."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import sample_predictions as predicted
import sample_records as made
from rich.console import Console
from sample_kinds import GOLDEN

from xbench.planning.measured import read
from xbench.planning.scenario import Change, replan, what_if
from xbench.records import (
    AnyRecord,
    CalibrationPoint,
    CostModel,
    EmulatedLink,
    ErrorBand,
    FabricRecord,
    UnitCost,
)
from xbench.report import FORMATS
from xbench.report.kinds import view_of
from xbench.report.planned import show_planned
from xbench.report.sentences import (
    band_line,
    bounds_line,
    cost_line,
    emulated_line,
    fabric_line,
    input_line,
    instruments_line,
    parts_line,
    workload_line,
)
from xbench.stats.steps import MIN_PREDICTABLE_S

# --- an emulated link -------------------------------------------------------------------------------------------------

MODEL = CostModel(
    backend="emulated", world_size=64, alpha_s=0.00252, beta_s_per_byte=6.3e-10, alpha_ci95=(0.0025, 0.0026),
    beta_ci95=(6.3e-10, 6.3e-10), max_relative_residual=0.01, points=[],
)  # fmt: skip


def fabric(ranks: int) -> FabricRecord:
    return FabricRecord(
        name="emulated", spec="emulated:workers=64,rate=25gbit,latency=20us,topology=ring", label="emulated",
        backend="emulated", hosts=1, ranks_per_host=ranks, world_size=64, rate_bps=25e9,
    )  # fmt: skip


def test_few_ranks_stand_for_many_workers() -> None:
    assert fabric_line(fabric(1)).endswith("(emulated): 1 rank on this machine, which stands for 64 workers")
    assert fabric_line(fabric(2)).endswith("(emulated): 2 ranks on this machine, which stand for 64 workers")
    assert cost_line(MODEL).startswith("all_reduce over 64 emulated workers takes 2.52 ms")


def test_what_was_asked_for_stands_beside_what_was_got() -> None:
    got_s = {20e-6: 22e-6, 100e-6: 104e-6, 1e-3: 1.001e-3, 0.1: 0.1005, 0.01: 0.01002}
    points = [CalibrationPoint(asked_s=asked, got_s=got, ci95=(got, got)) for asked, got in got_s.items()]
    line = emulated_line(EmulatedLink(model=MODEL, calibration=points))
    assert "2.52 ms + 661 µs a MiB; from 1.00 ms up 0.20 % late, below it 3.0 µs" in line


def test_a_link_from_a_record_names_it_and_says_whether_contention_is_in_it() -> None:
    assert "64 workers, as in a/record.json" in emulated_line(EmulatedLink(model=MODEL, source="a/record.json"))
    assert "computation beside a collective 1.2 times as long" in emulated_line(EmulatedLink(model=MODEL, slowdown=1.2))


# --- a paired cost beside unpaired medians ----------------------------------------------------------------------------


def test_medians_that_do_not_agree_with_the_paired_cost_are_said_to_be_unpaired() -> None:
    assert "404 ms [401 ms, 409 ms]: forward 131 ms, backward 259 ms, optimizer 12.0 ms." in parts_line(made.STEP)
    assert "cost +0.5 % [-0.4 %, +1.3 %], by pairs" in instruments_line(made.STEP)
    assert "two medians" not in instruments_line(made.STEP)
    step = made.STEP.model_copy(update={"step_s": 0.376, "uninstrumented_step_s": 0.346, "overhead_ratio": 0.01})
    assert "two medians differ by +8.7 %: they are not of pairs" in instruments_line(step)


def test_a_step_of_several_micro_steps_says_so() -> None:
    spec = made.WORKLOAD.spec.model_copy(update={"accumulate": 4})
    workload = made.WORKLOAD.model_copy(update={"spec": spec, "batch_size": 4 * made.WORKLOAD.batch_size})
    assert f": batch 4 × {made.WORKLOAD.batch_size} of " in workload_line(workload)
    assert f": batch {made.WORKLOAD.batch_size} of " in workload_line(made.WORKLOAD)
    step = made.STEP.model_copy(update={"micro_steps": 4, "accumulate_s": 1.17})
    assert ": 3 micro-steps 1.17 s, then forward 131 ms, backward 259 ms, optimizer 12.0 ms." in parts_line(step)


def test_the_wait_for_a_loader_is_the_first_part_of_the_step() -> None:
    step = made.STEP.model_copy(update={"input_s": 0.101})
    assert ": input 101 ms, forward 131 ms, backward 259 ms, optimizer 12.0 ms." in parts_line(step)
    assert input_line(step) == "a step without communication waits 101 ms (25 %) for its batches"


# --- the error band of a scaling grows with the distance --------------------------------------------------------------

RANGE = (
    "a measured step would take 0.91 to 1.11 times what is shown, if predictions are off by up to 10.0 %: the largest "
    "error of this record's own predictions."
)
GROWS = "Each doubling of the workers adds 10.0 %: held-out sizes, of 4 workers predicted from 2."


def test_the_band_grows_with_the_distance_from_the_workers_that_were_measured() -> None:
    record = predicted.scaling()
    assert band_line(record) == f"Error band: on 8 workers {RANGE} {GROWS}"
    rows = [row for row in view_of(record).tables()["points"] if row["mode"] == "ddp" and row["workers"] in (8, 64)]
    assert [row["step_high_s"] / row["step_s"] for row in rows] == pytest.approx([1 / 0.9, 1 / 0.6])


def test_a_band_that_was_given_holds_for_all_sizes() -> None:
    record = predicted.scaling()
    points = [point.model_copy(update={"step_band_s": (0.9, 1.1)}) for point in record.points]
    given = ErrorBand(share=0.1, source="given with --error-band")
    line = band_line(record.model_copy(update={"points": points, "error_band": given}))
    assert "Each doubling" not in line
    assert line.endswith("10.0 %: given with --error-band.")


# --- every report that shows the prediction of a step too short to predict marks it; no other report does -------------

CAUTION = "Predictions of steps below 30 ms are not reliable here."
SHORT_S = 0.0299


def comparison(step_s: float) -> AnyRecord:
    record = made.comparison()
    first = next(iter(record.modes))
    short = record.modes[first].model_copy(update={"predicted_step_s": step_s})
    return record.model_copy(update={"modes": {**record.modes, first: short}})


def profile(step_s: float) -> AnyRecord:
    record = made.profile()
    first = next(iter(record.plans))
    short = record.plans[first].model_copy(update={"predicted_step_s": step_s})
    return record.model_copy(update={"plans": {**record.plans, first: short}})


def scaling(step_s: float) -> AnyRecord:
    record = predicted.scaling()
    first, *others = record.points
    return record.model_copy(update={"points": [first.model_copy(update={"step_s": step_s}), *others]})


@pytest.mark.parametrize("record_of", [comparison, profile, scaling])
@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
def test_every_format_marks_short_predictions_alone(name: str, record_of: Callable[[float], AnyRecord]) -> None:
    for step_s in (SHORT_S, MIN_PREDICTABLE_S):
        text = " ".join(FORMATS.load(name)(record_of(step_s)).split())
        assert (CAUTION in text) == (step_s == SHORT_S)


@pytest.mark.parametrize("table", [True, False])
def test_plan_marks_them_with_its_table_and_beside_a_snippet(table: bool) -> None:
    found = replan(what_if(read(GOLDEN / "profile-v1.json"), Change()), ["ddp", "optimal"])
    for step_s in (SHORT_S, MIN_PREDICTABLE_S):
        plans = {mode: plan.model_copy(update={"predicted_step_s": step_s}) for mode, plan in found.plans.items()}
        shown = io.StringIO()
        show_planned(replace(found, plans=plans), Console(file=shown, width=100), chosen="optimal", table=table)
        assert (CAUTION in " ".join(shown.getvalue().split())) == (step_s == SHORT_S)


def test_a_bound_that_a_mode_stays_below_is_called_a_reference() -> None:
    bounds = made.BOUNDS
    low_s = bounds.backward_overlap_bound_s * 0.9
    modes = {
        "compute": made.mode_result("compute", 0.1, None, "control"),  # sends nothing
        "spb:k=2": made.mode_result("spb:k=2", low_s, (0.9, 0.9, 0.9), "faster"),  # sends less
        "ddp": made.mode_result("ddp", bounds.backward_overlap_bound_s * 0.995, (1.0, 1.0, 1.0), "reference"),
    }
    plain = bounds_line(bounds)
    assert "no schedule of one job can beat" in plain
    assert bounds_line(bounds, modes) == plain  # part of ddp's interval is above
    modes["optimal"] = made.mode_result("optimal", low_s, (0.9, 0.9, 0.9), "faster")
    said = bounds_line(bounds, modes)
    assert "the model's reference is" in said
    assert said.endswith("It is no bound: optimal took less, so the model is too slow here (simulated)")


def test_two_bounds_that_look_alike_are_one() -> None:
    whole_s = made.BOUNDS.backward_overlap_bound_s
    assert " nor " in bounds_line(made.BOUNDS.model_copy(update={"overlap_bound_s": whole_s * 0.9}))
    assert " nor " not in bounds_line(made.BOUNDS.model_copy(update={"overlap_bound_s": whole_s * (1 - 1e-9)}))


def test_all_fitted_costs_and_those_of_units_are_named() -> None:
    """Sharded modes rest on more collectives than the all-reduce."""
    record = made.comparison()
    assert record.cost_model is not None
    costs = {"all_reduce": record.cost_model, "all_gather": record.cost_model}
    costs = {name: cost.model_copy(update={"collective": name}) for name, cost in costs.items()}
    units = {"fsdp": UnitCost(unit_s=0.002, tensor_s=0.00025)}
    facts = view_of(record.model_copy(update={"other_costs": costs, "unit_costs": units})).link_facts()
    told = [text for name, text in facts if name == "cost model"]
    assert [text.partition(" ")[0] for text in told] == ["all_reduce", "all_reduce", "all_gather"]
    assert ["each is awaited before the next" in text for text in told] == [False, True, False]
    assert ("units", "under fsdp a unit takes the host 2.00 ms and a tensor 250 µs, besides collectives") in facts
