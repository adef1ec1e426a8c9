"""Errors of predictions summed up, and claims decided, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.records import (
    AutoAgainst,
    Estimate,
    FabricRecord,
    Goal,
    ValidationCell,
    ValidationPoint,
    Verdict,
    WorkloadRecord,
)
from xbench.spec import WorkloadSpec
from xbench.stats.cells import name_of, shown_cells
from xbench.stats.validation import by_distance, goals, summaries, summary


def cell(
    name: str = "resnet18",
    rate: str = "1gbit",
    steps: dict[str, tuple[float, float]] | None = None,
    *,
    bound_s: float | None = 0.5,
    against_ddp: Verdict = "faster",
    against: dict[str, Verdict] | None = None,
    communication_s: float | None = None,
    ratio: float = 1.0,
) -> ValidationCell:
    """`steps`: (predicted, measured) by mode."""
    workload = WorkloadRecord(
        spec=WorkloadSpec(name=name), title=name, parameters=1, tensors=1, grad_bytes=4, batch_size=1, input=""
    )
    fabric = FabricRecord(
        name="shaped", spec=f"shaped:hosts=2,rate={rate}", label="real", backend="gloo", hosts=2, ranks_per_host=1,
        world_size=2, rate_bps={"1gbit": 1e9, "10gbit": 1e10}[rate],
    )  # fmt: skip
    points = [
        ValidationPoint(
            mode=mode, predicted_step_s=predicted, measured_step_s=Estimate(median=took, ci95=(took, took)),
            error=predicted / took - 1, error_at_speed=0.5 * (predicted / took - 1),
            verdict="reference" if mode == "ddp" else against_ddp,
        )
        for mode, (predicted, took) in (steps or {}).items()
    ]  # fmt: skip
    interval = (0.9 * ratio, 1.1 * ratio)
    others = [
        AutoAgainst(mode=mode, ratio=ratio, ci95=interval, verdict=found) for mode, found in (against or {}).items()
    ]
    return ValidationCell(
        workload=workload, fabric=fabric, predicted_on=2, compute_s=0.4, backward_overlap_bound_s=bound_s,
        points=points, auto_against=others, blocks=4, communication_s=communication_s, record="record.json",
    )  # fmt: skip


def test_a_group_s_figures() -> None:
    found = summary("all", [-0.10, 0.02, 0.04, -0.01])
    assert (found.count, found.worst) == (4, 0.10)
    assert found.median == pytest.approx(0.03)
    assert found.p95 == pytest.approx(0.10)
    assert found.bias == pytest.approx(0.005)
    with pytest.raises(ValueError, match="no predictions"):
        summary("none", [])


@given(st.lists(st.floats(-0.9, 10), min_size=1, max_size=60))
def test_the_95th_percentile_is_not_exceeded_by_more_than_one_in_twenty(errors: list[float]) -> None:
    found = summary("all", errors)
    assert sum(abs(error) > found.p95 for error in errors) <= 0.05 * len(errors)
    assert found.median <= found.p95 <= found.worst
    assert found.p95 in [abs(error) for error in errors]


def test_groups_are_all_then_mode_workload_and_fabric_without_the_control() -> None:
    cells = [
        cell("resnet18", "1gbit", {"compute": (9.0, 1.0), "ddp": (1.1, 1.0), "auto": (0.9, 1.0)}),
        cell("vgg11", "10gbit", {"ddp": (1.2, 1.0)}),
    ]
    found = {row.name: row for row in summaries(cells)}
    assert list(found) == [
        "all", "ddp", "auto", "resnet18", "vgg11", "at 1gbit", "at 10gbit"
    ]  # fmt: skip
    assert found["all"].count == 3
    assert found["ddp"].median == pytest.approx(0.15)
    again = summaries(cells, at_speed=True)[0]
    assert again.worst == pytest.approx(0.1)
    assert summaries([]) == []


def said_of(found: list[Goal], words: str) -> Goal:
    """The one claim with these words."""
    (goal,) = [goal for goal in found if words in goal.claim]
    return goal


def test_claims_that_hold() -> None:
    steps = {"ddp": (1.01, 1.0), "auto": (0.53, 0.52)}
    found = goals([cell(steps=steps, against={"ddp": "faster", "wfbp": "equivalent"}, communication_s=0.4)] * 2)
    assert [goal.held for goal in found] == [True] * 8
    assert found[-1].found == "96% of all such seconds, 96% with every cell counted alike"


def test_claims_that_do_not_hold_name_the_cells() -> None:
    steps = {"ddp": (1.3, 1.0), "auto": (1.2, 1.1)}
    slow = cell(steps=steps, against_ddp="slower", against={"ddp": "slower"}, communication_s=0.6, ratio=1.1)
    found = goals([slow, slow])
    assert [goal.held for goal in found] == [False] * 8
    assert "slower beyond the interval in 2 (resnet18 at 1gbit, resnet18" in said_of(found, "not slower").found
    assert "above: resnet18 at 1gbit 120.0%" in said_of(found, "within 6%").found


def test_fast_links_are_not_held_to_the_bound_and_cells_without_auto_to_nothing_of_it() -> None:
    fast = cell(rate="10gbit", steps={"ddp": (1.0, 1.0), "auto": (1.0, 1.0)})
    assert not any("bound" in goal.claim or "removes" in goal.claim for goal in goals([fast]))
    assert len(goals([cell(steps={"ddp": (1.0, 1.0)})])) == 2
    assert goals([cell()]) == []


def test_the_errors_claimed_are_of_every_mode_that_trains_and_of_short_steps_too() -> None:
    steps = {"compute": (9.0, 1.0), "ddp": (1.0, 1.0), "auto": (2.0, 1.0), "wfbp": (0.02, 0.04)}
    found = goals([cell(steps=steps)])
    assert found[0].found == "50.0% of 3 predictions, 1 of steps below 30 ms among them"
    assert found[1].found == "100.0% of 3 predictions, 1 of steps below 30 ms among them"
    assert [goal.held for goal in found[:2]] == [False, False]


def test_short_steps_are_a_group_of_their_own() -> None:
    cells = [cell(steps={"ddp": (1.02, 1.0), "wfbp": (0.02, 0.04)})]
    found = {row.name: row for row in summaries(cells)}
    assert list(found)[:3] == ["all", "steps from 30 ms", "steps below 30 ms"]
    assert found["all"].worst == found["steps below 30 ms"].worst == pytest.approx(0.5)
    assert found["steps from 30 ms"].worst == pytest.approx(0.02)


def test_held_out_cells_are_a_group_of_their_own() -> None:
    cells = [cell(steps={"ddp": (1.02, 1.0)}), cell(steps={"ddp": (1.3, 1.0)}).model_copy(update={"held_out": True})]
    found = {row.name: row for row in summaries(cells)}
    assert list(found)[:3] == ["all", "other cells", "held-out cells"]
    assert found["other cells"].worst == pytest.approx(0.02)
    assert found["held-out cells"].worst == pytest.approx(0.3)
    assert shown_cells(cells, complete=True) == cells
    assert shown_cells(cells, complete=False) == cells[:1]


def test_a_regret_is_claimed_with_its_seconds() -> None:
    steps = {"ddp": (1.0, 1.0), "auto": (0.9, 1.02)}
    found = goals([cell(steps=steps)])
    assert said_of(found, "median of the regret").found == "2.0% (20.0 ms) over 1 cells"
    assert not said_of(found, "median of the regret").held
    assert said_of(found, "95th percentile of the regret").held


def test_skill_is_claimed_on_every_link() -> None:
    good = cell(steps={"ddp": (1.0, 1.1), "auto": (0.6, 0.55)}, communication_s=0.9)
    bad = cell(rate="10gbit", steps={"ddp": (1.0, 1.1), "auto": (1.1, 1.0)}, communication_s=0.6)
    goal = said_of(goals([good, bad]), "naive")
    assert goal.found == "skill at 1gbit +0.80 and +0.88; at 10gbit -1.10 and -1.10"
    assert not goal.held
    assert said_of(goals([good]), "naive").held


def test_cells_are_named_by_workload_and_rate_and_drawn_ones_by_all_that_was_drawn() -> None:
    assert name_of(cell("vgg11", "10gbit")) == "vgg11 at 10gbit"
    assert name_of(cell().model_copy(update={"number": 7})) == "7: resnet18 batch 1 at 1gbit, 2 workers"


def test_held_out_sizes_are_summed_up_by_the_two_numbers_of_workers() -> None:
    def on(workers: int, predicted_s: float) -> ValidationCell:
        one = cell(steps={"compute": (9.0, 1.0), "ddp": (predicted_s, 1.0)})
        return one.model_copy(update={"fabric": one.fabric.model_copy(update={"world_size": workers})})

    found = by_distance([on(2, 3.0), on(8, 1.4), on(4, 1.2), on(4, 0.6)])
    assert [(row.name, row.count) for row in found] == [
        ("measured on 2, predicted for 4 workers", 2), ("measured on 2, predicted for 8 workers", 1),
    ]  # fmt: skip
    # Half of each error, at the speed of the computation there.
    assert [row.p95 for row in found] == pytest.approx([0.2, 0.2])
    assert by_distance([on(2, 3.0)]) == []


def test_auto_is_held_to_ddp_by_a_test_over_cells() -> None:
    steps = {"ddp": (1.0, 1.0), "auto": (0.5, 0.5)}
    with_p = [
        cell(steps=steps, against={"ddp": verdict}, ratio=ratio).model_copy(update={"auto_not_slower_p": p})
        for verdict, ratio, p in (("faster", 0.9, 0.001), ("slower", 0.92, 0.5), ("inconclusive", 0.91, 0.024))
    ]  # fmt: skip
    goal = said_of(goals(with_p), "not slower")
    assert goal.claim == "auto is not slower than ddp by 2% or more, in the mean over cells"
    assert goal.found == (
        "0.910 of ddp's time over 3 cells, at most 0.927 with 95 % confidence; power 64%; of a cell alone shown in 2 "
        "of 3; slower beyond the interval in 1 (resnet18 at 1gbit)"
    )
    assert goal.held


def test_cells_that_cannot_show_it_say_so_and_how_many_could() -> None:
    steps = {"ddp": (1.0, 1.0), "auto": (0.5, 0.5)}
    wide = [cell(steps=steps, against={"ddp": "inconclusive"}, ratio=ratio) for ratio in (0.9, 1.0, 1.1)]
    goal = said_of(goals(wide), "not slower")
    assert not goal.held
    assert goal.found.startswith("0.997 of ddp's time over 3 cells, at most 1.180 with 95 % confidence; ")
    assert "; these cells cannot show it: their power is 8%, and 222 cells would have 90%; of a cell " in goal.found
    assert not any("slower" in goal.claim for goal in goals(wide[:1]))


def test_what_auto_removed_is_held_to_the_bound_of_what_it_may_overlap() -> None:
    auto = cell(steps={"ddp": (1.0, 1.0), "auto": (0.4, 0.4)}, bound_s=0.5)
    both = auto.model_copy(update={"overlap_bound_s": 0.2})
    assert goals([both], "forward")[-1] == Goal(
        claim="auto removes at least 60% of the exposed communication that ddp leaves and overlap with the next "
        "forward pass too could remove, up to 1 Gbit/s",
        found="75% of all such seconds, 75% with every cell counted alike",
        held=True,
    )
    claims = [goal.claim for goal in goals([auto], "forward")]  # a record without that bound decides nothing
    assert not any("bound" in claim or "removes" in claim for claim in claims)
    at_bound = cell(steps={"ddp": (0.5, 0.5), "auto": (0.5, 0.5)}, bound_s=0.5)
    assert goals([at_bound])[-1].found == "nothing can be removed: ddp is at the bound"
