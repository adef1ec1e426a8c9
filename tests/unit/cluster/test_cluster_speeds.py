from __future__ import annotations

import math

import pytest
from golden_file import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.speeds import RingRun, RingSpeed, TableSpeed, fit_ring, scaled_speed
from xbench.errors import SpecError
from xbench.records import load

RING = RingSpeed((0.01, 0.002, 1e-9, 0.05), 128.0, 4e8)

thetas = st.tuples(*(st.floats(lo, hi) for lo, hi in ((1e-4, 1e-1), (0, 1e-2), (0, 1e-8), (0, 1.0))))


def _runs(theta: tuple[float, float, float, float], batches: tuple[float, ...]) -> list[RingRun]:
    return [
        RingRun(gpus, batch, RingSpeed(theta, batch, 4e8).step_s(gpus)) for batch in batches for gpus in (1, 2, 4, 8)
    ]


def test_a_ring_is_the_formula() -> None:
    assert RING.sizes is None
    assert RING.step_s(1) == pytest.approx(0.01 * 128 + 0.05)
    assert RING.step_s(4) == pytest.approx(0.01 * 128 / 4 + 0.002 * 3 + 1e-9 * 3 * 4e8 / 4 + 0.05)
    assert RING(4) == pytest.approx(1 / RING.step_s(4))
    assert RING.exposed_share(1) == 0
    assert RING.exposed_share(4) == pytest.approx((0.006 + 0.3) / RING.step_s(4))
    with pytest.raises(ValueError, match="0 GPUs"):
        RING(0)


@pytest.mark.parametrize(
    ("theta", "batch", "nbytes", "said"),
    [
        ((-1.0, 0.0, 0.0, 1.0), 1.0, 1.0, "none below zero"),
        ((math.nan, 0.0, 0.0, 1.0), 1.0, 1.0, "none below zero"),
        ((1.0, 0.0, 0.0, 1.0), 0.0, 1.0, "batch of 0"),
        ((1.0, 0.0, 0.0, 1.0), 1.0, -1.0, "below zero"),
        ((0.0, 1.0, 1.0, 0.0), 1.0, 1.0, "no time"),
    ],
)
def test_what_is_no_ring_is_refused(theta: tuple[float, ...], batch: float, nbytes: float, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        RingSpeed(theta, batch, nbytes)  # type: ignore[arg-type]


@given(thetas)
def test_a_fit_to_a_ring_is_that_ring(theta: tuple[float, float, float, float]) -> None:
    fit = fit_ring(_runs(theta, (32.0, 128.0)), 4e8)
    assert fit.identified
    assert fit.residual < 1e-6
    truth, found = RingSpeed(theta, 256.0, 4e8), fit.speed(256.0)
    for gpus in (1, 3, 16, 64):
        assert found.step_s(gpus) == pytest.approx(truth.step_s(gpus), rel=1e-4)


@given(thetas)
def test_runs_of_one_batch_foretell_that_batch_and_no_other(theta: tuple[float, float, float, float]) -> None:
    fit = fit_ring(_runs(theta, (128.0,)), 4e8)
    assert not fit.identified
    truth = RingSpeed(theta, 128.0, 4e8)
    for gpus in (1, 3, 16):
        assert fit.speed(128.0).step_s(gpus) == pytest.approx(truth.step_s(gpus), rel=1e-4)
    with pytest.raises(SpecError, match="say nothing of batch 64"):
        fit.speed(64.0)


def test_the_held_out_error_is_that_of_each_run_foretold_by_the_others() -> None:
    runs = _runs((0.01, 0.002, 1e-9, 0.05), (32.0, 128.0))
    runs[3] = runs[3]._replace(step_s=2 * runs[3].step_s)
    fit = fit_ring(runs, 4e8)
    without = fit_ring([*runs[:3], *runs[4:]], 4e8)
    assert fit.held_out[3] == pytest.approx(without.speed(32.0).step_s(8) / runs[3].step_s - 1)
    assert fit.held_out[3] == pytest.approx(-0.5, abs=1e-3)
    assert fit.held_out_error > fit.residual > 0.1
    assert fit.residuals[3] == pytest.approx(fit.speed(32.0).step_s(8) / runs[3].step_s - 1)


@given(st.lists(st.floats(0.5, 1.0), min_size=4, max_size=8), st.integers(0, 7))
def test_scaling_all_times_scales_the_fit(times: list[float], power: int) -> None:
    runs = [RingRun(2**place, 64.0, step_s) for place, step_s in enumerate(times)]
    fit = fit_ring(runs, 1e8)
    slower = fit_ring([run._replace(step_s=run.step_s * 2**power) for run in runs], 1e8)
    assert all(value >= 0 for value in fit.theta)
    assert slower.residuals == pytest.approx(fit.residuals, abs=1e-6)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "on no GPUs"),
        ([RingRun(1, 8, 1.0), RingRun(2, 8, 1.0), RingRun(2, 16, 1.0)], "1 and 2 GPUs do not make a ring"),
        ([RingRun(1, 8, 1.0), RingRun(2, 8, 0.0), RingRun(4, 8, 1.0)], "step_s = 0.0"),
        ([RingRun(1, 8, math.inf), RingRun(2, 8, 1.0), RingRun(4, 8, 1.0)], "step_s = inf"),
        ([RingRun(1, math.nan, 1.0), RingRun(2, 8, 1.0), RingRun(4, 8, 1.0)], "batch = nan"),
        ([RingRun(0, 8, 1.0), RingRun(2, 8, 1.0), RingRun(4, 8, 1.0)], "on 0 GPUs"),
        ([RingRun(2, 8, 1.0), RingRun(3, 8, 2.0), RingRun(5, 8, 4.0)], "without any time"),
    ],
)
def test_runs_that_make_no_ring_are_refused(runs: list[RingRun], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        fit_ring(runs, 1.0)


def test_a_table_is_what_was_measured_and_lines_between() -> None:
    table = TableSpeed.of({4: 300.0, 1: 100.0, 16: 600.0})
    assert table.sizes == tuple(range(1, 17))
    assert [table(gpus) for gpus in (1, 4, 16)] == [100.0, 300.0, 600.0]
    assert table(2) == pytest.approx(100 * math.sqrt(3))
    assert table(8) == pytest.approx(300 * math.sqrt(2))
    for gpus in (0, 17):
        with pytest.raises(ValueError, match=f"from 1 to 16 GPUs, and not for {gpus}"):
            table(gpus)


def test_a_table_answers_where_it_is_asked_to() -> None:
    points = {2: 10.0, 4: 20.0}
    exact = TableSpeed.of(points, between=False)
    assert exact.sizes == (2, 4)
    with pytest.raises(ValueError, match="not for 3"):
        exact(3)
    wide = TableSpeed.of(points, outside=True)
    assert wide.sizes is None
    assert wide(1) == pytest.approx(5)
    assert wide(8) == pytest.approx(40)
    assert TableSpeed.of({2: 10.0}, outside=True)(6) == pytest.approx(30)
    with pytest.raises(ValueError, match="not for 0"):
        wide(0)


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1e6), min_size=1, max_size=8))
def test_a_table_stays_between_its_neighbours(points: dict[int, float]) -> None:
    table = TableSpeed.of(points)
    assert table.sizes is not None
    assert (table.sizes[0], table.sizes[-1]) == (min(points), max(points))
    for gpus in table.sizes:
        low = max(size for size in points if size <= gpus)
        high = min(size for size in points if size >= gpus)
        least, most = sorted((points[low], points[high]))
        assert least * (1 - 1e-9) <= table(gpus) <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ((), "no points"),
        (((2, 1.0), (2, 2.0)), "2 GPUs after 2"),
        (((0, 1.0),), "0 GPUs after 0"),
        (((1, 0.0),), "0.0 at 1 GPUs"),
        (((1, math.nan),), "nan at 1 GPUs"),
    ],
)
def test_what_is_no_table_is_refused(points: tuple[tuple[int, float], ...], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        TableSpeed(points)


def test_a_scaling_record_has_speeds() -> None:
    record = load(GOLDEN / "scaling-v1.json")
    speed = scaled_speed(record, "optimal")
    points = {point.workers: point.samples_per_s for point in record.points if point.mode == "optimal"}  # type: ignore[union-attr]
    alone = record.workload.batch_size / record.compute_s  # type: ignore[union-attr]
    assert dict(speed.points) == {1: alone} | points
    with pytest.raises(SpecError, match="several modes, and none is named"):
        scaled_speed(record)
    with pytest.raises(SpecError, match="mode 'optimall'") as raised:
        scaled_speed(record, "optimall")
    assert raised.value.hint == "did you mean 'optimal'?"
    alone_mode = record.model_copy(update={"modes": ["optimal"]})
    assert scaled_speed(alone_mode) == speed


def test_another_record_has_none() -> None:
    with pytest.raises(SpecError, match="kind 'dict' holds no speeds"):
        scaled_speed({"kind": "scaling"})
