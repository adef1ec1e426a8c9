"""docs/schema.json: the JSON Schema of every kind of record, and true of every committed result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from golden_file import golden

from xbench.records import SCHEMA_VERSION, AnyRecord, json_schema, load
from xbench.records.io import migrated

ROOT = Path(__file__).parents[2]
RECORDS = [
    path
    for folder in ("results", "tests/golden")
    for path in sorted((ROOT / folder).rglob("*.json"))
    if '"schema_version"' in (head := path.read_text(encoding="utf-8")[:4096])
    and '"validation"' not in head  # files of benchmarks/study
]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_file_is_made_from_the_models() -> None:
    golden("schema.json", json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", ROOT / "docs")


def test_it_has_every_kind_of_record() -> None:
    kinds = {kind.model_fields["kind"].default for kind in get_args(AnyRecord)}
    assert json_schema()["discriminator"]["mapping"].keys() == kinds
    assert {migrated(json.loads(path.read_text(encoding="utf-8")))["kind"] for path in RECORDS} == kinds


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_committed_record_is_valid_and_loads(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    validator.validate(migrated(json.loads(path.read_text(encoding="utf-8"))))
    assert load(path).schema_version == SCHEMA_VERSION


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.pop("reference"),
        lambda data: data.update(schema_version=2),
        lambda data: data.update(kind="novel"),
        lambda data: data.update(extra=1),
        lambda data: data["samples"][0].update(step_s="long"),
    ],
)
def test_what_is_wrong_is_not(spoil: Any, validator: jsonschema.Draft202012Validator) -> None:
    data = json.loads((ROOT / "tests" / "golden" / "comparison-v1.json").read_text(encoding="utf-8"))
    spoil(data)
    assert not validator.is_valid(data)
