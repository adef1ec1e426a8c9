"""Leftovers of a case are told from those of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import traces
from .traces import MARK, Traces, marked


def test_only_the_things_of_our_own_runs_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners, temporary, output = (tmp_path / name for name in ("owners", "temporary", "output"))
    for folder in (owners, temporary, output / "run", temporary / "torchinductor_root", temporary / "xbench-0"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(traces, "OWNERS", owners)
    names = ["xb00000a-0", "xb00000a-sw", "xb00000b-0", "other"]
    monkeypatch.setattr(traces, "namespaces", lambda: names)
    (owners / "00000c.json").write_text(json.dumps({"pid": os.getpid()}))
    ours = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | {MARK: "me"})
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with Traces("me", temporary, output) as seen:
        seen.pids.add(dead.pid)
        (owners / "00000a.json").write_text(json.dumps({"pid": ours.pid}))
        (owners / "00000b.json").write_text(json.dumps({"pid": os.getpid()}))
        (owners / "00000d.json").write_text(json.dumps({"pid": dead.pid}))
        (owners / "00000e.json").write_text("{")
        while seen.ids != {"00000a", "00000d"}:
            pass
        assert list(marked("me")) == [ours.pid]
        (owners / "00000a.json").unlink()
    ours.communicate(b"\n")
    (temporary / "xb-12").touch()
    (output / "run" / ".record.json.12-a.part").touch()
    assert set(seen.left()) == {
        "namespace xb00000a-0", "namespace xb00000a-sw", str(owners / "00000d.json"), str(temporary / "xb-12"),
        str(output / "run" / ".record.json.12-a.part"),
    }  # fmt: skip
    assert marked("me") == {}
