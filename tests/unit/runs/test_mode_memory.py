"""Memory, units and the prediction of torch's own modes, from the ranks' events to the record and its reports."""

from __future__ import annotations

import pytest
from samples_of_runs import A, collector_of, frame, run_of, timed

from xbench.rank.events import MemoryMeasured, UnitsWrapped
from xbench.records import Comparison, dump, loads
from xbench.report.formats import markdown
from xbench.report.kinds import view_of
from xbench.runs.build_records import comparison_record

MIB = 2**20


def measured(mode: str, peak: int | None, *parts: int) -> MemoryMeasured:
    names = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
    return MemoryMeasured(mode=mode, peak_bytes=peak, **dict(zip(names, parts, strict=True)))


@pytest.fixture
def record() -> Comparison:
    """Two ranks on CPUs: under fsdp the second one has more."""
    collector = collector_of(run_of("ddp,fsdp,wfbp", A))
    for mode in ("ddp", "fsdp", "wfbp"):
        timed(collector, mode, 1.0)
    for rank in (0, 1):
        collector.take(0, rank, measured("ddp", None, 8 * MIB, 8 * MIB, 16 * MIB, 4 * MIB))
    collector.take(0, 0, measured("fsdp", None, 4 * MIB, 4 * MIB, 8 * MIB, 4 * MIB))
    collector.take(0, 1, measured("fsdp", None, 5 * MIB, 4 * MIB, 8 * MIB, 4 * MIB))
    collector.take(0, 0, UnitsWrapped(mode="fsdp", units={"blocks.0": ["blocks.0.w"], "": ["head.w"]}))
    found = comparison_record(frame(collector.run), collector)
    assert loads(dump(found)) == found
    return found


def test_a_mode_has_the_memory_of_the_fullest_rank(record: Comparison) -> None:
    memory = record.modes["fsdp"].memory
    assert (memory.peak_bytes, memory.by) == (21 * MIB, "counted")
    assert memory.parameter_bytes == 5 * MIB
    assert record.modes["wfbp"].memory is None


def test_a_peak_of_the_allocator_is_not_a_sum() -> None:
    collector = collector_of(run_of("ddp", A))
    timed(collector, "ddp", 1.0)
    collector.take(0, 0, measured("ddp", 50 * MIB, 8 * MIB, 8 * MIB, 16 * MIB, 4 * MIB))
    memory = comparison_record(frame(collector.run), collector).modes["ddp"].memory
    assert (memory.peak_bytes, memory.by) == (50 * MIB, "allocator")


def test_a_mode_has_its_units(record: Comparison) -> None:
    assert [(unit.name, unit.parameters) for unit in record.modes["fsdp"].units] == [
        ("blocks.0", ["blocks.0.w"]), ("", ["head.w"])
    ]  # fmt: skip
    assert record.modes["ddp"].units == []


def test_every_view_shows_the_memory(record: Comparison) -> None:
    view = view_of(record)
    rows = {row["mode"]: row for row in view.tables()["modes"]}
    assert rows["fsdp"]["memory_peak_bytes"] == 21 * MIB
    assert rows["fsdp"]["memory_by"] == "counted"
    assert rows["fsdp"]["optimizer_bytes"] == 8 * MIB
    assert rows["fsdp"]["units"] == 2
    assert rows["wfbp"]["memory_peak_bytes"] is None
    text = markdown.render(record)
    assert "| `fsdp` | 21.0 MiB (sum) | 5.00 MiB | 4.00 MiB | 8.00 MiB | 4.00 MiB |" in text
    times = next(section for section in view.sections() if section.key == "times")
    assert any(getattr(block, "title", "") == "Memory of a rank" for block in times.blocks)
