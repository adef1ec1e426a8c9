"""What a report says of an emulated link: who stands for whom, what was asked for, and how well it was kept."""

from __future__ import annotations

from xbench.records import CalibrationPoint, CostModel, EmulatedLink, FabricRecord
from xbench.report.sentences import cost_line, emulated_line, fabric_line

MODEL = CostModel(
    backend="emulated", world_size=64, alpha_s=0.00252, beta_s_per_byte=6.3e-10, alpha_ci95=(0.0025, 0.0026),
    beta_ci95=(6.3e-10, 6.3e-10), max_relative_residual=0.01, points=[],
)  # fmt: skip


def point(asked_s: float, got_s: float) -> CalibrationPoint:
    return CalibrationPoint(asked_s=asked_s, got_s=got_s, ci95=(got_s, got_s))


def fabric(ranks: int) -> FabricRecord:
    return FabricRecord(
        name="emulated", spec="emulated:workers=64,rate=25gbit,latency=20us,topology=ring", label="emulated",
        backend="emulated", hosts=1, ranks_per_host=ranks, world_size=64, rate_bps=25e9,
    )  # fmt: skip


def test_few_ranks_stand_for_many_workers() -> None:
    assert fabric_line(fabric(1)).endswith("(emulated): 1 rank on this machine, which stands for 64 workers")
    assert fabric_line(fabric(2)).endswith("(emulated): 2 ranks on this machine, which stand for 64 workers")


def test_what_was_fitted_on_it_is_of_emulated_workers() -> None:
    assert cost_line(MODEL).startswith("all_reduce over 64 emulated workers takes 2.52 ms")


def test_what_was_asked_for_stands_beside_what_was_got() -> None:
    points = [
        point(20e-6, 22e-6),
        point(100e-6, 104e-6),
        point(1e-3, 1.001e-3),
        point(0.1, 0.1005),
        point(0.01, 0.01002),
    ]
    said = emulated_line(EmulatedLink(model=MODEL, calibration=points))
    assert said == (
        "asked for 2.52 ms + 661 µs a MiB; from 1.00 ms up 0.20 % late, below it 3.0 µs (calibrated by itself, median)"
    )


def test_a_link_from_a_record_names_it_and_says_whether_contention_is_in_it() -> None:
    assert emulated_line(EmulatedLink(model=MODEL, source="a/record.json")) == (
        "asked for 2.52 ms + 661 µs a MiB and 64 workers, as in a/record.json"
    )
    assert "computation beside a collective 1.2 times as long" in emulated_line(EmulatedLink(model=MODEL, slowdown=1.2))
