"""A profile has one headline in every format, and a paired cost beside unpaired medians."""

from __future__ import annotations

import sample_records as made

from xbench.report.formats.junit import cases
from xbench.report.kinds import view_of
from xbench.report.sentences import instruments_line, parts_line, step_line

HEADLINE = "A step without communication takes 402 ms [399 ms, 406 ms] (real)."


def test_medians_that_agree_with_the_paired_cost_need_no_word() -> None:
    assert step_line(made.STEP, "real") == HEADLINE
    assert parts_line(made.STEP) == (
        "With instruments it takes 404 ms [401 ms, 409 ms]: forward 131 ms, backward 259 ms, optimizer 12.0 ms."
    )
    assert instruments_line(made.STEP) == "Instruments cost +0.5 % [-0.4 %, +1.3 %], by pairs of neighbouring steps."


def test_medians_that_do_not_agree_are_said_to_be_unpaired() -> None:
    step = made.STEP.model_copy(update={"step_s": 0.376, "uninstrumented_step_s": 0.346, "overhead_ratio": 0.01})
    assert instruments_line(step) == (
        "Instruments cost +1.0 % [-0.4 %, +1.3 %], by pairs of neighbouring steps. The two medians differ by +8.7 %: "
        "they are not of pairs, and the machine's speed may have changed in between."
    )


def test_every_format_has_the_bare_step_as_its_headline() -> None:
    assert HEADLINE in view_of(made.profile()).page().answer
    first = cases(made.profile())[0]
    assert (first.time_s, first.message) == (0.402, HEADLINE[0].lower() + HEADLINE[1:-1])
