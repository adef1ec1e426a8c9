"""Every number of a record, replaced by an extreme one: it is refused in a sentence, or every format can show it."""

from __future__ import annotations

import json

import pytest
from hostile import RECORDS, document, kind_of_place, leaves, put, read, share, shown

from xbench.errors import RecordError
from xbench.records import loads

EXTREMES = (0, -1, 1e308, -1e308, 5e-324, 2**63 - 1, -(2**63) + 1, 10**12, 1e100)


@pytest.mark.parametrize("kind", RECORDS)
def test_an_extreme_number_is_refused_or_shown(kind: str) -> None:
    data = document(kind)
    places = {
        kind_of_place(path): path
        for path, value in leaves(data)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    for number, path in enumerate(places.values()):
        for extreme in share(EXTREMES, number):
            before = put(data, path, extreme)
            record = read(data)
            put(data, path, before)
            if record is None:
                continue
            try:
                for _ in shown(record):
                    pass
            except Exception as error:
                raise AssertionError(f"{kind} with {extreme} at {'.'.join(map(str, path))}") from error


@pytest.mark.parametrize("step_s", [0, -1, 1e308, 5e-324, "NaN", "Infinity", 10**30])
def test_a_step_that_takes_no_time_or_for_ever_is_refused(step_s: object) -> None:
    text = json.dumps(document("comparison"))
    first = json.dumps(document("comparison")["samples"][0]["steps_s"])
    assert first in text
    with pytest.raises(RecordError, match="steps_s"):
        loads(text.replace(first, f"[{step_s}]", 1))
