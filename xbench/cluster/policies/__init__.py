"""The policies by name, and their options: `srtf`, `fixed-4`, `las:thresholds=3600+36000`.

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
from collections.abc import Callable, Mapping
from typing import Any

from xbench.cluster.policy import Policy
from xbench.errors import SpecError
from xbench.registry import Registry
from xbench.spec import known_options, parse_int, parse_options
from xbench.text import entries
from xbench.units import parse_bytes, parse_seconds

POLICIES: Registry[Callable[..., Policy]] = Registry("policy", listing="xbench list policies")
MAX_GPUS = 1_000_000

_ATTAINED = {"thresholds": ("thresholds", "thresholds")}
_SHARED = {"order": ("order", "word"), "gain": ("gain", "number"), "memory": ("memory", "bytes")}
_FIXED_SIZES = [
    (f"fixed-{gpus}", "fifo:Fixed", f"every job gets {gpus} GPU{'s' if gpus > 1 else ''}, in the order of arrival",
     {"speeds": True, "fixed": {"gpus": gpus}})
    for gpus in (1, 2, 4, 8)
]  # fmt: skip
_POLICIES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("fifo", "fifo:Fifo", "in the order of arrival; a job that does not fit blocks all behind it", {}),
    ("fifo-backfill", "fifo:FifoBackfill",
     "in the order of arrival; a job that does not delay the first may pass it (EASY); knows durations",
     {"durations": True}),
    ("sjf", "ordered:Sjf", "the shortest job that fits starts; knows durations", {"durations": True}),
    ("srtf", "ordered:Srtf", "the shortest remaining time runs, preemptive; knows durations", {"durations": True}),
    ("srsf", "ordered:Srsf", "the least remaining time × GPUs runs, preemptive; knows durations", {"durations": True}),
    ("las", "attained:Las",
     "the job with the fewest GPU seconds so far runs (Tiresias' 2D-LAS); knows nothing; :thresholds=",
     {"options": _ATTAINED}),
    ("gittins", "attained:Gittins",
     "the job likeliest to end soon runs (Tiresias' 2D-Gittins); knows the distribution; :learn=on learns it",
     {"durations": True, "options": {**_ATTAINED, "learn": ("learn", "switch")}}),
    ("fixed", "fifo:Fixed", "every job gets the same number of GPUs, in the order of arrival; :gpus=",
     {"speeds": True, "options": {"gpus": ("gpus", "count")}}),
    *_FIXED_SIZES,
    ("equal-share", "elastic:EqualShare", "every job has the same number of GPUs", {"speeds": True}),
    ("optimus", "elastic:Optimus",
     "one more GPU for the job that it helps most, repeatedly; knows speeds and work", {"speeds": True}),
    ("doubling", "doubling:Doubling",
     "twice the GPUs for the job that it helps most, repeatedly; knows speeds and work", {"speeds": True}),
    ("exploratory", "doubling:Exploratory",
     "doubling with speeds learned by trying 1, 2, 4, ... GPUs; knows work; :trial=",
     {"speeds": True, "learns": True, "options": {"trial": ("trial_s", "seconds")}}),
    ("alternate", "elastic:Alternate",
     "one job has its least and its most GPUs in turn, which measures restarts; :times=",
     {"speeds": True, "learns": True, "options": {"times": ("times", "count")}}),
    ("crossover-pairs", "sharing:CrossoverPairs",
     "two jobs take turns on the same GPUs where that pays; knows steps; :order=,ratio=,gain=,memory=",
     {"steps": True, "options": {"ratio": ("ratio", "number"), **_SHARED}}),
    ("jigsaw", "sharing:Jigsaw",
     "partial backpropagation, and other jobs in its gaps (JigSaw); knows steps; :k=,order=,gain=,memory=",
     {"steps": True, "options": {"k": ("k", "count"), **_SHARED}}),
]  # fmt: skip
for _name, _target, _summary, _facts in _POLICIES:
    POLICIES.add(_name, f"xbench.cluster.policies.{_target}", _summary, **{"speeds": False, **_facts})


def parse_policy(text: str) -> Policy:
    """A new policy from 'srtf' or 'gittins:thresholds=3600+36000,learn=on'. An object serves one simulation.

    Raises SpecError for an unknown name or option, naming the nearest, and for a value that the policy refuses.
    """
    name, given = parse_options(text)
    facts = POLICIES.entry(name).facts
    options: dict[str, tuple[str, str]] = facts.get("options", {})
    known_options(text, given, tuple(options))
    values = dict(facts.get("fixed", {}))
    for key, value in given.items():
        keyword, kind = options[key]
        values[keyword] = _KINDS[kind](text, key, value)
    return POLICIES.load(name)(**values)


def parse_policies(text: str) -> tuple[str, ...]:
    """The policies of a comma-separated list, each checked by `parse_policy`.

    A part 'key=value' belongs to the policy before it: 'gittins:thresholds=3600,learn=on,srtf' has two policies. Raises
    SpecError for an invalid policy, an empty entry and a duplicate.
    """
    parts = entries(text)
    for number, part in enumerate(parts):
        if not part:
            raise SpecError(f"the list of policies {text!r} has an empty place", hint="write fifo,srtf")
        parse_policy(part)
        if part in parts[:number]:
            raise SpecError(f"policy {part!r} stands twice", hint="write it once")
    return tuple(parts)


def facts_of(text: str) -> Mapping[str, Any]:
    """The facts of a policy, whatever its options. Raises SpecError for an unknown name."""
    return POLICIES.entry(parse_options(text)[0]).facts


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


_KINDS: dict[str, Callable[[str, str, str], Any]] = {
    "switch": _switch,
    "number": _number,
    "thresholds": lambda text, key, value: tuple(_number(text, key, part) for part in value.split("+")),
    "seconds": lambda text, key, value: parse_seconds(value),
    "bytes": lambda text, key, value: parse_bytes(value),
    "word": lambda text, key, value: value,
    "count": lambda text, key, value: parse_int(text, key, value, 1, MAX_GPUS),
}
