"""`xbench validate` on shaped links: two drawn cells, measured once."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import NETNS, TINY, left_behind, xbench

from xbench.records import Validation, load

pytestmark = [pytest.mark.integration, pytest.mark.netns, NETNS]


def test_drawn_cells_are_measured_once_and_the_record_says_what_was_drawn(tmp_path: Path) -> None:
    words = (
        "validate", "--cells", "2", "--seed", "5", "--workloads", TINY, "--rates", "1gbit,10gbit", "--modes",
        "ddp,dear", "--cell-minutes", "0.1", "--output", str(tmp_path),
    )  # fmt: skip
    done = xbench(*words, timeout_s=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = tmp_path.glob("*-validation/record.json")
    record = load(path)
    assert isinstance(record, Validation)
    assert (record.complete, record.discarded) == (True, [])
    assert record.drawing is not None
    assert [cell.number for cell in record.cells] == [1, 2]
    assert [(cell.workload.spec, cell.fabric.spec) for cell in record.cells] == [
        (cell.workload, cell.fabric) for cell in record.drawing.cells
    ]
    for cell in record.cells:
        assert [point.mode for point in cell.points] == ["ddp", "dear"]
        assert [(pair.mode, pair.other) for pair in cell.pairs] == [("ddp", "dear")]
        assert cell.communication_s is not None
    assert [row.count for row in record.skills] == [4, 2, 2]
    assert record.regret is not None
    assert record.regret.cells == 2
    again = xbench(*words)
    assert again.returncode == 2
    assert "this drawing was measured to the end" in again.stderr
    assert left_behind() == ""
