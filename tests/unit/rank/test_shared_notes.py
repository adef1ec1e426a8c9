"""Notes that ranks leave for each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from xbench.errors import AlikeError, UsageError, WorkloadError
from xbench.rank import session as session_module
from xbench.rank import shared_notes
from xbench.rank.session import Session
from xbench.rank.shared_notes import FileStore
from xbench.schedules import parse_mode

PUT_OFTEN = """
import sys
from pathlib import Path
from xbench.rank.shared_notes import FileStore
for _ in range(500):
    FileStore(Path(sys.argv[1])).put("refused", "yes")
"""


def test_several_processes_may_put_the_same_note_at_once(tmp_path: Path) -> None:
    ranks = [subprocess.Popen([sys.executable, "-c", PUT_OFTEN, str(tmp_path)]) for _ in range(3)]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["refused"]
    assert FileStore(tmp_path).get("refused") == "yes"
    assert not FileStore(tmp_path).has("agreed")


def test_an_error_is_alike_if_every_rank_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_notes, "ALIKE_S", 0.0)
    monkeypatch.setattr(session_module.dist, "get_world_size", lambda: 2)
    mode, refusal = parse_mode("fsdp"), UsageError("a gradient in shards is used", hint="finish")
    one, other = (SimpleNamespace(board=FileStore(tmp_path), rank=rank, job=0) for rank in range(2))
    with pytest.raises(WorkloadError, match="a gradient in shards is used"):
        Session._raised_alike(one, mode, refusal)  # type: ignore[arg-type]
    assert Session._raised_alike(other, mode, refusal)  # type: ignore[arg-type]
    assert Session._raised_alike(one, parse_mode("zero1"), AlikeError("frozen"))  # type: ignore[arg-type]
    for error in (WorkloadError("its generator ended"), ZeroDivisionError()):
        assert not Session._raised_alike(one, mode, error)  # type: ignore[arg-type]
