"""Crossover points in words, from hand-made steps."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.planning.findings import crossovers
from xbench.records import ScalingPoint

SIZES = (2, 4, 8, 16)


def mode(name: str, steps: Sequence[float], buckets: Sequence[int] = (9, 9, 9, 9)) -> list[ScalingPoint]:
    return [
        ScalingPoint(
            mode=name, workers=size, step_s=step_s, step_band_s=(step_s, step_s), exposed_s=step_s - 1,
            samples_per_s=1.0, efficiency=1 / step_s, buckets=count, largest_bucket_bytes=1,
        )
        for size, step_s, count in zip(SIZES, steps, buckets, strict=False)
    ]  # fmt: skip


def told(*modes: list[ScalingPoint], dtypes: int = 1) -> list[str]:
    return crossovers({points[0].mode: points for points in modes}, dtypes=dtypes)


def test_nothing_to_say() -> None:
    assert crossovers({}) == []
    assert told(mode("wfbp", [1.1, 1.1, 1.1, 1.1])) == []


def test_one_mode_is_fastest_throughout() -> None:
    lines = told(mode("wfbp", [1.3, 1.4, 1.5, 1.6]), mode("mgwfbp", [1.1, 1.2, 1.3, 1.4]))
    assert lines == ["mgwfbp is fastest at every size."]


def test_of_one_size_its_workers_are_named() -> None:
    assert told(mode("wfbp", [1.3]), mode("mgwfbp", [1.1])) == ["mgwfbp is fastest with 2 workers."]


def test_the_fastest_changes() -> None:
    lines = told(mode("wfbp", [1.1, 1.2, 1.8, 1.9]), mode("single", [1.4, 1.4, 1.4, 1.4]))
    assert lines == ["wfbp is fastest with 2 workers, single from 8 on."]


def test_equal_modes_are_named_together() -> None:
    lines = told(mode("mgwfbp", [1.1, 1.2, 1.3, 1.4]), mode("single", [1.102, 1.2, 1.3, 1.4]))
    assert lines == ["mgwfbp and single are fastest at every size."]


def test_when_one_bucket_is_best() -> None:
    steps = [1.1, 1.2, 1.3, 1.4]
    assert told(mode("optimal", steps, [5, 3, 1, 1])) == ["From 8 workers on one bucket is best."]
    assert told(mode("optimal", steps, [1, 1, 1, 1])) == ["At every size one bucket is best."]
    assert told(mode("optimal", steps, [1, 1, 2, 4])) == [
        "Up to 16 workers several buckets are best: optimal has 4 there."
    ]
    assert told(mode("optimal", steps, [5, 2, 2, 2]), dtypes=2) == ["From 4 workers on one bucket a dtype is best."]


def test_one_bucket_is_best_where_nothing_is_faster_whatever_the_exact_plan_has() -> None:
    exact, single = mode("optimal", [1.1, 1.2, 1.5, 1.6]), mode("single", [1.4, 1.4, 1.4, 1.4], [1, 1, 1, 1])
    assert "From 8 workers on one bucket is best." in told(exact, single)
    found = mode("auto", [1.1, 1.2, 1.3, 1.3], [7, 6, 5, 3])
    assert "Up to 16 workers several buckets are best: auto has 3 there." in told(exact, single, found)
    near = mode("auto", [1.1, 1.2, 1.396, 1.396], [7, 6, 5, 3])  # half a percent is no difference
    assert "From 8 workers on one bucket is best." in told(exact, single, near)
    assert told(single) == []


def test_where_ddp_s_default_stops_being_good_enough() -> None:
    best = [1.0, 1.0, 1.0, 1.0]
    assert told(mode("mgwfbp", best), mode("ddp", [1.004, 1.008, 1.2, 1.5])) == [
        "mgwfbp is fastest at every size.",
        "DDP's default buckets are more than 1 % behind the fastest from 8 workers on, by 50 % with 16.",
    ]
    assert told(mode("mgwfbp", best), mode("ddp", [1.3, 1.2, 1.2, 1.2]))[1] == (
        "DDP's default buckets are more than 1 % behind the fastest at every size, by 30 % with 2."
    )
    assert told(mode("mgwfbp", best), mode("ddp", [1.0, 1.0, 1.0, 1.009]))[1] == (
        "DDP's default buckets are within 1 % of the fastest at every size."
    )
    assert told(mode("mgwfbp", best), mode("ddp", [1.0, 1.4, 1.0, 1.0]))[1] == (
        "DDP's default buckets are within 1 % of the fastest with 16 workers, and 40 % behind with 4."
    )


def test_when_even_the_fastest_mostly_waits() -> None:
    lines = told(mode("wfbp", [1.5, 3, 4, 5]), mode("single", [1.6, 1.9, 2.1, 3]))
    assert lines[-1] == "From 8 workers on even the fastest mode waits for gradients for more than half of the step."
    assert told(mode("wfbp", [2.1, 3, 4, 5])) == [
        "At every size even wfbp waits for gradients for more than half of the step."
    ]
