"""Advice is the same in every output."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sample_records as made
from sample_kinds import GOLDEN, tuned

from xbench.planning.measured import measured, read
from xbench.planning.next_forward_search import NextForwardSearch
from xbench.planning.scenario import Change, Planned, replan, what_if
from xbench.records import Comparison, ModeResult, Profile, Ratio
from xbench.report import advice
from xbench.report.advice import Advice, compare_command, fastest, in_ddp, not_run, recommendation
from xbench.report.formats import markdown, terminal
from xbench.report.kinds import view_of
from xbench.report.page.model import Code
from xbench.report.planned import fastest_in_ddp, further, next_forward_line, prediction, what_to_paste
from xbench.spec import FabricSpec, RunSpec, WorkloadSpec
from xbench.units import format_seconds

RUN = "xbench compare resnet18 --modes {} --batch-size 8 --image-size 128 --fabric shaped:hosts=2,rate=1gbit"
USE = "Use auto: predicted 500 ms a step, 16.7 % less than ddp's 600 ms and 0.0 % above the bound (simulated)."
AHEAD = (
    "priority and dear update parameters in the next forward pass, and are predicted to take 450 ms and 480 ms a step, "
    "10.0 % and 4.0 % less than auto (simulated)."
)
OFF = " The predictions for ddp and auto were off by up to 1.5 %."
STEPS_S = {"ddp": 0.6, "auto": 0.5, "dear": 0.48, "priority": 0.45}


def profile(steps_s: dict[str, float] = STEPS_S, **changes: object) -> Profile:
    plans = {mode: made.plan(mode, 4, step_s) for mode, step_s in steps_s.items()}
    return made.profile().model_copy(update={"plans": plans, **changes})


def comparison(results: list[ModeResult], steps_s: dict[str, float] = STEPS_S, **changes: object) -> Comparison:
    record = made.comparison(results)
    plans = {mode: made.plan(mode, 4, step_s) for mode, step_s in steps_s.items()}
    jobs = [job.model_copy(update={"plans": plans}) for job in record.jobs]
    return record.model_copy(update={"jobs": jobs, **changes})


DDP = made.mode_result("ddp", 0.6, (1.0, 1.0, 1.0), "reference", buckets=4)
AUTO = made.mode_result("auto", 0.54, (0.9, 0.88, 0.92), "faster", buckets=4)
TUNED = made.mode_result("ddp-tuned", 0.564, (0.94, 0.917, 0.967), "faster", buckets=4)


def test_what_hardly_gains_is_not_named() -> None:
    assert view_of(profile({"ddp": 0.6, "auto": 0.5, "dear": 0.495})).advice() == [
        Advice(USE),
        Advice("To prove what is predicted:", RUN.format("ddp,auto")),
    ]
    kept = view_of(profile({"ddp": 0.6, "auto": 0.7})).advice()
    assert kept[0].told.startswith("Keep ddp as it comes: no other mode is predicted to take less than its 600 ms")
    assert kept[-1].command == RUN.format("ddp,auto")


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ({"device": "cpu"}, "--fabric local:ranks=2 --batch-size 8 --image-size 128"),
        ({"device": "cuda", "gpu": 0}, "--fabric emulated --batch-size 8 --image-size 128 --device cuda:0"),
    ],
)
def test_one_rank_is_sent_to_a_fabric_with_a_link(device: dict[str, object], told: str) -> None:
    alone = made.profile().spec.model_copy(update={"fabric": FabricSpec(name="local", ranks=1), **device})
    _, advised = view_of(profile(cost_model=None, bounds=None, spec=alone)).advice()
    assert advised.command == f"xbench profile resnet18 {told}"


def test_a_profile_names_the_mode_to_use_what_goes_further_and_the_command_in_every_format() -> None:
    record = profile()
    use, more, prove = view_of(record).advice()
    assert (use, more) == (Advice(USE), Advice(AHEAD))
    assert prove == Advice("To prove what is predicted:", RUN.format("ddp,auto,priority,dear"))
    drawn = terminal.render(record)
    assert drawn.startswith("Use auto: predicted 500 ms a step")
    assert f"\n  {prove.command}\n" in drawn
    page = view_of(record).page()
    assert list(page.answer[:2]) == [use.told, more.told]
    assert [block.text for block in page.paste if isinstance(block, Code)] == [prove.command]
    assert f"`{prove.command}`" in markdown.render(record)


def test_plan_says_what_the_profile_says() -> None:
    record = made.profile()
    planned = replan(what_if(measured(record, "record.json"), Change()), ["ddp", "auto", "dear", "priority"])
    told = view_of(record.model_copy(update={"plans": planned.plans, "bounds": planned.bounds})).advice()
    assert further(planned) == told[1:]
    assert told[-1].command is not None
    changed = replan(what_if(measured(record, "record.json"), Change(rate_bps=1e10)), ["ddp", "auto"])
    assert [one for one in further(changed) if one.command is not None] == []  # nobody has those links


def test_a_comparison_says_how_to_use_the_winner_how_to_stay_with_ddp_and_what_was_not_run() -> None:
    record = comparison([DDP, AUTO, TUNED])
    use, in_one, more = view_of(record, "runs/a b/record.json").advice()
    assert use.command == "xbench plan 'runs/a b/record.json' --emit python --mode auto"
    assert in_one.command == "xbench plan 'runs/a b/record.json' --emit ddp --mode ddp-tuned"
    assert "ddp-tuned takes 0.940 [0.917, 0.967]" in in_one.told
    assert more == Advice(f"Not run: {AHEAD}{OFF}", RUN.format("ddp,auto,priority,dear"))
    pasted = [block.text for block in view_of(record, "runs/a b").page().paste if isinstance(block, Code)]
    assert pasted[1:] == ["xbench plan 'runs/a b' --emit ddp --mode ddp-tuned", RUN.format("ddp,auto,priority,dear")]
    for drawn in (terminal.render(record), markdown.render(record)):
        for one in view_of(record).advice():
            assert one.command is not None
            assert one.command in drawn


def test_what_was_run_is_not_advised_again() -> None:
    dear = made.mode_result("dear", 0.5, (0.85, 0.83, 0.87), "faster", buckets=4)
    priority = made.mode_result("priority", 0.52, (0.87, 0.85, 0.89), "faster", buckets=4)
    assert not_run(comparison([DDP, AUTO, dear, priority]), "auto") == []
    (rest,) = not_run(comparison([DDP, AUTO, dear]), "dear")
    assert rest.command == RUN.format("ddp,dear,priority")
    assert "450 ms a step, 6.2 % less than dear (simulated)" in rest.told
    assert rest.told.endswith(OFF.replace("auto", "dear"))


def test_a_gain_within_the_error_of_the_run_s_predictions_is_not_advised() -> None:
    """auto is predicted to take 0.5 s, dear 4 % and priority 10 % less."""
    for off, advised in ((0.03, "priority,dear"), (-0.05, "priority"), (0.101, None)):
        record = comparison([DDP.model_copy(update={"prediction_error": off}), AUTO])
        found = not_run(record, "auto")
        assert [one.command for one in found] == ([RUN.format(f"ddp,auto,{advised}")] if advised else [])
    wrong = DDP.model_copy(update={"prediction_error": 0.5, "status": "failed"})
    control = made.mode_result("compute", 0.4, (0.6, 0.59, 0.61), "faster", buckets=1)
    control = control.model_copy(update={"prediction_error": 0.5})
    assert len(not_run(comparison([wrong, control, AUTO]), "auto")) == 1  # neither tests a prediction
    bare = made.mode_result("wfbp", 0.7, (1.2, 1.1, 1.3), "slower", buckets=4)
    bare = bare.model_copy(update={"prediction_error": 0.5})
    assert len(not_run(comparison([DDP, bare, AUTO]), "auto")) == 1  # neither ddp nor the mode in use


@pytest.mark.parametrize(
    ("text", "written"), [("hsdp:group=2", "hsdp:group=2"), ("horovod", "horovod"), ("hsdp:group=2@b", "hsdp:group=2")]
)
def test_a_winner_without_a_plan_keeps_its_options(text: str, written: str) -> None:
    won = made.mode_result(text, 0.5, (0.85, 0.83, 0.87), "faster", buckets=4)
    changed = advice.what_to_paste(comparison([DDP, won.model_copy(update={"plan": None})]))
    assert changed is not None
    assert changed.told.startswith(f'Use xbench.attach(model, optimizer, schedule="{written}"): it takes no plan.')


@pytest.mark.parametrize(
    ("verdict", "ratio", "told"),
    [
        ("inconclusive", (0.97, 0.9, 1.04), "Stay with ddp until more launches decide."),
        ("equivalent", (0.995, 0.99, 1.0), "Nothing to change: stay with ddp."),
        ("slower", (1.1, 1.05, 1.15), "Nothing to change: stay with ddp."),
    ],
)
def test_without_a_winner_ddp_stays(verdict: str, ratio: tuple[float, float, float], told: str) -> None:
    found = view_of(comparison([DDP, made.mode_result("auto", 0.58, ratio, verdict, buckets=4)])).advice()
    assert found[0] == Advice(told)
    assert found[1].told.startswith("Not run: priority and dear update parameters in the next forward pass")
    assert found[1].told.endswith("less than ddp (simulated). The predictions for ddp were off by 1.5 %.")


def test_ddp_s_own_argument_is_named_where_it_was_proven_and_did_not_win() -> None:
    proven = Ratio(value=0.94, ci95=(0.917, 0.967), verdict="faster")
    (line,) = in_ddp("auto", {"ddp-tuned": proven}, "r.json")
    assert line.command == "xbench plan r.json --emit ddp --mode ddp-tuned"
    assert in_ddp("ddp-tuned", {"ddp-tuned": proven}, "r.json") == []
    unsure = Ratio(value=0.97, ci95=(0.93, 1.01), verdict="inconclusive")
    alike = Ratio(value=0.992, ci95=(0.987, 0.997), verdict="equivalent")
    for ratio in (unsure, alike):
        assert in_ddp("auto", {"ddp-tuned": ratio}, "r.json") == []
    assert in_ddp("auto", {"auto": proven}, "r.json") == []
    record = tuned(tried={"auto": proven, "ddp-tuned": proven})
    assert view_of(record).advice()[0].command == f"xbench plan {record.record} --emit ddp --mode ddp-tuned"
    assert f"  {view_of(record).advice()[0].command}\n" in terminal.render(record)


def test_the_command_repeats_the_conditions_of_the_run() -> None:
    spec = RunSpec(
        kind="comparison",
        workloads=(
            WorkloadSpec(name="my train.py:make", dtype="bf16", optimizer="adamw", seed=3, accumulate=4, clip=0.5),
        ),
        fabric=FabricSpec(name="local", ranks=4),
        host_tuning=False,
    )
    assert compare_command(spec, ["ddp", "auto"]) == (
        "XBENCH_HOST_TUNING=off xbench compare 'my train.py:make' --modes ddp,auto --dtype bf16 --optimizer adamw "
        "--accumulate 4 --clip 0.5 --seed 3 --fabric local:ranks=4"
    )
    given = RunSpec(
        kind="comparison",
        workloads=(WorkloadSpec(name="mlp", amp="bf16", checkpoint="blocks"),),
        fabric=FabricSpec(name="cluster"),
    )
    assert (
        compare_command(given, ["ddp"]) == "xbench compare mlp --modes ddp --amp bf16 --checkpoint blocks"
    )  # the ranks around it are found again


def test_a_winner_that_cannot_be_planned_has_no_command() -> None:
    horovod = made.mode_result("horovod", 0.5, (0.8, 0.78, 0.82), "faster")
    assert [one.command for one in view_of(comparison([DDP, horovod], {"ddp": 0.6})).advice()] == [None]
    record = comparison([DDP, AUTO], {"ddp": 0.6})
    squeezed = record.model_copy(update={"spec": record.spec.model_copy(update={"compress": "bf16"})})
    assert [one.command for one in view_of(squeezed).advice()] == [None]


# --- what `xbench plan` recommends, for plans whose predictions are given ---------------------------------------------


def with_steps(**steps_s: float) -> Planned:
    """Plans of the golden profile whose predicted steps [s] are these; `_` stands for `-` in a mode."""
    wanted = {mode.replace("_", "-"): step_s for mode, step_s in steps_s.items()}
    found = replan(what_if(read(GOLDEN / "profile-v1.json"), Change()), list(wanted))
    plans = {mode: plan.model_copy(update={"predicted_step_s": wanted[mode]}) for mode, plan in found.plans.items()}
    return replace(found, plans=plans)


@pytest.mark.parametrize(
    ("steps_s", "mode"),
    [
        ({"ddp": 1.0, "auto": 0.9, "optimal": 0.9001}, "auto"),
        ({"ddp": 1.0, "auto": 0.9001, "optimal": 0.9}, "optimal"),  # the same change to a script: the faster
        ({"ddp": 1.0, "ddp_tuned": 0.904, "auto": 0.9}, "ddp-tuned"),  # as good, and a smaller change
        ({"ddp": 1.0, "ddp_tuned": 0.906, "auto": 0.9}, "auto"),
        ({"ddp": 0.903, "single": 0.9, "auto": 0.9}, "ddp"),
        ({"single": 0.902, "auto": 0.9, "wfbp": 0.9}, "single"),
        ({"wfbp": 0.9, "auto": 0.902}, "auto"),
        ({"compute": 0.1, "wfbp": 0.9}, "wfbp"),
        ({"compute": 0.1}, None),
    ],
)
def test_of_modes_as_good_the_one_that_changes_least(steps_s: dict[str, float], mode: str | None) -> None:
    assert fastest(with_steps(**steps_s)) == mode


def test_what_to_paste_only_where_it_matters() -> None:
    assert what_to_paste(with_steps(ddp=1.0, auto=0.985)) is None
    assert "Keep ddp as it comes: auto, the fastest" in recommendation(with_steps(ddp=1.0, auto=0.985))
    assert what_to_paste(with_steps(ddp=1.0, ddp_tuned=0.9)) == "--emit ddp prints the argument to paste."
    assert what_to_paste(with_steps(ddp=0.9, auto=1.0)) is None
    assert what_to_paste(with_steps(compute=1.0)) is None
    told = what_to_paste(with_steps(ddp=1.0, auto=0.9))
    assert told is not None
    assert told.startswith(
        "--emit python prints the lines to paste, for xbench.attach; --emit ddp --mode auto the same buckets for"
    )


def test_buckets_that_ddp_cannot_form_are_for_attach_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planned, "formed_by_ddp", lambda self, mode: False)
    found = with_steps(ddp=1.0, ddp_tuned=1.0, auto=0.5)
    assert what_to_paste(found) == "--emit python prints the lines to paste, for xbench.attach."
    assert fastest_in_ddp(found) == "ddp-tuned"


@pytest.mark.parametrize(
    ("tuned_s", "auto_s", "mode"), [(0.9, 0.8, "auto"), (0.9, 0.897, "ddp-tuned"), (0.8, 0.9, "ddp-tuned")]
)
def test_the_list_for_ddp_is_the_one_that_is_best_in_ddp(
    monkeypatch: pytest.MonkeyPatch, tuned_s: float, auto_s: float, mode: str
) -> None:
    there_s = {"ddp-tuned": tuned_s, "auto": auto_s}
    found = with_steps(ddp_tuned=1.0, auto=0.1)
    in_ddp = {name: plan.model_copy(update={"predicted_step_s": there_s[name]}) for name, plan in found.plans.items()}
    monkeypatch.setattr(Planned, "in_ddp", lambda self, name: in_ddp[name])
    assert fastest_in_ddp(found) == mode
    assert fastest_in_ddp(with_steps(ddp=1.0, wfbp=0.5)) is None


def test_a_prediction_says_where_it_runs() -> None:
    found = with_steps(ddp=1.0, ddp_tuned=0.95, auto=0.9)
    assert "900 ms a step, ddp 1.00 s (simulated)" in prediction(found, "auto")
    assert "950 ms a step, ddp 1.00 s, auto 900 ms (simulated)" in prediction(found, "ddp-tuned")
    there = prediction(found, "auto", in_ddp=True)
    assert there.startswith("DistributedDataParallel with the buckets of auto")
    assert there.endswith("auto under xbench.attach 900 ms (simulated).")


def test_what_the_next_forward_pass_could_hide_is_told() -> None:
    was = what_if(read(GOLDEN / "profile-v1.json"), Change())
    search = NextForwardSearch(was.layers, was.step, was.cost, contention=was.contention)
    line = next_forward_line(replan(was, ["ddp"]))
    assert line.endswith("(simulated)")
    for one in (search.dear(), search.priority()):
        assert one.carrier in ("dear", "priority")
        assert f"{one.carrier} {format_seconds(one.step_s)}" in line
