from __future__ import annotations

import re
import traceback

import pytest

from xbench import errors
from xbench.errors import SpecError, XbenchError, nearest, unknown


def _tree() -> list[type[XbenchError]]:
    found = [XbenchError]
    for error in found:
        found += error.__subclasses__()
    return [error for error in found if error.__module__ == errors.__name__]


def test_the_documented_tree_is_the_tree() -> None:
    drawn = dict(re.findall(r"(\w+)\s+exit (\d+)", errors.__doc__ or ""))
    assert {error.__name__: str(error.exit_code) for error in _tree()} == drawn


def test_a_traceback_shows_the_hint() -> None:
    shown = traceback.format_exception_only(XbenchError("it broke", hint="mend it"))
    assert shown == ["xbench.errors.XbenchError: it broke\n", "hint: mend it\n"]


@pytest.mark.parametrize(
    ("name", "close"), [("restnet50", "resnet50"), ("optimum", "optimal"), ("zzz", None), ("", None)]
)
def test_nearest(name: str, close: str | None) -> None:
    assert nearest(name, ["resnet50", "resnet18", "optimal"]) == close


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("zero", ["dear", "ddp"]),
        ("fsdp", ["spb", "ddp-tuned"]),
        ("name", ["end_time", "state"]),
        ("run", ["tune"]),
        ("--gpus", ["--launches"]),
        ("--nproc", ["--rounds"]),
        ("nope", ["compiled"]),
    ],
)
def test_a_name_that_is_no_misspelling_suggests_nothing(name: str, known: list[str]) -> None:
    assert nearest(name, known) is None


def test_unknown_suggests_and_lists() -> None:
    assert str(unknown("mode", "optimum", ["optimal"])) == "unknown mode 'optimum'"
    assert unknown("mode", "optimum", ["optimal"]).hint == "did you mean 'optimal'?"
    assert unknown("mode", "optimum", ["optimal"], listing="xbench list modes").hint == (
        "did you mean 'optimal'? (xbench list modes has them all)"
    )
    assert unknown("mode", "zzz", ["optimal"], listing="xbench list modes").hint == "xbench list modes has them all"
    assert isinstance(unknown("mode", "zzz", []), SpecError)
    assert unknown("mode", "zzz", []).hint is None
