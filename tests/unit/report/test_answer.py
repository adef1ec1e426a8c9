"""The answer of a comparison, and what tables say of modes that were not measured, failed or prove nothing."""

from __future__ import annotations

import pytest
import sample_records as made

from xbench.records import BY_HAND, Comparison, Estimate, ModeResult, Ratio
from xbench.report import FORMATS
from xbench.report.advice import what_to_paste
from xbench.report.answer import answer, parity_cell, ranking, ratio_cell, removed_cell, span_cell, verdict
from xbench.report.formats import junit, terminal
from xbench.report.kinds import view_of
from xbench.report.sentences import columns_line, failure_line, not_shown_lines
from xbench.stats.compare import paired_ratio
from xbench.stats.summary import median_estimate

DDP = made.mode_result("ddp", 0.657, (1.0, 1.0, 1.0), "reference")
COMPUTE = made.mode_result("compute", 0.5, (0.76, 0.75, 0.77), "faster")
MORE = "More launches may decide: --launches 8, or --until 2%."


def _optimal(value: float, low: float, high: float, verdict: str) -> ModeResult:
    return made.mode_result("optimal", 0.657 * value, (value, low, high), verdict)


def test_a_noisy_mode_hides_none_that_is_proven_faster() -> None:
    mgwfbp = made.mode_result("mgwfbp", 0.61, (0.929, 0.89, 0.969), "faster")
    record = made.comparison([DDP, mgwfbp, _optimal(0.926, 0.833, 1.028, "inconclusive")])
    assert [result.mode for result in ranking(record)] == ["mgwfbp", "optimal", "ddp"]
    gain, unsure, more, *_ = answer(record)
    assert gain.startswith("mgwfbp is faster: 7.1 % less time")
    assert "optimal may be faster still" in unsure
    assert more == MORE
    found = what_to_paste(record)
    assert found is not None
    assert "mgwfbp" in found.told


@pytest.mark.parametrize(
    ("mgwfbp", "wfbp", "said"),
    [
        (1.05, 1.1, []),
        (1.05, 1.01, ["wfbp", "1.010 [1.009, 1.011]"]),
        (1.001, 1.002, ["mgwfbp and wfbp", "1.001 [1.000, 1.002] and 1.002 [1.001, 1.003]"]),
        (1.001, 1.025, ["mgwfbp", "1.001 [1.000, 1.002]"]),
    ],
)
def test_rivals_are_judged_by_their_blocks_and_not_by_intervals_that_overlap(
    mgwfbp: float, wfbp: float, said: list[str]
) -> None:
    wide = [made.mode_result(mode, 0.6, (0.95, 0.85, 0.98), "faster") for mode in ("mgwfbp", "wfbp")]
    record = made.comparison([DDP, _optimal(0.9, 0.84, 0.96, "faster"), *wide])
    took = {"optimal": 0.9, "mgwfbp": 0.9 * mgwfbp, "wfbp": 0.9 * wfbp}
    blocks = made.samples(list(record.modes), ratios=took)
    between = answer(record.model_copy(update={"samples": blocks}))[1:-1]
    assert len(between) == bool(said)
    assert not said or between[0].startswith(f"{said[0]} ")
    assert all(part in between[0] for part in said)


def test_a_mode_is_fastest_only_if_every_other_is_shown_to_be_slower() -> None:
    record = made.comparison()
    took = {"optimal": 0.9, "mgwfbp": 0.95, "wfbp": 0.97, "single": 1.2}
    apart = record.model_copy(update={"samples": made.samples(list(record.modes), ratios=took)})
    assert answer(apart)[0].startswith("optimal is fastest: ")
    uneven = [
        sample.model_copy(update={"step_s": sample.step_s * (1.1 if sample.launch else 0.9)})
        if sample.mode == "mgwfbp"
        else sample
        for sample in apart.samples
    ]
    said = answer(apart.model_copy(update={"samples": uneven}))
    assert said[0].startswith("optimal is faster: ")
    assert said[1].startswith("This run cannot tell mgwfbp from optimal: ")
    assert said[2] == MORE


def test_one_launch_says_that_it_speaks_of_itself() -> None:
    ratio = Ratio(value=0.9, ci95=(0.85, 0.95), verdict="faster", pairs=6, launches=1)
    record = made.comparison([DDP, _optimal(0.9, 0.85, 0.95, "faster").model_copy(update={"ratio": ratio})])
    assert answer(record)[1].startswith("This speaks of one launch")


def test_what_a_precision_needs_is_said_where_launches_show_it() -> None:
    ratio = Ratio(value=0.98, ci95=(0.949, 1.012), verdict="inconclusive", pairs=16, launches=4)
    record = made.comparison([DDP, _optimal(0.98, 0.949, 1.012, "inconclusive").model_copy(update={"ratio": ratio})])
    assert "±2 % need about 7 launches" in answer(record)[1]


def test_rivals_that_met_in_no_round_are_not_judged() -> None:
    record = made.comparison()
    alone = [sample for sample in record.samples if (sample.mode == "mgwfbp") == (sample.launch == 0)]
    said = answer(record.model_copy(update={"samples": alone}))
    assert not any("mgwfbp" in sentence for sentence in said)


def test_neither_the_control_nor_a_wrong_network_wins() -> None:
    assert [result.mode for result in ranking(made.comparison())] == ["optimal", "mgwfbp", "wfbp", "ddp", "single"]
    record = made.troubled()
    assert [result.mode for result in ranking(record)] == ["optimal", "ddp"]
    wrong = record.modes["mgwfbp"]
    assert not wrong.is_trusted
    assert not wrong.model_copy(update={"status": "ok"}).is_trusted  # the parity check alone is enough


@pytest.mark.parametrize(
    ("optimal", "said", "undecided"),
    [
        ((0.97, 0.9, 1.04, "inconclusive"), "Inconclusive: optimal looks fastest by its paired ratio", True),
        ((0.995, 0.99, 1.0, "equivalent"), "No mode is faster than ddp, the reference, by an amount", False),
        ((1.004, 0.995, 1.013, "equivalent"), "No mode is faster than ddp, the reference; optimal is", False),
        ((1.2, 1.1, 1.3, "slower"), "ddp, the reference, is fastest of 2", False),
        ((1.2, 0.4, 3.6, "inconclusive"), "Inconclusive: ddp, the reference, looks fastest", True),
    ],
)
def test_without_a_proven_gain_no_mode_wins(
    optimal: tuple[float, float, float, str], said: str, undecided: bool
) -> None:
    first, *more, _ = answer(made.comparison([DDP, _optimal(*optimal)]))
    assert first.startswith(said)
    assert more == ([MORE] if undecided else [])


def test_an_undecided_mode_is_named_beside_an_equivalent_one() -> None:
    ratio = Ratio(value=0.998, ci95=(0.9, 1.1), verdict="inconclusive", pairs=8)
    unsure = made.mode_result("wfbp", 0.5, None, "inconclusive").model_copy(update={"ratio": ratio})
    record = made.comparison([DDP, _optimal(0.995, 0.99, 1.0, "equivalent"), unsure])
    first, more, *_ = answer(record)
    assert first.startswith("Inconclusive: optimal is equivalent to ddp")
    assert "cannot tell wfbp from ddp" in first
    assert more == MORE
    change = what_to_paste(record)
    assert change is not None
    assert "Stay with ddp" in change.told


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ([], "No mode was measured"),
        ([COMPUTE], "No mode that may be advised"),
        ([DDP], "Only ddp was measured"),
        ([DDP, COMPUTE], "Only ddp is a mode to advise: "),
        (
            [
                ModeResult(mode="ddp", status="failed", label="real", error="rank 0 died"),
                made.mode_result("optimal", 0.5, None, "faster"),
                made.mode_result("wfbp", 0.6, None, "faster"),
            ],
            "optimal had the shortest time per sample, but without ddp",
        ),
    ],
)
def test_nothing_to_compare_is_no_answer_and_no_advice(modes: list[ModeResult], said: str) -> None:
    record = made.comparison(modes)
    assert answer(record)[0].startswith(said)
    assert what_to_paste(record) is None


@pytest.mark.parametrize(
    ("share", "interval", "shown"),
    [
        (None, None, "–"),
        (0.0, None, "0 %"),
        (1.0, None, "100 %"),
        (-2.26, None, "< 0 %"),
        (0.62, (0.5, 0.735), "62 % [50, 74]"),
        (1.3, (0.9, 1.7), "> 100 % [90, 170]"),
    ],
)
def test_a_removed_share_is_between_nothing_and_all(
    share: float | None, interval: tuple[float, float] | None, shown: str
) -> None:
    assert removed_cell(share, interval) == shown


# --- one sample has shown no spread: no format gives it an interval ---------------------------------------------------


def one_block() -> Comparison:
    record = made.comparison()
    single = {"blocks": 1, "step_s": Estimate(median=0.5, ci95=(0.5, 0.5)),
              "seconds_per_sample": Estimate(median=0.0314, ci95=(0.0314, 0.0314))}  # fmt: skip
    modes = {}
    for name, result in record.modes.items():
        ratio = result.ratio and result.ratio.model_copy(update={"pairs": 1, "value": 0.966})
        modes[name] = result.model_copy(update={**single, "ratio": ratio})
    return record.model_copy(update={"modes": modes})


def test_one_value_and_one_pair_have_no_interval() -> None:
    assert median_estimate([5.04]).interval is None
    assert median_estimate([5.04, 5.06]).interval is not None
    single = paired_ratio([(0, 0, 1.0)], [(0, 0, 2.0)])
    assert (single.pairs, single.interval, single.verdict) == (1, None, "inconclusive")
    two = paired_ratio([(0, 0, 1.0), (0, 1, 1.0)], [(0, 0, 2.0), (0, 1, 2.0)])
    assert (two.pairs, two.interval) == (2, two.ci95)
    assert Ratio(value=0.5, ci95=(0.4, 0.6), verdict="faster").interval == (0.4, 0.6)  # of an older record
    assert span_cell(Estimate(median=5.04e-3, ci95=(5.04e-3, 5.04e-3))) == "one sample"
    assert span_cell(Estimate(median=5.04e-3, ci95=(5e-3, 5.1e-3))) == "5.00 ms – 5.10 ms"
    assert ratio_cell(one_block().modes["optimal"]) == "0.966 (1 pair)"


@pytest.mark.parametrize("name", ["terminal", "markdown", "html", "junit"])
def test_no_format_shows_an_interval_of_one_sample(name: str) -> None:
    said = FORMATS.load(name)(one_block())
    for between in (" – ", ", ", " to "):
        assert f"31.4 ms{between}31.4 ms" not in said
        assert f"500 ms{between}500 ms" not in said
    assert "one sample" in said
    assert "0.966 (1 pair)" in said


def test_the_ends_of_an_interval_of_one_sample_are_empty_in_a_table() -> None:
    ends = ("step_low_s", "step_high_s", "s_per_sample_low", "s_per_sample_high", "ratio_low", "ratio_high")
    assert {row[end] for row in view_of(one_block()).tables()["modes"] for end in ends} == {None}


# --- a mode whose turn never came is not measured, which is no failure, and there is no empty table -------------------

NAMES = ("ddp", "optimal", "single")


def not_measured(mode: str) -> ModeResult:
    return ModeResult(mode=mode, status="not measured", label="real")


def before_the_first_block() -> Comparison:
    return made.comparison([not_measured(name) for name in NAMES], complete=False, error="interrupted", samples=[])


def test_a_mode_whose_turn_never_came_has_not_failed() -> None:
    record = before_the_first_block()
    for name in NAMES:
        assert failure_line(record.modes[name]) is None
        assert verdict(record, record.modes[name]) == "not measured"
    found = [(case.name, case.status, case.message) for case in junit.cases(record)[:3]]
    assert found == [(name, "skipped", "not measured") for name in NAMES]
    for table in ("modes", "samples"):
        assert [row["status"] for row in view_of(record).tables()[table]] == ["not measured"] * 3
    first, second, *_ = terminal.render(record).split("\n\n")
    assert first.startswith("INCOMPLETE: interrupted.")
    assert second.startswith("No mode was measured")


@pytest.mark.parametrize("name", ["terminal", "markdown", "html", "junit"])
def test_no_format_calls_it_failed_or_has_an_empty_table(name: str) -> None:
    said = FORMATS.load(name)(before_the_first_block())
    for word in ("FAILED", "Time per sample in figures", "Time per sample, all jobs", "Where the step", "| mode |"):
        assert word not in said


def test_beside_a_measured_mode_it_has_a_row_without_times() -> None:
    record = made.comparison([DDP, not_measured("single")], complete=False, error="interrupted")
    lines = terminal.render(record, width=100).splitlines()
    row = next(line for line in lines if line.lstrip().startswith("single"))
    assert row.split()[-2:] == ["not", "measured"]


# --- a mode that the parity check could not prove anything of keeps its time, and every format says why ---------------

WHY = "a schedule that does not average would pass"


def unproven(**more: object) -> Comparison:
    record = made.comparison()
    modes = dict(record.modes)
    for name in ("ddp", "optimal"):
        parity = modes[name].parity
        assert parity is not None
        update = {"shown": False, "message": WHY, **more}
        modes[name] = modes[name].model_copy(update={"parity": parity.model_copy(update=update)})
    return record.model_copy(update={"modes": modes})


def test_what_proves_nothing_keeps_its_times_and_has_one_sentence_a_reason() -> None:
    result = unproven().modes["optimal"]
    assert result.is_trusted
    assert failure_line(result) is None
    assert parity_cell(result) == "not shown"
    (line,) = not_shown_lines(unproven())
    assert "not shown for ddp and optimal" in line
    assert not_shown_lines(made.comparison()) == []
    told = {case.name: case.message for case in junit.cases(unproven())}
    assert told["optimal"].endswith(f"; same network: not shown ({WHY})")
    rows = {row["mode"]: row for row in view_of(unproven()).tables()["modes"]}
    assert (rows["optimal"]["same_network"], rows["optimal"]["same_network_why"]) == ("not shown", WHY)
    assert rows["wfbp"]["same_network"] == "yes"
    for name in ("markdown", "html"):
        assert WHY in " ".join(FORMATS.load(name)(unproven()).split())


def test_a_reference_by_hand_is_said() -> None:
    text = columns_line(unproven(reference=BY_HAND, shown=True))
    assert "averaging by hand" in text


def test_a_reference_that_fails_is_not_held_against_itself() -> None:
    failed = unproven(ok=False, shown=True, message="'weight' differs").modes["ddp"]
    assert "against its own steps taken again" in (failure_line(failed) or "")
