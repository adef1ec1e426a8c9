"""Words that were removed: each is refused in one sentence that names the new way, and none is still taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from xbench import cli
from xbench.errors import SpecError, unknown
from xbench.former_words import FORMER, former
from xbench.modes import MODES
from xbench.schedules import parse_mode
from xbench.spec import known_options

RESULTS = Path(__file__).parents[2] / "results"
PLACES = {
    "command": "{} x",
    "option": "compare {}=1",
    "mode": "compare --modes ddp,{}",
    "trace": "cluster compare --trace {}:jobs.csv",
    "topology": "compare --fabric emulated:workers=4,rate=1gbit,topology={}",
    "key": "cluster compare --policies fifo,{}=1",
}
"""A command line in which a word of each kind stood."""


def typed(kind: str, word: str) -> str:
    """A command line that has the word."""
    if kind == "option" and " " in word:
        return f"{word} x"
    if kind == "key" and word.partition(":")[0] in MODES:
        return f"compare --modes {word}=1"
    return PLACES[kind].format(word)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        *((typed(kind, word), instead) for kind in PLACES for word, instead in FORMER[kind].items()),
        (f"report {RESULTS}/matrix.json", FORMER["record"]["validation"]),
    ],
)
def test_a_former_word_is_refused_in_one_sentence(line: str, instead: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert f" is gone: {instead}" in err


def test_an_option_that_another_command_still_has_is_gone_from_its_own_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["compare", "--trace", "x"]) == 2
    assert "is gone" not in capsys.readouterr().err


def test_the_table_has_no_word_that_is_taken() -> None:
    assert not [word for word in FORMER["command"] if word in cli.COMMANDS]
    assert not [word for word in FORMER["mode"] if word in MODES]
    assert former("mode", "ddp") is None
    for key in FORMER["key"]:
        name, _, word = key.rpartition(":")
        with pytest.raises(SpecError, match="is gone"):
            known_options(name, {word: "1"}, ())
        if name in MODES:
            with pytest.raises(SpecError):
                parse_mode(f"{key}=1")


def test_each_row_is_a_clause() -> None:
    for kind, found in FORMER.items():
        for word, instead in found.items():
            assert str(unknown(kind, word, ())) == f"{kind} {word!r} is gone: {instead}"
            assert not instead.endswith(".")
            assert "\n" not in instead
