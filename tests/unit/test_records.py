"""Loading and saving: whatever the file holds, the answer is a valid record or one sentence."""

from __future__ import annotations

import functools
import json
import operator
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xbench
from xbench.errors import RecordError
from xbench.records import AnyRecord, dump, load, loads
from xbench.report.formats.terminal import render

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS = {
    kind: (GOLDEN / f"{kind}-v1.json").read_text(encoding="utf-8") for kind in ("comparison", "profile", "scaling")
}

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["profile", "comparison", "ok", "inf", "\ud800", "1" * 5000, "2\n3"]),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=6), children, max_size=4),
    max_leaves=12,
)


def _record_or_sentence(text: str) -> AnyRecord | None:
    """Load; an error must be one short sentence, and a record must survive its own round trip."""
    refusal = None
    try:
        record = loads(text, "some.json")
    except RecordError as error:
        refusal = str(error)
    if refusal is not None:
        assert "\n" not in refusal
        assert len(refusal) < 500
        return None
    assert loads(dump(record)) == record
    return record


def _paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a JSON document is."""
    found = [path] if path else []
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        found += _paths(child, (*path, key))
    return found


def _holder(document: Any, path: tuple[Any, ...]) -> Any:
    """The list or object that holds the value at a path."""
    return functools.reduce(operator.getitem, path[:-1], document)


DOCUMENTS = {kind: json.loads(text) for kind, text in TEXTS.items()}
PATHS = {kind: _paths(document) for kind, document in DOCUMENTS.items()}
# The raw samples are most of the values and all alike: keep one sample, so that every other field gets its turn.
PLACES = {kind: [p for p in paths if p[0] != "samples" or p[1:2] in ((), (0,))] for kind, paths in PATHS.items()}


@settings(max_examples=300)
@given(st.data())
def test_any_value_in_any_place(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(TEXTS)))
    document = json.loads(TEXTS[kind])
    path = data.draw(st.sampled_from(PLACES[kind]))
    holder = _holder(document, path)
    action = data.draw(st.sampled_from(["replace", "remove", "rename"]))
    if action == "replace" or isinstance(holder, list):
        holder[path[-1]] = data.draw(anything)
    else:
        value = holder.pop(path[-1])
        if action == "rename":
            holder[data.draw(st.text(max_size=200))] = value
    record = _record_or_sentence(json.dumps(document))
    if record is not None:
        assert render(record, width=data.draw(st.sampled_from([60, 100])), all_layers=True)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(sorted(TEXTS)))
def test_random_bytes_in_random_places(seed: int, kind: str) -> None:
    chance = random.Random(seed)
    text = list(TEXTS[kind])
    for _ in range(chance.randint(1, 4)):
        text[chance.randrange(len(text))] = chr(chance.randrange(0x20, 0x7F))
    _record_or_sentence("".join(text))


@given(anything)
def test_foreign_json_is_refused(value: object) -> None:
    assert _record_or_sentence(json.dumps(value)) is None


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (2, "has schema version 2, and this xbench reads up to 1"),
        (10**300, "has schema version"),
        (None, "no valid schema_version"),
        ([[1] * 1000], "no valid schema_version"),
        ([[[10**400] * 5] * 5] * 5, "no valid schema_version"),
    ],
)
def test_versions_are_named(version: object, message: str) -> None:
    with pytest.raises(RecordError, match=message) as caught:
        loads(json.dumps(DOCUMENTS["profile"] | {"schema_version": version}))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("number", [10**400, -(10**400), 2**63], ids=["huge", "-huge", "64 bits"])
@pytest.mark.parametrize(
    "path",
    [
        ("environment", "memory_bytes"),
        ("layers", 1, "parameters"),
        ("cost_model", "points", 0, "nbytes"),
        ("plans", "wfbp", "bucket_bytes", 3),
    ],
)
def test_integers_beyond_all_measure_are_refused(number: int, path: tuple[Any, ...]) -> None:
    document = json.loads(TEXTS["profile"])
    holder = _holder(document, path)
    assert holder[path[-1]] is not None
    holder[path[-1]] = number
    with pytest.raises(RecordError, match=f"not a valid xbench result: profile.{path[0]}") as caught:
        loads(json.dumps(document))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*-v1.json")), ids=lambda path: path.stem)
def test_a_record_is_read_by_its_path_as_text_and_shown_in_one_line(path: Path) -> None:
    entry = next(one for one in os.scandir(path.parent) if one.name == path.name)  # a PathLike that is no Path
    record = xbench.load_result(str(path))
    assert record == load(path) == xbench.load_result(entry)
    assert repr(record).startswith(f"{type(record).__name__}(created='{record.created}', command=")
    assert "\n" not in repr(record)
    assert len(repr(record)) < 300


def test_a_cluster_record_of_an_older_version_is_read() -> None:
    data = json.loads((GOLDEN / "cluster-v1.json").read_text(encoding="utf-8"))
    data["runs"][0]["bound_exact"] = True
    data["results"][-1]["gap_exact"] = False
    assert loads(json.dumps(data)) == load(GOLDEN / "cluster-v1.json")


def test_records_are_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        loads(TEXTS["profile"]).complete = False  # type: ignore[misc]
