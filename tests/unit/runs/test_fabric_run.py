"""A run on a fabric saves its record however the measurement ends, and its frame before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from samples_of_runs import LINK, MACHINE, collector_of, frame, run_of, timed

from xbench.errors import FabricError, Interrupted, RunError
from xbench.records import Comparison, load
from xbench.runs import fabric_run
from xbench.runs.build_records import comparison_record
from xbench.runs.fabric_run import FabricRun
from xbench.runs.frames import RunFrame
from xbench.runs.progress import Progress

FOUND: Any = SimpleNamespace(warnings=["the model is large"], environment_facts=dict)


class Blocks(FabricRun[RunFrame, Comparison]):
    """One launch, which times blocks and then does what a test says."""

    raised: BaseException | None = None

    def frame(self) -> RunFrame:
        return frame(self.run).model_copy(update=self.fields())

    def record(self, frame: RunFrame, error: str | None) -> Comparison:
        return comparison_record(frame, self.collector, error)

    def measure(self) -> None:
        self.collector = collector_of(self.run)
        self.write_frame()
        timed(self.collector, "ddp", 1.0)
        if self.raised is not None:
            raise self.raised


@contextmanager
def opened(*_: object, **__: object) -> Iterator[Any]:
    yield SimpleNamespace(
        describe=lambda backend: LINK, warnings=["the link is slow"], measure_bandwidth=lambda: None, emulated=None
    )


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Blocks:
    monkeypatch.setattr(fabric_run, "open_fabric", opened)
    monkeypatch.setattr(fabric_run.environment, "capture", lambda facts: MACHINE)
    monkeypatch.setattr(fabric_run.environment, "noise_warnings", lambda: ["the machine is busy"])
    return Blocks(run_of("ddp"), FOUND, Progress(Console(quiet=True), launches=1), tmp_path)


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (None, None, None),
        (RunError("rank 1 was killed"), RunError, "rank 1 was killed"),
        (KeyboardInterrupt(), Interrupted, "interrupted"),
        (OSError(28, "disk full"), RunError, "the launches could not go on: disk full"),
    ],
)
def test_what_was_measured_is_saved_however_it_ends(
    blocks: Blocks, raised: BaseException | None, kind: type[Exception] | None, said: str | None
) -> None:
    blocks.raised = raised
    record, path, error = blocks.execute()
    assert (type(error) if error is not None else None) is kind
    assert (record.error, record.complete, len(record.samples)) == (said, said is None, 6)
    assert record.warnings == ["the model is large", "the machine is busy", "the link is slow"]
    assert path == blocks.path
    assert load(path) == record


def test_an_error_before_the_fabric_is_open_is_raised(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> Any:
        raise FabricError("no namespace can be made")

    monkeypatch.setattr(fabric_run, "open_fabric", refused)
    with pytest.raises(FabricError, match="no namespace"):
        blocks.execute()
    assert list(blocks.folder.iterdir()) == []


def test_a_fabric_that_cannot_be_removed_is_a_warning_of_the_record(
    blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def stays(*_: object, **__: object) -> Iterator[Any]:
        with opened() as fabric:
            yield fabric
        raise FabricError("xb-1a2b3c-0 could not be removed", hint="xbench clean")

    monkeypatch.setattr(fabric_run, "open_fabric", stays)
    record, path, error = blocks.execute()
    assert error is None
    assert (record.complete, len(record.samples)) == (True, 6)
    assert record.warnings[-1] == "xb-1a2b3c-0 could not be removed (xbench clean)"
    assert load(path) == record
