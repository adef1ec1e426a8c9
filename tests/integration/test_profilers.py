"""Clocks, all-reduces and a step, as two real ranks over Gloo on the loopback measure them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typed_commands import said_by_ranks

from xbench.profilers.summary import cost_points, left_out, summarise

pytestmark = pytest.mark.integration

SIZES_BYTES = [1024, 16384, 262144]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    store = tmp_path_factory.mktemp("ranks") / "store"
    said = said_by_ranks(2, Path(__file__).parent / "ranks" / "profiled.py", json.dumps(SIZES_BYTES), store=store)
    return [json.loads(output) for output in said]


def test_clock_offsets_agree_and_hold_the_truth(ranks):
    assert ranks[0]["asked"] == ranks[1]["asked"]
    _, offset_s, error_s = ranks[0]["asked"]
    assert (offset_s[0], error_s[0]) == (0.0, 0.0)
    # Both ranks read the same clock, so the true offset is 0 and must lie within the bound, however slow the machine.
    assert error_s[1] > 0
    assert abs(offset_s[1]) <= error_s[1]


def test_ranks_of_one_kernel_are_not_asked(ranks):
    assert ranks[0]["trusted"] == ranks[1]["trusted"] == [[0.0, 0.0], [0.0, 0.0]]


def test_all_ranks_repeat_equally_often(ranks):
    counts = [[(p["nbytes"], p["warmup"], len(p["start_s"]), len(p["end_s"])) for p in r["points"]] for r in ranks]
    assert counts[0] == counts[1]
    assert [nbytes for nbytes, *_ in counts[0]] == SIZES_BYTES
    assert all(1 + 2 <= starts == ends <= 1 + 8 for _, _, starts, ends in counts[0])
    assert [r["notes"] for r in ranks] == [sum(starts for _, _, starts, _ in counts[0])] * 2


def test_no_rank_has_the_sum_before_all_have_begun(ranks):
    for mine, other in zip(ranks[0]["points"], ranks[1]["points"], strict=True):
        for starts, ends in zip(
            zip(mine["start_s"], other["start_s"], strict=True),
            zip(mine["end_s"], other["end_s"], strict=True),
            strict=True,
        ):
            assert max(starts) < min(ends)


def test_points_and_layers_come_out_of_real_ranks(ranks):
    points = cost_points([rank["points"] for rank in ranks])
    assert [point.nbytes for point in points] == SIZES_BYTES
    assert all(point.transfer_s > 0 and point.wait_s >= 0 and point.repetitions >= 2 for point in points)

    profiles = [rank["profile"] for rank in ranks]
    layers, step = summarise(profiles)
    assert [(layer.name, layer.parameters) for layer in layers] == [("2", 64 * 8 + 8), ("0", 32 * 64 + 64)]
    assert 0 < layers[0].ready_s < layers[1].ready_s
    assert step.steps + step.warmup_steps == 8
    assert left_out(profiles) == {"frozen": [], "unused": []}
    for profile in profiles:
        for at, forward_s in enumerate(profile["steps"]["forward_s"]):
            assert sum(layer["forward_s"][at] for layer in profile["layers"]) == pytest.approx(forward_s, abs=1e-8)
