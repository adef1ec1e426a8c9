"""A: faults inside a rank. P: in the probe of the model. B: a process is hurt from outside. D: a link changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from .case import Case, case
from .faults import AMID_STEPS_S, LINK_CHANGES, after, at, go, send, to_agent, to_parent, to_rank
from .harness import PATIENCE_S, Live
from .verdict import DONE, FAILED, USAGE, Expected

NAMED = Expected(says=r"rank \d")
"""The error names a rank."""
CHANGED = r"links changed|link of host|links? .*(down|gone)|switch"
STOOD_STILL = r"stood still"
"""Pattern of what a record says of a step that took far longer than its neighbours."""


INSIDE = {
    "raise": Expected(says="planted error"),
    "backward-raise": Expected(says="planted error"),
    "raise-huge": Expected(says=r"rank 1"),
    "exit0": NAMED,
    "exit3": NAMED,
    "_exit0": NAMED,
    "backward-_exit0": NAMED,
    "_exit7": NAMED,
    "interrupt": NAMED,
    "term": NAMED,
    "segv": NAMED,
    "abort": NAMED,
    "stop": Expected(says=r"rank 1 .*stopped"),
    "hang": NAMED,
    "spin": NAMED,
    "nan": Expected(codes=(DONE, FAILED)),
    "backward-nan": Expected(codes=(DONE, FAILED)),
    "inf": Expected(codes=(DONE, FAILED)),
    "backward-inf": Expected(codes=(DONE, FAILED)),
    "print": Expected(codes=(DONE,)),
    "print-forever": Expected(codes=(DONE,)),
    "close-files": Expected(codes=(FAILED,)),
    "leave-folder": Expected(codes=(DONE, FAILED)),
}
"""Expectation by the action of the model in rank 1."""

BY_FABRIC = {
    "local": tuple(INSIDE),
    "shaped": ("raise", "backward-raise", "exit0", "_exit7", "segv", "abort", "stop", "hang", "backward-nan"),
    "crossover": ("raise", "_exit7", "segv", "stop", "hang"),
    "emulated": ("raise", "_exit7", "stop", "hang"),
}
EARLIER = ("raise", "_exit7", "stop", "nan", "backward-nan")
"""Also while profiling and at the gate."""

IN_PROBE = {
    "raise": Expected(codes=(USAGE,), says="planted error"),
    "raise-huge": Expected(codes=(USAGE,)),
    "backward-raise": Expected(codes=(USAGE,), says="planted error"),
    "exit0": Expected(codes=(FAILED, USAGE)),
    "_exit0": Expected(codes=(FAILED, USAGE)),
    "_exit7": Expected(codes=(FAILED, USAGE)),
    "segv": Expected(codes=(FAILED, USAGE)),
    "abort": Expected(codes=(FAILED, USAGE)),
    "interrupt": Expected(codes=(FAILED, USAGE)),
    "term": Expected(codes=(FAILED, USAGE)),
    "print": Expected(codes=(DONE,)),
    "nan": Expected(codes=(DONE, FAILED, USAGE)),
    "close-files": Expected(codes=(DONE, FAILED, USAGE)),
}
"""In the process that tries the model before anything is launched."""

WITHOUT_END = ("stop", "hang")
"""A probe that never ends, as a model that loads for hours looks: the run waits, and Ctrl-C ends it."""


def cases() -> Iterator[Case]:
    yield from _inside()
    for fault, expected in IN_PROBE.items():
        yield case(f"P-{fault}", expected, env={"XBENCH_FAULT": fault, "XBENCH_FAULT_RANK": "probe"})
    for fault in WITHOUT_END:
        yield case(
            f"P-{fault}-interrupted",
            Expected(codes=(130,)),
            plant=after(6.0, to_parent("int")),
            env={"XBENCH_FAULT": fault, "XBENCH_FAULT_RANK": "probe"},
        )
    yield from _outside()
    yield from _links()


def _inside() -> Iterator[Case]:
    for kind, faults in BY_FABRIC.items():
        for fault in faults:
            yield _rank_fault(f"A-{kind}-{fault}-round", kind, fault, "round")
    for kind in ("local", "shaped"):
        for fault in EARLIER:
            for phase in ("profile", "gate"):
                if kind == "local" or fault in ("raise", "_exit7"):
                    yield _rank_fault(f"A-{kind}-{fault}-{phase}", kind, fault, phase)
    for fault in ("raise", "segv", "stop"):
        expected = INSIDE[fault] if fault == "raise" else NAMED
        yield _rank_fault(f"A-local-{fault}-rank0", "local", fault, "round", rank=0, expected=expected)


def _rank_fault(
    name: str, kind: str, fault: str, phase: str, *, rank: int = 1, expected: Expected | None = None
) -> Case:
    expected = expected or INSIDE[fault]
    if phase == "round" and kind != "crossover":
        expected = _measured(expected)
    env = {"XBENCH_FAULT": fault, "XBENCH_FAULT_RANK": str(rank)}
    return case(name, expected, kind=kind, plant=at(phase, go), env=env)


def _measured(expected: Expected) -> Expected:
    return replace(expected, at_least=1)


def _outside() -> Iterator[Case]:
    for kind in ("local", "shaped"):
        for phase in ("profile", "gate", "round"):
            yield case(f"B-{kind}-kill-rank1-{phase}", NAMED, kind=kind, plant=at(phase, to_rank("kill")))
        for fault, rank in (("kill", 0), ("stop", 1), ("stop", 0), ("term", 1), ("segv", 1)):
            yield case(f"B-{kind}-{fault}-rank{rank}-round", _measured(NAMED), kind=kind,
                       plant=at("round", to_rank(fault, rank)))  # fmt: skip
        yield case(f"B-{kind}-kill-agent-round", _measured(Expected()), kind=kind, plant=at("round", to_agent("kill")))
        yield case(f"B-{kind}-term-agent-round", _measured(Expected()), kind=kind, plant=at("round", to_agent("term")))
        stopped = Expected(codes=(DONE, FAILED), at_least=1)  # ranks may end well beside an agent that stands still
        yield case(f"B-{kind}-stop-agent-round", stopped, kind=kind, plant=at("round", to_agent("stop")))
        paused = Expected(codes=(DONE,), tells=STOOD_STILL, at_least=1)
        yield case(f"B-{kind}-pause-rank1-round", paused, kind=kind, plant=at("round", to_rank("pause"), AMID_STEPS_S))
    yield case("B-crossover-kill-rank-of-job1", NAMED, kind="crossover", plant=at("round", to_rank("kill", 1, 1)))
    yield case("B-emulated-kill-rank1-round", _measured(NAMED), kind="emulated", plant=at("round", to_rank("kill")))
    yield case("B-local-long-pause-parent", Expected(codes=(DONE,)), plant=at("block", _long_pause))


def _long_pause(live: Live) -> None:
    """The parent stands still for longer than its patience: when it goes on it may not take the ranks for silent."""
    send(live.pid, "stop")
    time.sleep(PATIENCE_S + 3)
    send(live.pid, "cont")


def after_change(name: str) -> Expected:
    """Expectation after a change that lasts. A link that is up again is as it was asked for; only steps can tell.

    The deletion of a namespace leaves its hosts file, which `xbench clean` takes.
    """
    if name == "down-up":
        return Expected(codes=(DONE, FAILED), tells=f"{CHANGED}|{STOOD_STILL}")
    # Without an address the ranks fall silent, and the error may name them in place of their link.
    tells = "." if name == "flush-address" else CHANGED
    return Expected(codes=(DONE, FAILED), complete=False, tells=tells, leaves=name == "delete-namespace")


def _links() -> Iterator[Case]:
    """The record must say that a link has changed, and is not complete."""
    for name, plant in LINK_CHANGES.items():
        for phase in ("profile", "gate", "round"):
            if name == "down-up" and phase != "round":
                continue  # a link that is whole again before anything is timed changes no number
            delay_s = AMID_STEPS_S if phase == "round" else 0.1
            yield case(f"D-{name}-{phase}", after_change(name), kind="shaped", plant=at(phase, plant, delay_s))
