"""The study of predictions under benchmarks/study: its drawing, and figures worked out by hand and from its files."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.planning.scale import ERROR_BAND, GROWTH
from xbench.records import Comparison, load

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from study.cells import cell_of  # type: ignore[import-not-found]  # noqa: E402
from study.drawing import Cell, draw, matrix  # type: ignore[import-not-found]  # noqa: E402
from study.figures import (  # type: ignore[import-not-found]  # noqa: E402
    auto_over_ddp,
    groups,
    order,
    regret,
    table,
)

RATES = ("300mbit", "1gbit", "3gbit", "10gbit")
WORKLOADS = [f"{name}:batch-size={size}" for name in "abcd" for size in (2, 4, 8)]
HOSTS = (2, 2, 2, 3, 4)


@given(st.integers(0, 1000))
def test_a_drawing_is_balanced_and_a_quarter_of_it_held_out(seed: int) -> None:
    cells = draw(WORKLOADS, HOSTS, RATES, 24, seed)
    assert len({cell._replace(held_out=False) for cell in cells}) == 24
    assert set(Counter(cell.workload for cell in cells).values()) == {2}
    assert set(Counter(cell.rate for cell in cells).values()) <= {5, 6, 7}
    assert Counter(cell.hosts for cell in cells) == {2: 14, 3: 5, 4: 5}
    assert sum(cell.held_out for cell in cells) == 6
    assert cells == draw(WORKLOADS, HOSTS, RATES, 24, seed)
    assert cells != draw(WORKLOADS, HOSTS, RATES, 24, seed + 1)


def test_all_cells_can_be_drawn_and_no_more() -> None:
    whole = matrix(WORKLOADS[:2], [2], RATES[:2])
    assert whole[1] == Cell(WORKLOADS[1], 2, "300mbit")
    assert {cell._replace(held_out=False) for cell in draw(WORKLOADS[:2], [2, 2], RATES[:2], 4, 0)} == set(whole)
    with pytest.raises(ValueError, match="5 cells cannot be drawn from 4"):
        draw(WORKLOADS[:2], [2], RATES[:2], 5, 0)


def committed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_the_committed_drawing_is_that_of_its_seed() -> None:
    models = {
        "mobilenet_v2": (4, 8, 16),
        "efficientnet_b0": (4, 8, 16),
        "densenet121": (2, 4, 8),
        "resnet18": (4, 8, 16),
    }
    workloads = [f"{name}:batch-size={size}" for name, sizes in models.items() for size in sizes]
    assert [
        (f"{cell['workload']['name']}:batch-size={cell['workload']['batch_size']}", cell["fabric"], cell["held_out"])
        for cell in committed("matrix")["drawing"]["cells"]
    ] == [
        (cell.workload, f"shaped:hosts={cell.hosts},rate={cell.rate}", cell.held_out)
        for cell in draw(workloads, [2, 2, 2, 2, 3, 4], RATES, 24, 37)
    ]


def cell(
    steps: dict[str, tuple[float, float]],
    pairs: dict[tuple[str, str], tuple[float, float]] | None = None,
    rate: str = "1gbit",
) -> dict[str, Any]:
    """`steps`: (predicted, measured) [s] by mode; `pairs`: the interval of the first mode's time over the second's."""
    return {
        "workload": {"title": "net"}, "fabric": {"spec": f"shaped:hosts=2,rate={rate}", "world_size": 2},
        "predicted_on": 2, "compute_s": 0.5, "communication_s": 0.5,
        "points": [
            {"mode": mode, "predicted_step_s": predicted, "measured_step_s": {"median": took},
             "error": predicted / took - 1}
            for mode, (predicted, took) in steps.items()
        ],
        "pairs": [
            {"mode": mode, "other": other, "ratio": math.prod(ends) ** 0.5, "ci95": ends}
            for (mode, other), ends in (pairs or {}).items()
        ],
    }  # fmt: skip


def test_errors_and_skill_of_every_mode_but_the_control_by_link() -> None:
    found = groups(table([
        cell({"compute": (9.0, 1.0), "ddp": (1.1, 1.0), "wfbp": (1.8, 2.0)}),
        cell({"ddp": (1.5, 1.0), "wfbp": (1.5, 2.0)}, rate="10gbit"),
    ]))  # fmt: skip
    assert list(found.index) == ["all", "ddp", "wfbp", "net", "1gbit", "10gbit"]
    # ddp at 1gbit: 10 %, as ddp 10 %, one bucket 0 %; wfbp: 10 %, as ddp 45 %, one bucket 50 %.
    slow, fast = found.loc["1gbit"], found.loc["10gbit"]
    assert slow[["count", "median", "worst", "as_ddp_skill", "one_bucket_skill"]].tolist() == pytest.approx(
        [2, 0.1, 0.1, 1 - 0.1 / 0.275, 0.6]
    )
    assert fast[["median", "p95", "bias", "as_ddp_skill", "one_bucket_skill"]].tolist() == pytest.approx(
        [0.375, 0.5, 0.125, 0.0, -0.5]
    )


def test_the_order_counts_where_a_difference_was_measured() -> None:
    steps = {"a": (1.0, 1.0), "b": (2.0, 1.2), "c": (2.0, 0.8), "d": (3.0, 1.0)}
    found = order([
        cell(steps, {("a", "b"): (0.7, 0.9), ("a", "c"): (1.1, 1.3), ("b", "c"): (1.3, 1.6), ("a", "d"): (0.9, 1.0)}),
        cell(steps, {("b", "a"): (1.05, 1.2), ("a", "unpredicted"): (0.1, 0.2)}),
    ])  # fmt: skip
    # a before b is right twice; a before c is wrong; b and c are predicted equal; a and d were not told apart.
    assert found == {"pairs": 5, "decided": 4, "right": 2, "equal": 1}


def test_regret_is_what_the_predicted_best_takes_longer_than_the_fastest() -> None:
    found = regret(table([
        cell({"compute": (0.1, 0.1), "ddp": (1.0, 2.0), "wfbp": (1.1, 1.6)}),
        cell({"ddp": (1.0, 1.0), "wfbp": (1.1, 1.6)}),
        cell({"ddp": (1.0, 1.1), "wfbp": (1.0, 1.0)}),
        cell({"ddp": (1.0, 1.0)}),
    ]))  # fmt: skip
    assert found.tolist() == pytest.approx([0.25, 0.0, 0.1])


def test_auto_over_ddp_is_a_mean_over_cells_with_its_limit() -> None:
    steps = {"ddp": (1.0, 1.0), "auto": (0.5, 0.5)}
    found = auto_over_ddp([cell(steps, {("ddp", "auto"): (1.25, 1.25)}), cell(steps, {("auto", "ddp"): (0.8, 0.8)})])
    assert found == (pytest.approx(0.8), pytest.approx(0.8), 2)
    assert auto_over_ddp([cell(steps)]) is None


def test_a_comparison_as_a_cell_has_the_predictions_of_its_record() -> None:
    record = load(ROOT / "results" / "emulated-resnet18-1gbit.json")
    assert isinstance(record, Comparison)
    found = cell_of(record)
    assert {point["mode"]: point["predicted_step_s"] for point in found["points"]} == {
        name: mode.predicted_step_s for name, mode in record.modes.items()
    }
    assert len(found["pairs"]) == 36
    carried = cell_of(record, record)
    for point, again in zip(found["points"], carried["points"], strict=True):
        assert again["predicted_step_s"] == pytest.approx(point["predicted_step_s"])


def test_the_error_band_of_scale_is_that_of_the_committed_studies() -> None:
    own, held_out, emulated = (groups_of(name) for name in ("matrix", "held-out", "held-out-emulated"))
    assert math.ceil(100 * own[2, 2].loc["all"].p95) == round(100 * ERROR_BAND.share)
    relied_on = groups(table(committed("validation")["cells"])).loc["from 30 ms"]
    assert math.ceil(100 * (held_out[2, 4].loc["all"].p95_at_speed - relied_on.p95)) == round(100 * GROWTH)
    once, twice = (emulated[2, many].loc["all"] for many in (4, 8))
    assert once["count"] == twice["count"] == 36
    assert 0 < twice.p95_at_speed - once.p95_at_speed <= GROWTH


def groups_of(name: str) -> dict[tuple[int, int], Any]:
    """The groups of a study, by the numbers of workers that it was predicted on and measured on."""
    rows = table(committed(name)["cells"])
    if (rows.predicted_on == rows.workers).all():
        return {(2, 2): groups(rows)}
    return {key: groups(part) for key, part in rows.groupby(["predicted_on", "workers"])}
