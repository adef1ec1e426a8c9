"""`xbench tune`: what it refuses before anything is launched, and what it says of a choice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xbench.records import Ratio
from xbench.report.kinds.tuned import answer_sentences
from xbench.stats.compare import verdict
from xbench.stats.tuning import Choice


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
