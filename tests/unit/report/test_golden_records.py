"""The record's file format, one golden file a schema version: what an older xbench wrote must load for ever.

Only the newest version's files may be rewritten (`XBENCH_UPDATE_GOLDEN=1`), and only while it is unreleased.
"""

from __future__ import annotations

import json

import pytest
from golden_file import golden
from sample_kinds import GOLDEN, RESNET18

from xbench.errors import RecordError
from xbench.records import SCHEMA_VERSION, Contention, dump, load, load_measured, loads


@pytest.mark.parametrize("kind", [name for name in RESNET18 if "-" not in name])
def test_the_newest_version_loads_to_exactly_what_was_written(kind: str) -> None:
    name = f"{kind}-v{SCHEMA_VERSION}.json"
    golden(name, dump(RESNET18[kind]()))
    assert load(GOLDEN / name) == RESNET18[kind]()


@pytest.mark.parametrize(
    ("threads", "heap", "tuned"), [("first", "keep", True), ("first", None, None), ("plain", "system", None)]
)
def test_fields_of_older_versions_are_left_out_or_renamed(threads: str, heap: str | None, tuned: bool | None) -> None:
    record = load_measured(GOLDEN / "profile-v1.json")
    data = json.loads(dump(record))
    del data["spec"]["host_tuning"]
    data["spec"] |= {"gloo_threads": threads, "heap": heap, "copies": None, "nvtx": False}
    contention = {"launch_s": 1e-5, "points": []}
    loaded = loads(json.dumps(data | {"contention": contention | {"stalls": [{"buckets": 1, "seconds": 9.0}]}}))
    assert loaded == record.model_copy(
        update={
            "spec": record.spec.model_copy(update={"host_tuning": tuned}),
            "contention": Contention.model_validate(contention),
        }
    )


@pytest.mark.parametrize("kind", RESNET18)
def test_records_survive_the_round_trip(kind: str) -> None:
    assert loads(dump(RESNET18[kind]())) == RESNET18[kind]()


@pytest.mark.parametrize("kind", ["baseline", "convergence", "regression", "scaling", "tuned"])
def test_what_holds_no_measurements_is_no_source_of_them(kind: str) -> None:
    with pytest.raises(RecordError, match=f"{kind} record, which holds no measurements"):
        load_measured(GOLDEN / f"{kind}-v1.json")
