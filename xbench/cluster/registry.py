"""The policies by name, and their options: `srtf`, `fixed-4`, `las:thresholds=3600+36000,promote=8`.

| fact of an entry | meaning |
| --- | --- |
| `speeds` | jobs need a known speed on several numbers of GPUs |
| `steps` | jobs need a known split of their steps into computation and communication |
| `durations` | the policy knows how long a job takes |
| `learns` | the policy learns the speeds of real jobs |
| `options` | name of an option → (keyword of the constructor, kind) |
| `fixed` | keywords that the name itself sets |

A kind parses the option's text. The constructor refuses values that make no sense.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xbench.cluster.policy import Policy
from xbench.errors import SpecError
from xbench.registry import Registry
from xbench.spec import known_options, parse_int, parse_options
from xbench.units import parse_bytes, parse_seconds

POLICIES: Registry[Callable[..., Policy]] = Registry("policy", listing="xbench cluster policies")

_AT = "xbench.cluster.policies."
_ATTAINED = {"thresholds": ("thresholds", "thresholds"), "promote": ("promote", "number")}
_PLAIN = {"plain": ("plain", "switch")}
_SHARED = {"order": ("order", "word"), "gain": ("gain", "number"), "memory": ("memory", "bytes")}
MAX_GPUS = 1_000_000

POLICIES.add(
    "fifo", _AT + "fifo:Fifo", "in the order of arrival; a job that does not fit blocks all behind it", speeds=False
)
POLICIES.add(
    "fifo-backfill",
    _AT + "fifo_backfill:FifoBackfill",
    "in the order of arrival; a job that does not delay the first may pass it (EASY); knows durations",
    speeds=False,
    durations=True,
)
POLICIES.add("sjf", _AT + "sjf:Sjf", "the shortest job that fits starts; knows durations", speeds=False, durations=True)
POLICIES.add(
    "srtf",
    _AT + "srtf:Srtf",
    "the shortest remaining time runs, preemptive; knows durations",
    speeds=False,
    durations=True,
)
POLICIES.add(
    "srsf",
    _AT + "srsf:Srsf",
    "the least remaining time × GPUs runs, preemptive; knows durations",
    speeds=False,
    durations=True,
)
POLICIES.add(
    "las",
    _AT + "las:Las",
    "the job with the fewest GPU seconds so far runs (Tiresias' 2D-LAS); knows nothing; :thresholds=,promote=",
    speeds=False,
    options=_ATTAINED,
)
POLICIES.add(
    "gittins",
    _AT + "gittins:Gittins",
    "the job likeliest to end soon runs (Tiresias' 2D-Gittins); knows the distribution; :learn=on learns it",
    speeds=False,
    durations=True,
    options={**_ATTAINED, "learn": ("learn", "switch")},
)
POLICIES.add(
    "fixed",
    _AT + "fixed:Fixed",
    "every job gets the same number of GPUs, in the order of arrival; :gpus=",
    speeds=True,
    options={"gpus": ("gpus", "count")},
)
for _gpus in (1, 2, 4, 8):
    POLICIES.add(
        f"fixed-{_gpus}",
        _AT + "fixed:Fixed",
        f"every job gets {_gpus} GPU{'s' if _gpus > 1 else ''}, in the order of arrival",
        speeds=True,
        fixed={"gpus": _gpus},
    )
POLICIES.add(
    "equal-share",
    _AT + "equal_share:EqualShare",
    "every job has the same number of GPUs; :plain=on",
    speeds=True,
    options=_PLAIN,
)
POLICIES.add(
    "optimus",
    _AT + "optimus:Optimus",
    "one more GPU for the job that it helps most, repeatedly; knows speeds and work; :plain=on",
    speeds=True,
    options=_PLAIN,
)
POLICIES.add(
    "doubling",
    _AT + "doubling:Doubling",
    "twice the GPUs for the job that it helps most, repeatedly; knows speeds and work; :plain=on",
    speeds=True,
    options=_PLAIN,
)
POLICIES.add(
    "exploratory",
    _AT + "exploratory:Exploratory",
    "doubling with speeds learned by trying 1, 2, 4, ... GPUs; knows work; :trial=,most=,plain=on",
    speeds=True,
    learns=True,
    options={"trial": ("trial_s", "seconds"), "most": ("most", "count"), **_PLAIN},
)
POLICIES.add(
    "crossover-pairs",
    _AT + "crossover_pairs:CrossoverPairs",
    "two jobs take turns on the same GPUs where that pays; knows steps; :order=,ratio=,gain=,memory=",
    speeds=False,
    steps=True,
    options={"ratio": ("ratio", "number"), **_SHARED},
)
POLICIES.add(
    "jigsaw",
    _AT + "jigsaw:Jigsaw",
    "partial backpropagation, and other jobs in its gaps (JigSaw); knows steps; :k=,jobs=,order=,gain=,memory=",
    speeds=False,
    steps=True,
    options={"k": ("k", "count"), "jobs": ("jobs", "count"), **_SHARED},
)


def parse_policy(text: str) -> Policy:
    """A new policy from 'srtf' or 'las:thresholds=3600+36000,promote=0'. An object serves one simulation.

    Raises SpecError for an unknown name or option, naming the nearest, and for a value that the policy refuses.
    """
    name, given = parse_options(text)
    entry = POLICIES.entry(name)
    options: dict[str, tuple[str, str]] = entry.facts.get("options", {})
    known_options(text, given, tuple(options))
    values: dict[str, Any] = dict(entry.facts.get("fixed", {}))
    for key, value in given.items():
        keyword, kind = options[key]
        values[keyword] = _KINDS[kind](text, key, value)
    return POLICIES.load(name)(**values)


def parse_policies(text: str) -> tuple[str, ...]:
    """The policies of a comma-separated list, each checked by `parse_policy`.

    A part 'key=value' belongs to the policy before it: 'las:thresholds=3600,promote=8,srtf' has two policies. Raises
    SpecError for an invalid policy, an empty entry and a duplicate.
    """
    parts: list[str] = []
    for part in text.split(","):
        if parts and "=" in part and ":" not in part and ":" in parts[-1]:
            parts[-1] += f",{part.strip()}"
        else:
            parts.append(part.strip())
    for number, part in enumerate(parts):
        if not part:
            raise SpecError(f"the list of policies {text!r} has an empty place", hint="write fifo,srtf")
        parse_policy(part)
        if part in parts[:number]:
            raise SpecError(f"policy {part!r} stands twice", hint="write it once")
    return tuple(parts)


def needs_speeds(text: str) -> bool:
    """True if the policy needs jobs with speeds. Raises SpecError for an unknown name."""
    return bool(POLICIES.entry(parse_options(text)[0]).facts["speeds"])


def needs_steps(text: str) -> bool:
    """True if the policy needs jobs whose steps are known. Raises SpecError for an unknown name."""
    return bool(POLICIES.entry(parse_options(text)[0]).facts.get("steps"))


def _switch(text: str, key: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise SpecError(f"{text!r}: {key}={value} is neither on nor off", hint=f"write {key}=on")
    return value == "on"


def _number(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SpecError(f"{text!r}: {key}={value} is not a number", hint=f"write {key}=8")
    return number


def _thresholds(text: str, key: str, value: str) -> tuple[float, ...]:
    return tuple(_number(text, key, part) for part in value.split("+"))


def _seconds(text: str, key: str, value: str) -> float:
    return parse_seconds(value)


def _bytes(text: str, key: str, value: str) -> int:
    return parse_bytes(value)


def _word(text: str, key: str, value: str) -> str:
    return value


def _count(text: str, key: str, value: str) -> int:
    return parse_int(text, key, value, 1, MAX_GPUS)


_KINDS: dict[str, Callable[[str, str, str], Any]] = {
    "switch": _switch, "number": _number, "thresholds": _thresholds, "seconds": _seconds, "count": _count,
    "bytes": _bytes, "word": _word,
}  # fmt: skip
