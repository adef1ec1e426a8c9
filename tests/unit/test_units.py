from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import SpecError
from xbench.units import (
    format_brief_percent,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_energy,
    format_percent,
    format_power,
    format_rate,
    format_seconds,
    format_signed_percent,
    parse_bytes,
    parse_rate,
    parse_seconds,
)

PARSERS = [parse_bytes, parse_rate, parse_seconds]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("1024", 1024), ("64k", 65536), ("64 KB", 65536), ("25MiB", 26214400), (".5g", 2**29), (" 1b ", 1)],
)
def test_bytes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [("1gbit", 1e9), ("317mbit", 317e6), ("2.5Gbit", 2.5e9), ("125mbps", 1e9), ("1kibit", 1024), ("9bit", 9)],
)
def test_rates_are_what_tc_takes_them_for(text: str, rate_bps: float) -> None:
    assert parse_rate(text) == pytest.approx(rate_bps)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2", 2), ("1.5s", 1.5), ("20us", 2e-5), ("20µs", 2e-5), ("3 ms", 3e-3), ("2min", 120)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "1 parsec", "-1", "1e3", "nan", "inf", "1..2", "0x10", "9" * 400 + "g"])
@pytest.mark.parametrize("parse", PARSERS)
def test_what_is_no_quantity_is_refused_with_an_example(parse: object, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)  # type: ignore[operator]
    assert caught.value.hint
    assert caught.value.hint.startswith("write it like")


@pytest.mark.parametrize("text", ["1000000", "0gbit", "1gb", "1ms"])
def test_rates_need_a_unit_and_a_size(text: str) -> None:
    with pytest.raises(SpecError):
        parse_rate(text)


@given(st.text(), st.sampled_from(PARSERS))
def test_any_text_is_a_quantity_or_a_spec_error(text: str, parse: object) -> None:
    try:
        value = parse(text)  # type: ignore[operator]
    except SpecError:
        return
    assert value >= 0
    assert math.isfinite(value)


@given(
    st.from_regex(r"\d{1,320}(\.\d{1,9})?\s?(k|m|g|kib|gbit|us|bps|b|min)?", fullmatch=True), st.sampled_from(PARSERS)
)
def test_any_number_with_a_unit_is_a_quantity_or_a_spec_error(text: str, parse: object) -> None:
    test_any_text_is_a_quantity_or_a_spec_error.hypothesis.inner_test(text, parse)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (format_seconds, {0.0: "0 µs", 1.2345: "1.23 s", 0.9999: "1.00 s", 0.0456: "45.6 ms", 7.891e-6: "7.89 µs",
                          123.4: "123 s", -0.002: "-2.00 ms", 3e-9: "0.00 µs"}),
        (format_duration, {45: "45.0 s", 119: "119 s", 2550: "42.5 min", 44_280: "12.3 h", 450_000: "5.21 d"}),
        (format_bytes, {0: "0 B", 512: "512 B", 65536: "64.0 KiB", 102236160: "97.5 MiB", 2**34: "16.0 GiB"}),
        (format_rate, {954e6: "954 Mbit/s", 9.41e9: "9.41 Gbit/s", 1500: "1.50 kbit/s", 7: "7 bit/s"}),
        (format_count, {7: "7", 25_557_032: "25.6 M", 1.3e9: "1.30 G"}),
        (format_percent, {0.123: "12.3 %", -0.02: "-2.0 %", math.inf: "–"}),
        (format_brief_percent, {0.1: "10 %", 0.015: "1.5 %", 1.0: "100 %"}),
        (format_signed_percent, {0.123: "+12.3 %", -0.05: "-5.0 %", -0.0001: "+0.0 %"}),
        (format_power, {347.2: "347 W", 5421: "5.42 kW", 0.2: "0.20 W"}),
        (format_energy, {1.234: "1.23 J", 0.0456: "45.6 mJ", 7890: "7.89 kJ", 0.9999: "1.00 J"}),
        (format_clock, {1980: "1.98 GHz", 345: "345 MHz", 0: "0 MHz"}),
    ],
)  # fmt: skip
def test_every_quantity_has_its_unit_and_nothing_is_a_dash(
    write: Callable[[float | None], str], texts: dict[float, str]
) -> None:
    assert write(None) == "–"
    assert {value: write(value) for value in texts} == texts


@given(st.floats())
def test_every_number_can_be_written(number: float) -> None:
    plain = (format_seconds, format_duration, format_bytes, format_rate, format_count, format_percent)
    for write in (*plain, format_power, format_energy, format_clock):
        assert write(number)
