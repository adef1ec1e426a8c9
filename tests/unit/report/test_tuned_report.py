"""The file that `xbench tune` keeps, drawn and pasted; and the record of `xbench converge`, told in sentences."""

from __future__ import annotations

import pytest
import sample_records as made
from hypothesis import given
from hypothesis import strategies as st
from sample_kinds import convergence, tuned

from xbench.records import Comparison, Converged, Plan, Ratio, SeedMean
from xbench.report import FORMATS
from xbench.report.formats.junit import cases
from xbench.report.formats.terminal import render
from xbench.report.kinds.convergence import verdicts
from xbench.report.kinds.tuned import answer_sentences, ddp_lines, judged, snippet
from xbench.report.snippets import PLAIN_DDP, attach_snippet
from xbench.runs.tune import tuned_ddp_record
from xbench.stats.compare import verdict
from xbench.stats.tuning import Choice


def test_ddp_that_won_is_the_answer() -> None:
    assert render(tuned(schedule="ddp", ratio=None, buckets=None)).startswith("DDP's default is best for resnet18")


def test_what_to_paste_is_the_schedule_that_won_with_the_file() -> None:
    told = "2 buckets, 0.900 [0.880, 0.920] of DDP's time per sample (real)"
    text = snippet(tuned(), "/home/me/tuned.json")
    plan = Plan(mode="auto", buckets=[], bucket_bytes=[], predicted_step_s=0, predicted_exposed_s=0)
    assert text == attach_snippet(plan, "/home/me/tuned.json", told)
    assert text.startswith(f"# auto: {told}\n")
    assert 'xbench.attach(model, optimizer, schedule="auto", plan=\'/home/me/tuned.json\', wait="step")' in text


def test_ddp_tuned_is_one_argument_of_ddp_and_ddp_is_ddp() -> None:
    text = snippet(tuned(schedule="ddp-tuned"), "tuned.json")
    assert f"    bucket_cap_mb_list=[{1024 / 2**20!r}, {4096 / 2**20!r}],\n" in text
    assert "find_unused_parameters" not in text
    unused = snippet(tuned(schedule="ddp-tuned", unused_parameters=True), "t.json")
    assert "    find_unused_parameters=True,\n" in unused
    assert snippet(tuned(schedule="ddp", ratio=None, buckets=None), "tuned.json") == PLAIN_DDP
    assert snippet(tuned(carrier="ddp"), "tuned.json") == PLAIN_DDP
    for pasted in (text, PLAIN_DDP):
        compile(pasted, "pasted", "exec")


def with_ddp_tuned() -> Comparison:
    """A comparison in which ddp-tuned ran, with a plan of two buckets."""
    record = made.comparison(
        [made.mode_result(mode, 0.5, (0.9, 0.88, 0.92), "faster") for mode in ("auto", "ddp-tuned")]
    )
    names = [layer.tensors[0].name for layer in made.layers(3)]
    nbytes = [layer.grad_bytes for layer in made.layers(3)]
    plan = made.plan("ddp-tuned", 2, 0.5).model_copy(
        update={"buckets": [names[:1], names[1:]], "bucket_bytes": [nbytes[0], sum(nbytes[1:])]}
    )
    job = record.jobs[0].model_copy(update={"layers": made.layers(3), "plans": {"ddp-tuned": plan}})
    return record.model_copy(update={"jobs": [job]})


def choice(winner: str, close: tuple[str, ...], high: float = 0.94) -> Choice:
    ratios = {"auto": Ratio(value=0.9, ci95=(0.88, 0.92), verdict="faster"),
              "ddp-tuned": Ratio(value=0.91, ci95=(0.88, high), verdict="faster")}  # fmt: skip
    return Choice("faster", winner, ratios, close, frozenset(), settled=True)


def test_ddp_s_own_argument_stands_below_a_winner_that_is_no_faster() -> None:
    record = with_ddp_tuned()
    beside = tuned_ddp_record(record, choice("auto", ("ddp-tuned",)), 0.02, [])
    assert beside is not None
    assert (beside.schedule, beside.ratio) == ("ddp-tuned", choice("auto", ()).ratios["ddp-tuned"])
    lines = ddp_lines(beside, "auto").splitlines()
    assert lines[:2] == ["#", "# This run cannot tell ddp-tuned from auto. It leaves the loop as it is:"]
    assert lines[2].startswith("# # ddp-tuned: 2 buckets, 0.910 [0.880, 0.940] of DDP's time per sample (real)")
    assert any(line.startswith("#     bucket_cap_mb_list=[") for line in lines)
    assert all(line.startswith("#") for line in lines)


@pytest.mark.parametrize(
    "made_choice",
    [
        choice("auto", ()),  # auto is faster than it
        choice("ddp-tuned", ("auto",)),  # it has won itself
        choice("auto", ("ddp-tuned",), high=1.01),  # it may be slower than DDP
    ],
)
def test_ddp_s_own_argument_is_not_named_elsewhere(made_choice: Choice) -> None:
    assert tuned_ddp_record(with_ddp_tuned(), made_choice, 0.02, []) is None


def test_without_a_plan_there_is_no_argument_to_name() -> None:
    record = with_ddp_tuned()
    planless = record.model_copy(update={"jobs": [record.jobs[0].model_copy(update={"plans": {}})]})
    assert tuned_ddp_record(planless, choice("auto", ("ddp-tuned",)), 0.02, []) is None


def test_verdicts_are_given_by_the_margin_that_was_asked_for() -> None:
    record = made.comparison()
    ratios = {"optimal": Ratio(value=0.892, ci95=(0.884, 0.9), verdict="equivalent")}
    strict = judged(record, Choice("reference", "optimal", ratios, (), frozenset(ratios), settled=True))
    words = {mode: result.ratio.verdict for mode, result in strict.modes.items() if result.ratio is not None}
    assert words["optimal"] == "equivalent"
    assert strict.modes["ddp"] == record.modes["ddp"]


def test_the_power_of_so_many_seeds_stands_beside_a_difference_that_is_not_shown() -> None:
    record = convergence()
    spb = record.modes["spb"].model_copy(update={"detectable": 0.0953})
    said = verdicts(record.model_copy(update={"modes": {**record.modes, "spb": spb}}))[2]
    assert said.endswith("[-21.21, +4.21] seed by seed; 9.53 points would be found in 80 of 100 runs).")
    shown = spb.model_copy(update={"difference": SeedMean(mean=-0.02, ci95=(-0.03, -0.01))})
    said = verdicts(record.model_copy(update={"modes": {**record.modes, "spb": shown}}))[2]
    assert said.endswith(": below ddp (-2.00 points [-3.00, -1.00] seed by seed).")


def test_an_incomplete_training_says_so_and_shows_what_is_there() -> None:
    text = render(convergence(complete=False, error="rank 1 was killed"))
    assert "INCOMPLETE: rank 1 was killed. What was finished is below." in text
    assert "97.50 %" in text


@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
def test_a_mode_that_was_not_trained_has_not_failed(name: str) -> None:
    record = convergence(complete=False, error="interrupted")
    modes = {**record.modes, "wfbp": Converged(mode="wfbp", status="not trained")}
    record = record.model_copy(update={"modes": modes})
    assert "FAILED" not in FORMATS.load(name)(record)
    assert "not trained" in FORMATS.load(name)(record)
    assert [(case.status, case.message) for case in cases(record) if case.name == "wfbp"] == [
        ("skipped", "wfbp was not trained")
    ]


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
