"""Rules for the fields of records, held by walking all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter

from xbench.field_types import Text
from xbench.records import AnyRecord
from xbench.records.parts import Machine
from xbench.text import visible


def models(kind: Any, seen: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """Every model that is reached from a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
        seen[kind] = None
        for field in kind.model_fields.values():
            models(field.annotation, seen)
    for argument in get_args(kind):
        models(argument, seen)
    return seen


def bare(kind: Any) -> Iterator[Any]:
    """Each `str` in an annotation that no `Text` stands around."""
    if kind is str:
        yield kind
    elif kind is not Text and get_origin(kind) is not Annotated:
        for argument in get_args(kind):
            if isinstance(argument, type) or get_args(argument):
                yield from bare(argument)


MODELS = list(models(Machine, models(AnyRecord, {})))


def test_the_walk_reaches_the_parts() -> None:
    names = {model.__name__ for model in MODELS}
    assert {"Plan", "Tensor", "WorkloadSpec", "FabricSpec", "ModeSpec", "Environment", "Check", "GpuLink"} <= names
    assert list(bare(dict[str, list[Text]])) == [str]
    assert list(bare(tuple[tuple[Text, Text], ...])) == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_no_field_of_a_record_is_a_bare_str(model: type[BaseModel]) -> None:
    annotations = {name: model.__annotations__.get(name) for name in model.model_fields}
    assert [name for name, written in annotations.items() if "str" in str(written).replace("strict", "")] == []
    for name, field in model.model_fields.items():
        if field.annotation is str:  # pydantic takes `Text` apart
            assert field.metadata, name
        else:
            assert list(bare(field.annotation)) == [], name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31m\x07\x9b", r"a\x1b[31m\x07\x9b"),
        ("a\nb\r\tc\x00\x7f", r"a\nb\r\tc\x00\x7f"),
        ("\u202eabc\u2066\u200f\u061c\u2028", r"\u202eabc\u2066\u200f\u061c\u2028"),
        ("\udc80", r"\udc80"),
        ("é 中 😀 👩‍👩‍👧 שלום C:\\new  [x] `a|b`", "é 中 😀 👩‍👩‍👧 שלום C:\\new  [x] `a|b`"),
        ("", ""),
    ],
)
def test_controls_become_marks_and_all_else_stays(text: str, shown: str) -> None:
    assert TypeAdapter(Text).validate_python(text) == shown
    assert TypeAdapter(dict[Text, Text]).validate_python({text: text}) == {shown: shown}
    assert visible(shown) == shown
