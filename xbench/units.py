"""Parsing and formatting of quantities. All formatting of units is in this module.

Inside the code every quantity is a plain number in its base unit, and its name contains the unit: `step_s` seconds,
`grad_bytes` bytes, `rate_bps` bits per second. Byte sizes use 1024 (KiB, MiB); network rates use 1000, as tc does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from xbench.errors import SpecError
from xbench.text import quoted

Seconds = float
Bytes = int
BitsPerSecond = float

_NUMBER = r"(?P<number>\d+(?:\.\d+)?|\.\d+)"
_BYTES = {"": 1, "b": 1, "k": 1024, "kb": 1024, "kib": 1024, "m": 1024**2, "mb": 1024**2, "mib": 1024**2,
          "g": 1024**3, "gb": 1024**3, "gib": 1024**3}  # fmt: skip
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "m": 60.0, "min": 60.0}
_RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12,
          "kibit": 1024.0, "mibit": 1024.0**2, "gibit": 1024.0**3,
          "bps": 8.0, "kbps": 8e3, "mbps": 8e6, "gbps": 8e9}  # fmt: skip


MAX_BYTES = 2**53
MAX_S = 1e9
FASTEST_BPS = 1e18
"""Largest values that can be typed: 9 PB, 30 years, and an exabit a second."""


def _parse(text: str, units: dict[str, float], what: str, example: str, most: float) -> float:
    match = re.fullmatch(_NUMBER + r"\s*(?P<unit>[a-zµ]*)", text.strip().lower())
    if match is None or match["unit"] not in units:
        raise SpecError(f"{quoted(text)} is not a {what}", hint=f"write it like {example}")
    value = float(match["number"]) * units[match["unit"]]
    if value > most:
        raise SpecError(f"{quoted(text)} is too large for a {what}", hint=f"write it like {example}")
    return value


def parse_bytes(text: str) -> Bytes:
    """Bytes from '64k', '25MiB', '1024'. Raises SpecError."""
    return round(_parse(text, {k: float(v) for k, v in _BYTES.items()}, "size", "64k or 25MiB", MAX_BYTES))


def parse_seconds(text: str) -> Seconds:
    """Seconds from '20us', '3ms', '1.5s', '2'. Raises SpecError."""
    return _parse(text, _SECONDS, "duration", "20us or 1.5s", MAX_S)


def parse_rate(text: str) -> BitsPerSecond:
    """Bits per second from a tc(8) rate: '1gbit', '317mbit', '125mbps' (tc's bps are bytes). Raises SpecError.

    A bare number is refused: tc takes it for bits per second, and people mean something else.
    """
    rate = _parse(text, _RATES, "rate", "100mbit, 1gbit or 10gbit", FASTEST_BPS)
    if rate <= 0:
        raise SpecError(f"the rate {text!r} is not above zero", hint="write it like 100mbit, 1gbit or 10gbit")
    if rate < 1:
        raise SpecError(f"the rate {quoted(text)} is below one bit per second", hint="write it like 100mbit or 1gbit")
    return rate


def format_seconds(seconds: float | None, digits: int = 3) -> str:
    """'1.23 s', '45.6 ms', '7.89 µs'; '–' for None."""
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")), digits=digits)


def format_duration(seconds: float | None) -> str:
    """A long time: '45.0 s', '42.5 min', '12.3 h', '5.21 d'; '–' for None."""
    return _scaled(seconds, ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")), least=2.0)


def format_bytes(nbytes: float | None) -> str:
    """'512 B', '64.0 KiB', '97.5 MiB'; '–' for None."""
    return _scaled(nbytes, ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")), least=1.0, whole=" B")


def format_rate(bits_per_second: float | None) -> str:
    """'954 Mbit/s', '9.41 Gbit/s'; '–' for None."""
    return _scaled(bits_per_second, ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")), whole=" bit/s")


def format_count(count: float | None) -> str:
    """'25.6 M' parameters; '–' for None."""
    return _scaled(count, ((1e9, "G"), (1e6, "M"), (1e3, "k")), least=1.0, whole="")


def format_percent(share: float | None, digits: int = 1) -> str:
    """'12.3 %' from 0.123; '–' for None."""
    if share is None or not math.isfinite(share):
        return "–"
    return f"{100 * share:.{digits}f} %"


def format_brief_percent(share: float | None) -> str:
    """'10 %', '1.5 %': a digit behind the point only where it is not zero; '–' for None."""
    return format_percent(share).replace(".0 ", " ")


def format_signed_percent(share: float | None) -> str:
    """'+12.3 %' from 0.123, '+0.0 %' for a value that rounds to zero; '–' for None."""
    return "–" if share is None else f"{round(100 * share, 1) + 0.0:+.1f} %"


def format_power(watts: float | None) -> str:
    """'347 W', '5.42 kW'; '–' for None."""
    return _scaled(watts, ((1e3, "kW"), (1.0, "W")))


def format_energy(joules: float | None) -> str:
    """'1.23 J', '45.6 mJ', '7.89 kJ'; '–' for None."""
    return _scaled(joules, ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ")))


def format_clock(megahertz: float | None) -> str:
    """'1.98 GHz', '345 MHz'; '–' for None."""
    return _scaled(megahertz, ((1e3, "GHz"), (1.0, "MHz")))


def _scaled(
    value: float | None,
    units: Sequence[tuple[float, str]],
    *,
    digits: int = 3,
    least: float = 0.9995,
    whole: str | None = None,
) -> str:
    """Significant digits in the largest unit of which there are `least`, else in the smallest.

    With `whole`, a unit below them all, a value that is too small for any of them is a whole number of it.
    """
    if value is None or not math.isfinite(value):
        return "–"
    large = [(scale, unit) for scale, unit in units if abs(value) >= scale * least]
    if not large and whole is not None:
        return f"{value:.0f}{whole}"
    scale, unit = large[0] if large else units[-1]
    return f"{_significant(value / scale, digits)} {unit}"


def _significant(value: float, digits: int) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    before = max(1, math.floor(math.log10(abs(value))) + 1)
    return f"{value:.{max(0, digits - before)}f}"
