"""The figures of the HTML page, number by number: they are plotly traces, so a test reads what a browser draws."""

from __future__ import annotations

import itertools

import pytest
import sample_predictions as predicted
import sample_records as made
from hypothesis import given
from hypothesis import strategies as st

from xbench.records import Slice, Timeline, Unit
from xbench.report.advice import what_to_paste
from xbench.report.charts.axes import byte_ticks, marks, named, plain, time_unit
from xbench.report.charts.bars import (
    bounds_per_sample,
    fastest_first,
    predicted_and_measured,
    time_per_sample,
    verdict_badge,
)
from xbench.report.charts.launches import over_time
from xbench.report.charts.layers import link_cost, waterfall
from xbench.report.charts.steps import comparison_steps, sub_rows, waits
from xbench.report.kinds.convergence import grouped
from xbench.report.kinds.scaling import figures as scaling_figures
from xbench.report.kinds.tuned import tried_figure
from xbench.report.page.model import Figure


def _found(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def test_bars_are_times_per_sample_fastest_first() -> None:
    figure = _found(time_per_sample(made.comparison()))
    bars, hatched = figure.traces
    assert figure.layout["yaxis"]["categoryarray"] == [*bars["y"], "compute"]
    assert bars["y"] == ["optimal", "mgwfbp", "wfbp", "ddp", "single"]
    assert bars["x"] == pytest.approx([36.625, 37, 38.1875, 41.0625, 51.125])
    assert bars["x"][0] + bars["error_x"]["array"][0] == pytest.approx(36.625 * 1.012)
    assert bars["x"][0] - bars["error_x"]["arrayminus"][0] == pytest.approx(36.625 * 0.99)
    assert bars["marker"]["color"] == ["--c1", "--bar", "--bar", "--bar", "--bar"]
    assert bars["marker"]["line"]["width"] == [0, 0, 0, 2, 0]
    assert (hatched["y"], hatched["x"]) == (["compute"], [pytest.approx(25.125)])
    assert hatched["marker"]["pattern"]["shape"] == "/"


def test_bounds_are_drawn_per_sample_and_called_simulated() -> None:
    record = made.comparison()
    bounds = bounds_per_sample(record)
    assert bounds == {
        "compute alone": 0.402 / 16,
        "bound, next forward starts early": 0.4161 / 16,
        "bound, next forward waits": 0.5482 / 16,
    }
    shapes = _found(time_per_sample(record)).layout["shapes"]
    assert [shape["x0"] for shape in shapes] == pytest.approx([25.125, 26.00625, 34.2625], rel=1e-5)
    assert all(shape["name"].endswith("(simulated)") and shape["showlegend"] for shape in shapes)


def test_bounds_of_different_jobs_are_left_out() -> None:
    job = made.comparison().jobs[0]
    assert bounds_per_sample(made.comparison(jobs=[job, job], bounds=None)) == {}
    assert bounds_per_sample(made.comparison(samples=[])) == {}
    record = made.comparison()
    first = record.spec.workloads[0]
    apart = record.spec.model_copy(update={"workloads": (first, first.model_copy(update={"name": "vgg11"}))})
    assert bounds_per_sample(record.model_copy(update={"spec": apart})) == {}


def test_a_verdict_is_one_word_and_failed_modes_stand_last() -> None:
    record = made.troubled()
    assert {mode: verdict_badge(record, result).text for mode, result in record.modes.items()} == {
        "ddp": "reference", "optimal": "inconclusive", "mgwfbp": "FAILED", "single": "FAILED"
    }  # fmt: skip
    assert verdict_badge(made.comparison(), made.comparison().modes["compute"]).text == "control"
    assert [result.mode for result in fastest_first(record)] == ["optimal", "ddp", "mgwfbp", "single"]


def test_predictions_stand_beside_measurements() -> None:
    _, measured, predicted = _found(predicted_and_measured(made.comparison())).traces
    assert measured["y"] == predicted["y"] == ["optimal", "mgwfbp", "wfbp", "ddp", "single"]
    assert predicted["x"] == pytest.approx([0.985 * step for step in measured["x"]])


def _timeline(compute: list[tuple[float, float]], link: list[tuple[float, float]]) -> Timeline:
    return Timeline(
        label="real",
        compute=[Slice(name="backward x", start_s=start, end_s=end) for start, end in compute],
        communication=[Slice(name="bucket", start_s=start, end_s=end, nbytes=8) for start, end in link],
    )


def test_gaps_of_the_device_are_waits() -> None:
    gaps = waits(_timeline([(0, 1), (1.001, 2), (3, 3.5)], [(1, 3)]))
    assert [(gap.start_s, gap.end_s) for gap in gaps] == [(2, 3)]
    assert [gap.end_s for gap in waits(_timeline([(0, 1)], [(0.5, 4)]))] == [4]
    assert waits(_timeline([(0, 1), (2, 3)], [])) == []  # nothing travels


SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=30
)


@given(SPANS)
def test_slices_of_one_sub_row_never_overlap(spans: list[tuple[int, int]]) -> None:
    rows = sub_rows([Slice(name="", start_s=start, end_s=end) for start, end in spans])
    for row in set(rows):
        mine = sorted(span for span, of in zip(spans, rows, strict=True) if of == row)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine))
    busiest = max((sum(start <= at < end for start, end in spans) for at, _ in spans), default=0)
    assert len(set(rows)) == busiest


def test_a_step_is_drawn_measured_above_predicted() -> None:
    best, reference, *others = drawn = comparison_steps(made.comparison())
    assert [best.title, reference.title] == ["One step of optimal", "One step of ddp"]
    assert [figure.folded for figure in drawn] == [False, False, *[True] * len(others)]
    assert len(others) > 0
    assert all(figure.layout["xaxis"]["range"] == best.layout["xaxis"]["range"] for figure in others)
    assert best.labels == ["real", "simulated"]
    assert best.layout["yaxis"]["ticktext"] == ["measured<br>compute", "measured<br>link", "predicted<br>compute",
                                                "predicted<br>link"]  # fmt: skip
    exposed = next(trace for trace in best.traces if trace["name"].endswith("exposed"))
    assert exposed["base"][0] == pytest.approx(390)
    assert exposed["x"][0] == pytest.approx(574 - 390)
    assert exposed["y"][0] == pytest.approx(0)


def test_a_layer_lies_where_its_backward_pass_ran() -> None:
    layers = made.layers(3)
    backward, travels, sizes = _found(waterfall(layers, made.COST, "real")).traces
    assert backward["base"] == pytest.approx([0, 18.5, 37])
    assert backward["x"] == pytest.approx([18, 17.5, 17])
    assert travels["base"] == pytest.approx([18, 36, 54])
    assert sizes["x"] == [layer.grad_bytes for layer in layers]
    assert sizes["xaxis"] == "x2"


@pytest.mark.parametrize("count", [1, 45, 46, 107, 400])
def test_named_layers_are_few_and_reach_from_end_to_end(count: int) -> None:
    ticks = _found(waterfall(made.layers(14) * (count // 14) + made.layers(count % 14), None, "real")).layout["yaxis"]
    assert len(ticks["tickvals"]) == len(ticks["ticktext"]) <= 45
    assert ticks["tickvals"][0] <= count / 10 + 1
    assert ticks["tickvals"][-1] >= count * 0.9
    assert count > 45 or ticks["tickvals"] == list(range(1, count + 1))


def test_without_a_cost_model_nothing_travels() -> None:
    assert len(_found(waterfall(made.layers(3), None, "real")).traces) == 2
    assert waterfall([], made.COST, "real") is None
    assert link_cost(None, "real") is None


def test_the_link_s_points_are_the_measured_ones() -> None:
    line, _, points = _found(link_cost(made.COST, "real")).traces
    assert points["x"] == [point.nbytes for point in made.COST.points]
    assert points["y"] == pytest.approx([1e3 * point.transfer_s for point in made.COST.points])
    assert line["y"][-1] == pytest.approx(1e3 * (0.00043 + 8.9e-9 * 46758048))


def test_every_step_has_its_mark() -> None:
    record = made.comparison()
    *modes, warm, flagged = _found(over_time(record)).traces
    assert sum(len(trace["x"]) for trace in modes) == sum(len(sample.steps_s) for sample in record.samples)
    assert len(warm["x"]) == sum(len(sample.warmup_s) for sample in record.samples)
    assert all(symbol.endswith("-open") for symbol in warm["marker"]["symbol"])
    assert len(flagged["x"]) == 5
    first = next(trace for trace in modes if trace["name"] == record.samples[0].mode)
    assert first["x"][0] == pytest.approx(3.2 * 0.3672)
    assert first["y"][0] == pytest.approx(367.2)


def test_launches_stand_one_after_the_other() -> None:
    figure = _found(over_time(made.comparison()))
    assert [note["text"] for note in figure.layout["annotations"]] == ["launch 1", "launch 2"]
    (parting,) = figure.layout["shapes"]
    ends = [x for trace in figure.traces for x, said in zip(trace["x"], trace["customdata"], strict=True)
            if "launch 1," in said]  # fmt: skip
    assert max(ends) < parting["x0"]


def test_a_first_step_far_above_the_rest_does_not_set_the_axis() -> None:
    record = made.comparison()
    cold = record.samples[0].model_copy(update={"warmup_s": [30.0]})
    figure = _found(over_time(record.model_copy(update={"samples": [cold, *record.samples[1:]]})))
    assert figure.layout["yaxis"]["range"] == [0, pytest.approx(1.25 * 1.245 * 605, abs=0.1)]


def test_a_scaling_is_a_curve_a_mode() -> None:
    record = predicted.scaling()
    steps, efficiency, throughput = scaling_figures(record)
    *curves, compute = steps.traces
    assert [curve["name"] for curve in curves] == record.modes
    assert curves[0]["x"] == record.workers
    steps_s = [point.step_s for point in record.points if point.mode == "ddp"]
    assert compute["name"] == "compute alone"
    scale = compute["y"][0] / record.compute_s
    assert curves[0]["y"] == pytest.approx([scale * step_s for step_s in steps_s], rel=1e-5)
    assert (efficiency.title, throughput.title) == ("Scaling efficiency", "Throughput")


def test_a_scaling_without_a_known_batch_draws_no_throughput() -> None:
    record = predicted.scaling()
    points = [point.model_copy(update={"samples_per_s": None}) for point in record.points]
    steps, efficiency = scaling_figures(record.model_copy(update={"points": points}))
    assert steps.table is not None
    assert {row[5] for row in steps.table.rows} == {"–"}
    assert efficiency.title == "Scaling efficiency"


def test_ratios_of_what_was_tried() -> None:
    from sample_kinds import tuned

    (points,) = _found(tried_figure(tuned())).traces
    tried = sorted(tuned().tried.values(), key=lambda ratio: ratio.value)
    assert points["x"] == [ratio.value for ratio in tried]
    assert tried_figure(tuned(tried={})) is None


@pytest.mark.parametrize(
    ("mode", "part"),
    [
        ("ddp-tuned", "bucket_cap_mb_list="),  # DDP's own argument
        ("dear", "handle.finish()"),  # updates are put off
        ("horovod", 'schedule="horovod"'),  # no plan
    ],
)
def test_each_schedule_is_pasted_as_it_is_used(mode: str, part: str) -> None:
    best = made.mode_result(mode, 0.5, (0.8, 0.78, 0.82), "faster", buckets=0 if mode == "horovod" else 3)
    found = what_to_paste(made.comparison([made.comparison().modes["ddp"], best]))
    assert found is not None
    assert part in f"{found.told} {found.code}"


def test_planned_units_are_pasted_as_lines_of_torch() -> None:
    units = [Unit(name="a.0, a.1", parameters=["w"]), Unit(name="a.2", parameters=["v"]), Unit(name="", parameters=[])]
    best = made.mode_result("auto:shard", 0.5, (0.8, 0.78, 0.82), "faster").model_copy(update={"units": units})
    found = what_to_paste(made.comparison([made.comparison().modes["ddp"], best]))
    assert found is not None
    assert found.told == "Wrap the units of auto:shard by fully_shard, before the optimizer is made:"
    assert found.code is not None
    compile(found.code, "pasted", "exec")
    assert "    ['a.0', 'a.1'],\n    ['a.2'],\n]" in found.code
    assert found.code.endswith("\n        module.set_force_sum_reduction_for_comms(True)  # over Gloo, some versions "
                               "of torch do not average\n")  # fmt: skip


@pytest.mark.parametrize(
    ("longest_s", "unit"), [(12.0, "s"), (1.0, "s"), (0.999, "ms"), (0.001, "ms"), (0.0009, "µs"), (0.0, "µs")]
)
def test_axes_of_time_have_readable_units(longest_s: float, unit: str) -> None:
    assert time_unit(longest_s).name == unit


def test_ticks_of_bytes_are_round_in_binary() -> None:
    assert byte_ticks(10 * 2**20) == {"tickvals": [0, 4 * 2**20, 8 * 2**20], "ticktext": ["0", "4 MiB", "8 MiB"]}
    assert byte_ticks(0)["tickvals"] == [0]


@given(st.floats(1, 1e13), st.integers(1, 8))
def test_there_are_never_too_many_ticks(largest: float, count: int) -> None:
    ticks = byte_ticks(largest, count)
    assert len(ticks["tickvals"]) == len(ticks["ticktext"]) <= count + 1
    assert ticks["tickvals"][-1] <= largest


def test_names_of_modes_fit_an_axis() -> None:
    assert named("optimal") == "optimal"
    assert named("spb:variant=temporal,k=4") == "spb:<br>variant=temporal,<br>k=4"
    assert named("<b>") == "&lt;b&gt;"


@given(st.text())
def test_no_text_is_a_tag_to_plotly(text: str) -> None:
    assert "<" not in plain(text)
    assert ">" not in plain(text)


def test_fifty_modes_have_fifty_marks() -> None:
    assert len({mark[:2] for mark in marks(f"mode{number}" for number in range(50)).values()}) == 50


def test_losses_are_means_of_whole_groups() -> None:
    assert grouped([1, 3, 5, 7, 9], 2) == [2, 6]
