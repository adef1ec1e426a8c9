"""Session of a rank: stamps of a block, notes that ranks leave for each other, and the order of NCCL's launches."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xbench.errors import AlikeError, UsageError, WorkloadError
from xbench.rank import session as session_module
from xbench.rank import store
from xbench.rank.session import Session, keep_order_of_launches
from xbench.rank.store import FileStore
from xbench.schedules import parse_mode


def put_often(folder: Path) -> None:
    for _ in range(500):
        FileStore(folder).put("refused", "yes")


def test_several_processes_may_put_the_same_note_at_once(tmp_path: Path) -> None:
    ranks = [multiprocessing.get_context("fork").Process(target=put_often, args=(tmp_path,)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["refused"]
    assert FileStore(tmp_path).get("refused") == "yes"
    assert not FileStore(tmp_path).has("agreed")


def test_an_error_is_alike_if_every_rank_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ALIKE_S", 0.0)
    monkeypatch.setattr(session_module.dist, "get_world_size", lambda: 2)
    mode, refusal = parse_mode("fsdp"), UsageError("a gradient in shards is used", hint="finish")
    one, other = (SimpleNamespace(board=FileStore(tmp_path), rank=rank, job=0) for rank in range(2))
    with pytest.raises(WorkloadError, match="a gradient in shards is used"):
        Session._raised_alike(one, mode, refusal)  # type: ignore[arg-type]
    assert Session._raised_alike(other, mode, refusal)  # type: ignore[arg-type]
    assert Session._raised_alike(one, parse_mode("zero1"), AlikeError("frozen"))  # type: ignore[arg-type]
    for error in (WorkloadError("its generator ended"), ZeroDivisionError()):
        assert not Session._raised_alike(one, mode, error)  # type: ignore[arg-type]


class DeviceClock:
    """A mark is its own time [s], known after a flush."""

    flushed = False

    def mark(self) -> float:
        return 0.0

    def elapsed_s(self, start: float, end: float) -> float:
        assert self.flushed
        return end - start

    def flush(self) -> None:
        self.flushed = True

    def reset(self) -> None:
        self.flushed = False


def test_stamps_are_read_after_a_flush_and_the_warm_up_is_not_reported() -> None:
    written: list[Any] = []
    reported: list[tuple[float, float]] = []
    session = SimpleNamespace(
        clock=DeviceClock(),
        journal=SimpleNamespace(write=written.append),
        gpu=SimpleNamespace(report=lambda begin_s, end_s, **_: reported.append((begin_s, end_s))),
    )
    stamps = [0.0, 0.5, 1.5]
    Session.tell_block(session, parse_mode("ddp"), (2, 3), 1, (10.0, stamps[0]), stamps)  # type: ignore[arg-type]
    (block,) = written
    assert (block.stamps, block.warmup, block.round, block.position) == ([10.0, 10.5, 11.5], 1, 2, 3)
    assert reported == [(10.5, 11.5)]
    assert not session.clock.flushed


def test_the_order_of_launches_is_kept_for_all_modes_and_the_record_says_so() -> None:
    environ: dict[str, str] = {}
    remark = keep_order_of_launches(environ)
    assert environ == {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
    assert "every mode" in str(remark)
    given = {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}
    assert keep_order_of_launches(given) is None
    assert given == {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}
