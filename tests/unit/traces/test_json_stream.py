"""The stream reads every valid trace whole, whatever its chunks, and says what is wrong with any other file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import UsageError
from xbench.traces import json_stream
from xbench.traces.json_stream import TraceFile

EVENTS = [{"ph": "X", "name": f"é{index}\n", "ts": index + 0.5, "args": {"dims": [[1, 2], []]}} for index in range(20)]


def read(path: Path) -> tuple[TraceFile, list[dict[str, object]]]:
    file = TraceFile(path)
    return file, list(file.events())


@given(st.integers(1, 300), st.sampled_from([None, 1]), st.booleans())
def test_events_do_not_depend_on_chunks_or_layout(
    tmp_path_factory: pytest.TempPathFactory, chunk: int, indent: int | None, first: bool
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.json"
    keys = {"schemaVersion": 12, "info": {"rank": 1}}
    document = {"traceEvents": EVENTS, **keys} if first else {**keys, "traceEvents": EVENTS}
    path.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK_BYTES", chunk)
        file, events = read(path)
    assert events == EVENTS
    assert file.header == keys
    assert not file.is_truncated


def test_a_gzip_file_and_a_bare_array_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(EVENTS).encode()))
    assert read(path)[1] == EVENTS


@pytest.mark.parametrize(("packed", "share"), [(False, 0.3), (False, 0.6), (False, 0.95), (True, 0.95)])
def test_a_file_that_ends_early_gives_its_whole_events(tmp_path: Path, packed: bool, share: float) -> None:
    text = json.dumps({"traceEvents": EVENTS}).encode()
    data = gzip.compress(text) if packed else text
    path = tmp_path / "t.json"
    path.write_bytes(data[: int(len(data) * share)])
    file, events = read(path)
    assert file.is_truncated
    assert events == EVENTS[: len(events)]
    assert packed or len(events) > 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not JSON"),
        (b"hello", "it is not JSON"),
        (b"\x00\xff\xfe\x12", "it is not JSON"),
        (b"{}", "it has no traceEvents"),
        (b'{"a": 1}', "it has no traceEvents"),
        (b'{"a": 1, "traceEv', "it ends before its traceEvents"),
        (b'{"a" 1}', "it is not JSON"),
        (b'{"traceEvents": 3}', "it has no traceEvents"),
        (b"[1, 2]", "its events are not objects"),
    ],
)
def test_another_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value) == f"{path} is not a profiler trace: {why}"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read(path)


def test_progress_ends_with_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 100)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(EVENTS), encoding="utf-8")
    shares: list[float] = []
    list(TraceFile(path, shares.append).events())
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
