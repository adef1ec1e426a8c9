from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from xbench.errors import SpecError
from xbench.spec import Effort, FabricSpec, RunSpec, WorkloadSpec, known_options, parse_int, parse_options


def test_options() -> None:
    assert parse_options("resnet50") == ("resnet50", {})
    assert parse_options(" shaped:hosts=2, rate = 1gbit ") == ("shaped", {"hosts": "2", "rate": "1gbit"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no name"),
        (":a=1", "has no name"),
        ("local:", "ends with ':'"),
        ("local:ranks", "'ranks' in 'local:ranks' is not an option"),
        ("local:ranks=", "is not an option"),
        ("local:=2", "is not an option"),
        ("local:ranks=2,", "is not an option"),
        ("local:ranks=2,ranks=3", "'ranks' stands twice"),
    ],
)
def test_options_that_do_not_parse(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_options(text)


@given(st.text() | st.from_regex(r"[a-z:=, ]{0,20}", fullmatch=True))
def test_any_text_is_options_or_a_spec_error(text: str) -> None:
    try:
        name, options = parse_options(text)
    except SpecError:
        return
    assert name
    assert all(key and value for key, value in options.items())
    again = f"{name}:{','.join(f'{key}={value}' for key, value in options.items())}" if options else name
    assert parse_options(again) == (name, options)


def test_known_options() -> None:
    known_options("local:ranks=2", {"ranks": "2"}, ("ranks",))
    with pytest.raises(SpecError, match="unknown option 'rank'") as caught:
        known_options("local:rank=2", {"rank": "2"}, ("ranks",))
    assert caught.value.hint == "did you mean 'ranks'?"
    with pytest.raises(SpecError) as caught:
        known_options("cluster:x=2", {"x": "2"}, ())
    assert caught.value.hint == "it takes no options"


@pytest.mark.parametrize(
    ("value", "hint"), [("1", "try hosts=2"), ("9", "try hosts=8"), ("two", "2 to 8"), ("", "2 to 8")]
)
def test_integers_out_of_range_name_the_nearest(value: str, hint: str) -> None:
    assert parse_int("shaped", "hosts", "8", 2, 8) == 8
    with pytest.raises(SpecError) as caught:
        parse_int("shaped", "hosts", value, 2, 8)
    assert caught.value.hint == hint


@given(st.text() | st.integers().map(str) | st.just("9" * 5000))
def test_any_text_is_an_integer_in_range_or_a_spec_error(value: str) -> None:
    try:
        number = parse_int("shaped", "hosts", value, 2, 8)
    except SpecError:
        return
    assert 2 <= number <= 8


def test_specs_are_frozen_and_closed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Effort().rounds = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        WorkloadSpec(name="resnet18", batch=3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="finite"):
        RunSpec(
            kind="profile",
            workloads=(WorkloadSpec(name="resnet18"),),
            fabric=FabricSpec(name="auto"),
            timeout_s=math.inf,
        )


def test_a_workload_has_a_short_title() -> None:
    assert WorkloadSpec(name="models/train.py:make").title == "train.py:make"
    assert WorkloadSpec(name="resnet18").title == "resnet18"
    assert WorkloadSpec(name="timm/resnet18").title == "timm/resnet18"
