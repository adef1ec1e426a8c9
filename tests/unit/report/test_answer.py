from __future__ import annotations

import sample_records as made

from xbench.records import ModeResult
from xbench.report.advice import what_to_paste
from xbench.report.answer import answer, ranking, trusted
from xbench.report.formats import junit, markdown, terminal
from xbench.report.kinds import view_of

DDP = made.mode_result("ddp", 0.657, (1.0, 1.0, 1.0), "reference")

COMPUTE = made.mode_result("compute", 0.5, (0.76, 0.75, 0.77), "faster")


def _optimal(value: float, low: float, high: float, verdict: str) -> ModeResult:
    return made.mode_result("optimal", 0.657 * value, (value, low, high), verdict)


def test_the_fastest_mode_is_named_with_its_gain_and_its_rivals() -> None:
    assert answer(made.comparison())[:2] == [
        "optimal is fastest: 10.8 % less time per sample than ddp, the reference (95 % CI 10.0 % to 11.6 %).",
        "This run cannot tell mgwfbp from optimal: block by block it takes 1.010 [0.998, 1.022] of its time.",
    ]


def test_a_noisy_mode_hides_none_that_is_proven_faster() -> None:
    mgwfbp = made.mode_result("mgwfbp", 0.61, (0.929, 0.89, 0.969), "faster")
    record = made.comparison([DDP, mgwfbp, _optimal(0.926, 0.833, 1.028, "inconclusive")])
    assert [result.mode for result in ranking(record)] == ["mgwfbp", "optimal", "ddp"]
    assert answer(record)[:3] == [
        "mgwfbp is faster: 7.1 % less time per sample than ddp, the reference (95 % CI 3.1 % to 11.0 %).",
        "optimal may be faster still, but this run cannot tell it from ddp.",
        "More launches may decide: --rigorous, or --launches 5.",
    ]
    found = what_to_paste(record)
    assert found is not None
    assert "mgwfbp" in found.told


def _beside(mgwfbp: float, wfbp: float) -> list[str]:
    """The answer where intervals of both overlap with the winner's, and blocks are so many times as long."""
    wide = [made.mode_result(mode, 0.6, (0.95, 0.85, 0.98), "faster") for mode in ("mgwfbp", "wfbp")]
    record = made.comparison([DDP, _optimal(0.9, 0.84, 0.96, "faster"), *wide])
    took = {"optimal": 0.9, "mgwfbp": 0.9 * mgwfbp, "wfbp": 0.9 * wfbp}
    blocks = made.samples(list(record.modes), ratios=took)
    return answer(record.model_copy(update={"samples": blocks}))[1:-1]


def test_rivals_are_judged_by_their_blocks_and_not_by_intervals_that_overlap() -> None:
    assert _beside(1.05, 1.1) == []
    assert _beside(1.05, 1.01) == [
        "This run cannot tell wfbp from optimal: block by block it takes 1.010 [0.998, 1.022] of its time."
    ]
    assert _beside(1.001, 1.002) == [
        "mgwfbp and wfbp are as fast as optimal, within 2 %: block by block they take 1.001 [0.989, 1.013] and "
        "1.002 [0.990, 1.014] of its time."
    ]
    assert _beside(1.001, 1.015) == [
        "mgwfbp is as fast as optimal, within 2 %: block by block it takes 1.001 [0.989, 1.013] of its time.",
    ]


def test_rivals_that_met_in_no_round_are_not_judged() -> None:
    record = made.comparison()
    alone = [sample for sample in record.samples if (sample.mode == "mgwfbp") == (sample.launch == 0)]
    said = answer(record.model_copy(update={"samples": alone}))
    assert not any("mgwfbp" in sentence for sentence in said)


def test_every_format_gives_the_same_answer() -> None:
    record = made.comparison()
    said = answer(record)
    assert said[1] in " ".join(terminal.render(record).split())
    assert said[1] in markdown.render(record)
    assert view_of(record).page().answer == said
    assert " ".join(said) in junit.render(record)


def test_the_control_never_wins() -> None:
    record = made.comparison()
    assert "compute" in record.modes
    assert [result.mode for result in ranking(record)] == ["optimal", "mgwfbp", "wfbp", "ddp", "single"]


def test_a_wrong_network_never_wins() -> None:
    record = made.troubled()
    assert not trusted(record.modes["mgwfbp"])
    assert [result.mode for result in ranking(record)] == ["optimal", "ddp"]


def test_parity_alone_is_enough_to_distrust() -> None:
    wrong = made.troubled().modes["mgwfbp"].model_copy(update={"status": "ok"})
    assert not trusted(wrong)


def test_what_is_inconclusive_is_called_so() -> None:
    said = answer(made.comparison([DDP, _optimal(0.97, 0.9, 1.04, "inconclusive")]))
    assert said[0] == (
        "Inconclusive: optimal looks fastest by its paired ratio, but this run cannot tell it from ddp, the "
        "reference (ratio 0.970, 95 % CI 0.900 to 1.040)."
    )
    assert "--rigorous" in said[1]


def test_equivalent_modes_have_no_winner() -> None:
    said = answer(made.comparison([DDP, _optimal(0.995, 0.99, 1.0, "equivalent")]))
    assert said[0] == (
        "No mode is faster than ddp, the reference, by an amount that matters; optimal is equivalent "
        "(ratio 0.995, 95 % CI 0.990 to 1.000)."
    )


def test_the_reference_may_be_fastest() -> None:
    said = answer(made.comparison([DDP, _optimal(1.2, 1.1, 1.3, "slower")]))
    assert said[0] == "ddp, the reference, is fastest of 2: no other mode had a shorter time per sample."


def test_a_reference_that_only_looks_fastest_does_not_win() -> None:
    said = answer(made.comparison([DDP, _optimal(1.2, 0.4, 3.6, "inconclusive")]))
    assert said[0] == (
        "Inconclusive: ddp, the reference, looks fastest by paired ratios, but this run cannot tell optimal from it."
    )
    assert "--rigorous" in said[1]


def test_nothing_to_compare() -> None:
    assert answer(made.comparison([DDP]))[0].startswith("Only ddp was measured")
    assert answer(made.comparison([DDP, COMPUTE]))[0].startswith("Only ddp is a mode to advise: ")
    assert answer(made.comparison([])) == ["No mode was measured, so there is no answer."]


def test_a_failed_reference_leaves_no_ratio() -> None:
    failed = ModeResult(mode="ddp", status="failed", label="real", error="rank 0 died")
    lone = [made.mode_result(name, step_s, None, "faster") for name, step_s in (("optimal", 0.5), ("wfbp", 0.6))]
    said = answer(made.comparison([failed, *lone]))
    assert said[0] == (
        "optimal had the shortest time per sample, but without ddp, the reference, there is no ratio to judge it."
    )


def test_each_kind_of_number_is_named() -> None:
    assert answer(made.comparison())[-1] == (
        "Times are real (real compute, real collectives over real links); predictions and bounds are simulated."
    )
    assert answer(made.paired())[-1] == (
        "Times are emulated for concurrent and real for crossover:mgwfbp and sequential; "
        "predictions and bounds are simulated."
    )
