"""Traces that were cut, mixed, or written by a clock that jumps: a profile, or one sentence; never another error."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from kineto import gpu_events, header

from xbench.errors import UsageError
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.records import StepTimes
from xbench.traces.events import collect
from xbench.traces.profile import traced_profile
from xbench.traces.steps import ranks_of

WRONG = (None, "", "x", -1, 0, 1e300, float("nan"), [], {}, True, 2**70)
KEYS = ("ph", "cat", "name", "ts", "dur", "tid", "args")


def changed(events: list[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    """The events after one kind of harm."""
    events = copy.deepcopy(events)
    match draw.randrange(6):
        case 0:  # events are lost
            return draw.sample(events, draw.randrange(len(events)))
        case 1:  # the clock jumps
            since, jump = draw.choice(events)["ts"], draw.choice((-1e7, -1e3, 1e3, 1e7))
            for one in events:
                if is_number(one["ts"]) and is_number(since) and one["ts"] >= since:
                    one["ts"] += jump
        case 2:  # fields are wrong
            for one in draw.sample(events, draw.randrange(1, len(events))):
                one[draw.choice(KEYS)] = draw.choice(WRONG)
        case 3:  # arguments are wrong
            for one in events:
                for key in list(one["args"]) if isinstance(one["args"], dict) else []:
                    if draw.random() < 0.2:
                        one["args"][key] = draw.choice(WRONG)
        case 4:  # two files in one
            shift = draw.uniform(0, 3000)
            events += [{**one, "ts": one["ts"] + shift} for one in events if is_number(one["ts"])]
        case _:  # everything takes no time, or long
            for one in events:
                one["dur"] = draw.choice((0.0, one["dur"], 1e6))
    return events


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@pytest.mark.parametrize("seed", range(120))
def test_a_broken_trace_is_a_profile_or_one_sentence(seed: int) -> None:
    draw = random.Random(seed)
    events = gpu_events(
        steps=draw.randrange(1, 5),
        buckets=draw.choice([(4,), (1, 4), (1, 2, 3, 4)]),
        shapes=draw.random() < 0.5,
        marked=draw.random() < 0.7,
        kind=draw.choice(["AllReduce", "ReduceScatter"]),
    )
    for _ in range(draw.randrange(1, 3)):
        events = changed(events, draw) if len(events) > 1 else events
    told = draw.choice([header(), {}, {"distributedInfo": 3, "deviceProperties": [None]}])
    found, said = None, ""
    try:
        found = traced_profile(ranks_of([("t.json", collect(events, told))]))
    except UsageError as error:
        said = str(error)
    assert "\n" not in said
    if found is None:
        assert said
        return
    assert isinstance(found.step, StepTimes)
    planner = Planner(StepModel.of(found.layers, found.step), found.cost, layers=tuple(found.layers))
    assert planner.plan("ddp").predicted_step_s > 0
