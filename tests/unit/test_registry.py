from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from xbench import registry
from xbench.errors import SpecError
from xbench.registry import Entry, Registry


@pytest.fixture
def colours() -> Registry[object]:
    made: Registry[object] = Registry("colour", listing="xbench colours")
    made.add("red", "math:pi", "like a rose", warm=True)
    made.add("blue", "math:e", "like the sky")
    return made


def test_names_keep_their_order_and_their_facts(colours: Registry[object]) -> None:
    assert colours.names() == ["red", "blue"]
    assert [entry.summary for entry in colours] == ["like a rose", "like the sky"]
    assert colours.entry("red") == Entry("red", "math:pi", "like a rose", {"warm": True})
    assert "red" in colours
    assert "green" not in colours


def test_an_unknown_name_is_a_spec_error_with_the_nearest(colours: Registry[object]) -> None:
    with pytest.raises(SpecError, match="unknown colour 'rod'") as caught:
        colours.load("rod")
    assert caught.value.hint == "did you mean 'red'? (xbench colours has them all)"


def test_a_name_is_registered_once(colours: Registry[object]) -> None:
    with pytest.raises(ValueError, match="registered twice"):
        colours.add("red", "math:tau", "again")


def test_other_packages_add_names_but_replace_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("green", "math:tau", group), EntryPoint("red", "math:inf", group)]

    monkeypatch.setattr(registry, "entry_points", points)
    made: Registry[object] = Registry("colour", listing="", group="xbench.colours")
    made.add("red", "math:pi", "like a rose")
    assert made.names() == ["red", "green"]
    assert made.entry("red").target == "math:pi"
    assert made.entry("green").summary == "from math:tau"
    assert asked == ["xbench.colours"]
