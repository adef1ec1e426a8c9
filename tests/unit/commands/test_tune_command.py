"""`xbench tune`: what it refuses before anything is launched, and what it says of a choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.records import Ratio
from xbench.report.kinds.tuned import answer_sentences
from xbench.stats.compare import verdict
from xbench.stats.tuning import Choice


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--minutes", "0"], "--minutes: 0 is not in the range 0.25 to 1440\n  hint: try --minutes 0.25"),
        (["--minutes", "nan"], "--minutes: nan is not in the range 0.25 to 1440"),
        (["--minutes", "1e9"], "hint: try --minutes 1440"),
        (["--minutes", "ten"], "--minutes: 'ten' is not a valid float"),
        (["--margin", "-1"], "--margin: -1 is not in the range 0 to 50"),
        (["--modes", "compute,ddp"], "--modes: 'compute,ddp' names no candidate beside ddp"),
        (["--modes", "crossover"], "--modes: 'crossover' is for two jobs, and tune is for one"),
        (["--modes", "auto,auto@b"], "--modes: 'auto@b' is a second copy"),
        (["--modes", "optimol"], "did you mean 'optimal'?"),
        (["--modes", "spb:variant=temporal"], "'spb:variant=temporal' trains another network than DDP"),
        (["--modes", "auto,fsdp"], "'fsdp' has no plan, and tune chooses among plans"),
        (["--modes", "ddp,auto:shard"], "'auto:shard' has no plan, and tune chooses among plans"),
        (["--modes", "auto,horovod"], "'horovod' has no plan, and tune chooses among plans"),
        (["--modes", "auto,ddp+compile"], "'ddp+compile' has no plan, and tune chooses among plans"),
        (["--keep", "/nowhere/tuned.json"], "--keep: the folder of '/nowhere/tuned.json' does not exist"),
        (["--keep", "-"], "--keep: '-' is no file"),
        (["--json", "/tmp"], "--json: '/tmp' is a folder"),
        (["--fabric", "shape"], "unknown fabric 'shape'"),
        (["--fabric", "local:ranks=1"], "local:ranks=1 has 1 rank, so no gradient travels"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(
    refused: Callable[..., str], words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XBENCH_RESULTS", str(tmp_path / "runs"))
    assert sentence in refused("tune", "synthetic", *words)
    assert not (tmp_path / "runs").exists()


def ratio(value: float, low: float, high: float, margin: float = 0.01) -> Ratio:
    return Ratio(value=value, ci95=(low, high), verdict=verdict(value, (low, high), margin))


def said(kind: str, auto: Ratio, *close: str) -> list[str]:
    choice = Choice(kind, "auto", {"auto": auto}, close, frozenset(), settled=False)  # type: ignore[arg-type]
    return answer_sentences(choice, 0.01, "resnet18", "real", minutes=3)


def test_the_answer_comes_first_with_its_interval() -> None:
    assert said("faster", ratio(0.9, 0.88, 0.92), "optimal", "mgwfbp") == [
        "auto trains resnet18 in 0.900 [0.880, 0.920] of DDP's time: 10 % less a step.",
        "This run cannot tell optimal and mgwfbp from it.",
        "3 minutes ended before this was settled: more would make it surer.",
        "Times are real; predictions and bounds are simulated.",
    ]
    assert said("reference", ratio(1.0, 0.995, 1.005))[0] == (
        "DDP's default is already best here: nothing tried is faster by more than 1 %; the nearest, auto, takes "
        "1.000 [0.995, 1.005] of its time."
    )


def test_what_is_not_shown_is_said_to_be_open() -> None:
    assert said("open", ratio(0.97, 0.93, 1.01))[0].startswith("No clear answer in 3 minutes: auto takes 0.970 [0.930")
    assert said("open", ratio(0.98, 0.965, 0.995))[0] == (
        "auto trains resnet18 in 0.980 [0.965, 0.995] of DDP's time: 2 % less a step, though 3 minutes did not show "
        "that it is 1 % at least."
    )


def test_nothing_timed_is_no_answer() -> None:
    assert answer_sentences(Choice("open", None, {}, (), frozenset(), settled=False), 0.01, "x", "real", minutes=1) == [
        "No answer: no candidate was timed beside DDP."
    ]


@given(st.floats(0.3, 3.0), st.floats(1.0, 1.5), st.floats(1.0, 1.5))
def test_ddp_is_said_to_be_best_only_where_the_choice_is(value: float, below: float, above: float) -> None:
    auto = ratio(value, value / below, value * above)
    best = "DDP's default is already best"
    assert best not in " ".join(said("faster", auto) + said("open", auto))
    assert best in said("reference", auto)[0]
