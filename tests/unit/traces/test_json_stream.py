"""The stream reads every valid trace whole, whatever its chunks, and says what is wrong with any other file."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import UsageError
from xbench.traces import json_stream
from xbench.traces.json_stream import TraceFile

EVENTS = [{"ph": "X", "name": f"é{index}\n", "ts": index + 0.5, "args": {"dims": [[1, 2], []]}} for index in range(20)]


def read(folder: Path, content: str | bytes) -> tuple[TraceFile, list[dict[str, object]]]:
    """A file of this content in the folder, and its events."""
    path = folder / "t.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    file = TraceFile(path)
    return file, list(file)


@given(st.integers(1, 300), st.sampled_from([None, 1]), st.booleans())
def test_events_do_not_depend_on_chunks_or_layout(
    tmp_path_factory: pytest.TempPathFactory, chunk: int, indent: int | None, first: bool
) -> None:
    keys = {"schemaVersion": 12, "info": {"rank": 1}}
    document = {"traceEvents": EVENTS, **keys} if first else {**keys, "traceEvents": EVENTS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK_BYTES", chunk)
        file, events = read(tmp_path_factory.mktemp("trace"), json.dumps(document, indent=indent))
    assert events == EVENTS
    assert file.header == keys
    assert not file.is_truncated


def test_a_gzip_file_and_a_bare_array_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, gzip.compress(json.dumps(EVENTS).encode()))[1] == EVENTS


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "-nan(ind)", "Infinity", "-Infinity", "NaN", "None"])
def test_a_word_in_place_of_a_number_breaks_no_event(tmp_path: Path, word: str) -> None:
    file, events = read(tmp_path, json.dumps({"traceEvents": EVENTS}).replace('"ts": 7.5', f'"ts": {word}'))
    assert [one for one in events if one["name"] != "é7\n"] == [one for one in EVENTS if one["name"] != "é7\n"]
    assert (len(events), file.broken, file.is_truncated) == (20, [], False)


BROKEN = {
    "bare quotes": ('"é7\\n"', '"call "f" of {x}"'),
    "an odd quote": ('"é7\\n"', '"call "f of {x}'),
    "an odd escape": ('"é7\\n"', r'"C:\x"'),
    "a trailing comma": ('"ts": 7.5, "args"', '"ts": 7.5,, "args"'),
    "a missing colon": ('"ts": 7.5', '"ts" 7.5'),
    "a number of another language": ('"ts": 7.5', '"ts": 1.#INF'),
    "an endless number": ('"ts": 7.5', f'"ts": {"7" * 5000}'),
    "an event written into another": ('"name": "é7\\n"', '"na'),
    "a brace too many": ('"ts": 7.5', '"ts": 7.5}'),
}


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize(("old", "new"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_event_is_left_out_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, chunk: int
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
    keys = {"schemaVersion": 12, "info": {"rank": 1}}
    text = json.dumps({"traceEvents": EVENTS, **keys}, ensure_ascii=False)
    assert old in text
    file, events = read(tmp_path, text.replace(old, new))
    assert [one for one in events if one.get("name") != "é7\n"] == [one for one in EVENTS if one["name"] != "é7\n"]
    assert file.header == keys
    assert (file.broken[0] in ("event 8", "event 9"), file.is_truncated) == (True, False)


def test_the_last_event_may_be_the_broken_one(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS, "info": {"rank": 1}}).replace('"ts": 19.5', '"ts" 19.5')
    file, events = read(tmp_path, text)
    assert (events, file.header) == (EVENTS[:-1], {"info": {"rank": 1}})
    assert (file.broken, file.is_truncated) == (["event 20"], False)


def test_a_broken_value_of_the_header_hides_no_events(tmp_path: Path) -> None:
    text = json.dumps({"schemaVersion": 1, "note": 2, "traceEvents": EVENTS, "rank": 1})
    file, events = read(tmp_path, text.replace('"note": 2', '"note": run {of} "Monday", [x'))
    assert (events, file.header["schemaVersion"], file.header["rank"]) == (EVENTS, 1, 1)
    assert (file.broken, file.is_truncated) == (["the header"], False)


def test_what_other_writers_add_changes_nothing(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS})
    for content in (
        b"\xef\xbb\xbf" + text.encode(),
        gzip.compress(text.encode()) + bytes(512),
        gzip.compress(text[:300].encode()) + gzip.compress(text[300:].encode()),
        text.replace('"ph": "X", ', '"ph": "B", "ph": "X", ', 1).encode(),
        text.replace("é7".encode("ascii", "backslashreplace").decode(), "é7").replace("\\n", "\n").encode(),
        text[:-1].encode() + b', "traceName": "/tmp/cut in the he',
    ):
        file, events = read(tmp_path, content)
        assert (events, file.broken, file.is_truncated) == (EVENTS, [], False)


@pytest.mark.parametrize("first", [{"traceEvents": EVENTS}, EVENTS])
def test_two_traces_in_one_file_are_refused(tmp_path: Path, first: object) -> None:
    with pytest.raises(UsageError, match="more than one trace"):
        read(tmp_path, f"{json.dumps(first)}\n{json.dumps(first)}")


def test_another_packing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("t.json", json.dumps(EVENTS))
    with pytest.raises(UsageError, match="is packed by zip"):
        list(TraceFile(path))


@pytest.mark.parametrize(("packed", "share"), [(False, 0.3), (False, 0.6), (False, 0.95), (True, 0.95)])
def test_a_file_that_ends_early_gives_its_whole_events(tmp_path: Path, packed: bool, share: float) -> None:
    text = json.dumps({"traceEvents": EVENTS}).encode()
    data = gzip.compress(text) if packed else text
    file, events = read(tmp_path, data[: int(len(data) * share)])
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
    with pytest.raises(UsageError) as caught:
        read(tmp_path, content)
    assert str(caught.value) == f"{tmp_path / 't.json'} is not a profiler trace: {why}"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            list(TraceFile(path))


def test_progress_ends_with_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 100)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(EVENTS), encoding="utf-8")
    shares: list[float] = []
    list(TraceFile(path, shares.append))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
