"""`plain-ddp`: ranks of its own without host tuning. What is refused, what is checked, and what the report says."""

from __future__ import annotations

from typing import Any

import pytest
from samples_of_runs import A, B, collector_of, frame, record_of, run_of, timed

from xbench.config import CompareConfig, ConvergeConfig, ProfileConfig, RunConfig, TuneConfig, ValidateConfig
from xbench.errors import SpecError
from xbench.launch.monitor import RankWatch
from xbench.option_fields import option_of
from xbench.rank.journal import JournalReader
from xbench.records import Comparison, StepTimes
from xbench.report.advice import of_comparison
from xbench.report.answer import answer, ranking, verdict
from xbench.report.sentences import tuning_line
from xbench.runs import converge
from xbench.runs import prepare as preparing
from xbench.runs.build_records import comparison_record
from xbench.runs.mode_checks import with_untuned
from xbench.runs.prepare import prepare
from xbench.schedules import parse_modes
from xbench.spec import Effort, FabricSpec, WorkloadSpec
from xbench.workloads.probe import Preflight, Probed

LOCAL = FabricSpec(name="local", ranks=2)


def request(modes: str, **fields: Any) -> RunConfig:
    return RunConfig(**{"workloads": [A], "fabric": LOCAL, "modes": parse_modes(modes)} | fields)


@pytest.mark.parametrize(
    ("modes", "fields", "setting", "message"),
    [
        ("ddp,plain-ddp", {}, "off", "mode 'plain-ddp' leaves out host tuning, and XBENCH_HOST_TUNING=off has left it "
         "out of every mode"),
        ("plain-ddp,auto", {}, "on", "mode 'plain-ddp' shows what host tuning is worth to ddp, which is not here"),
        ("ddp,plain-ddp", {"reference": "plain-ddp"}, "on", "--reference: 'plain-ddp' has no host tuning"),
        ("ddp,plain-ddp@b", {"reference": "plain-ddp@b"}, "on", "--reference: 'plain-ddp@b' has no host tuning"),
        ("ddp,plain-ddp,crossover", {}, "on", "mode 'plain-ddp' has ranks of its own, and 'crossover' has two jobs"),
        ("ddp,plain-ddp", {"fabric": FabricSpec(name="cluster")}, "on", "mode 'plain-ddp' has ranks of its own, and "
         "another launcher started these"),
    ],
)  # fmt: skip
def test_requests_that_would_show_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, modes: str, fields: dict[str, Any], setting: str, message: str
) -> None:
    monkeypatch.setenv("XBENCH_HOST_TUNING", setting)
    monkeypatch.setattr(preparing, "probe", lambda *_: pytest.fail("a workload was built"))
    with pytest.raises(SpecError, match=message):
        prepare(request(modes, **fields))


def probe_of(device: Any, asked: list[WorkloadSpec]) -> Any:
    def probe(specs: list[WorkloadSpec], wanted: str, ranks: int, local_rank: int | None) -> Preflight:
        asked.extend(specs)
        each = [Probed(record=record_of(spec), memory_bytes_estimate=1) for spec in specs]
        return Preflight(device=device, gpus=2, torch="2", torchvision=None, nccl=None, cuda=None, workloads=each)

    return probe


DEFAULT = ["compute", "ddp", "single", "wfbp", "mgwfbp", "optimal", "auto"]
FULL = [*DEFAULT[:2], "plain-ddp", *DEFAULT[2:]]
QUICK = Effort(launches=1, rounds=6, steps=4, profile_steps=8)


def resolved(monkeypatch: pytest.MonkeyPatch, device: str = "cpu", **fields: Any) -> tuple[list[str], list[str]]:
    """Modes of a request that names none, and the messages."""
    monkeypatch.setattr(preparing, "probe", probe_of(device, []))
    run, _, notes = prepare(CompareConfig(**{"workloads": [A], "fabric": LOCAL} | fields))
    return [mode.text for mode in run.modes], notes


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"workloads": [A, B]},
        {"fabric": FabricSpec(name="shaped", hosts=2, rate="1gbit")},
        {"reference": "single"},
        {"overlap": "forward"},
        {"compress": "bf16"},
        {"workloads": [A.model_copy(update={"accumulate": 2, "amp": "bf16", "clip": 1.0, "checkpoint": "blocks"})]},
    ],
    ids=lambda fields: next(iter(fields), "usual"),
)
def test_a_comparison_that_names_no_modes_has_it(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> None:
    modes, notes = resolved(monkeypatch, **fields)
    assert modes == FULL
    assert not any("plain-ddp" in note for note in notes)


@pytest.mark.parametrize(
    ("device", "fields", "setting"),
    [
        ("cuda", {}, "on"),
        ("cpu", {}, "off"),
        ("cpu", {"fabric": FabricSpec(name="emulated", ranks=2, workers=4, rate="1gbit")}, "on"),
        ("cpu", {"effort": QUICK}, "on"),
    ],
    ids=["gpus", "tuning off", "emulated links", "quick"],
)
def test_it_is_left_out_where_it_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, device: str, fields: dict[str, Any], setting: str
) -> None:
    monkeypatch.setenv("XBENCH_HOST_TUNING", setting)
    modes, notes = resolved(monkeypatch, device, **fields)
    assert modes == DEFAULT
    assert not any("plain-ddp" in note for note in notes)


def test_a_world_of_one_and_given_ranks_do_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved(monkeypatch, fabric=FabricSpec(name="local"))[0] == ["compute", "ddp", "single", "wfbp"]
    config, found = CompareConfig(workloads=[A]), probe_of("cpu", [])([A], "cpu", 2, None)
    given = FabricSpec(name="cluster", hosts=2, ranks=2)
    assert with_untuned(parse_modes("compute,ddp"), config, given, found, 2) == (parse_modes("compute,ddp"), [])


def test_nothing_is_added_to_modes_that_were_named(monkeypatch: pytest.MonkeyPatch) -> None:
    named = ",".join(DEFAULT)
    assert resolved(monkeypatch, modes=parse_modes(named))[0] == DEFAULT


@pytest.mark.parametrize(("free", "fits"), [(1200, True), (1199, False), (None, True)])
def test_memory_that_is_short_leaves_it_out_and_says_so(free: int | None, fits: bool) -> None:
    """Two sets of two ranks, whose two jobs need 50 and 100 B: 600 B, and twice that, because the estimate is low."""
    probed = probe_of("cpu", [])([A, B], "cpu", 2, None)
    each = [item.model_copy(update={"memory_bytes_estimate": 50 * n}) for n, item in enumerate(probed.workloads, 1)]
    found = probed.model_copy(update={"free_bytes": free, "workloads": each})
    modes, notes = with_untuned(parse_modes("compute,ddp,auto"), CompareConfig(workloads=[A, B]), LOCAL, found, 2)
    assert [mode.text for mode in modes] == ["compute", "ddp", *["plain-ddp"] * fits, "auto"]
    assert [note.partition(":")[0] for note in notes] == ["plain-ddp is left out to save memory"] * (not fits)
    assert all("needs at least 600 B of the 1.17 KiB that are free" in note for note in notes)


@pytest.mark.parametrize("kind", [TuneConfig, ConvergeConfig, ValidateConfig])
def test_no_other_command_has_it_by_itself(kind: type) -> None:
    assert "plain-ddp" not in option_of(kind, "modes").click["default"]


def test_a_profile_has_no_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "probe", probe_of("cpu", []))
    assert prepare(ProfileConfig(workloads=[A], fabric=LOCAL))[0].modes == ()


def test_not_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "probe", probe_of("cuda", []))
    with pytest.raises(SpecError, match="leaves out the host tuning of ranks on CPUs, and these are on GPUs"):
        prepare(request("ddp,plain-ddp"))


def test_nothing_to_train_by_it_that_ddp_does_not_train() -> None:
    config = ConvergeConfig(workloads=[A], fabric=LOCAL, modes=parse_modes("ddp,plain-ddp"))
    with pytest.raises(SpecError, match="'plain-ddp' trains as ddp does, bit for bit"):
        converge.check(config)


@pytest.mark.parametrize("workloads", [[A], [A, B]])
def test_a_second_process_holds_the_same_jobs(monkeypatch: pytest.MonkeyPatch, workloads: list[WorkloadSpec]) -> None:
    asked: list[WorkloadSpec] = []
    monkeypatch.setattr(preparing, "probe", probe_of("cpu", asked))
    run, found, _ = prepare(request("ddp,plain-ddp,auto", workloads=workloads))
    assert asked == workloads * 2
    assert (run.processes, run.workloads, len(found.workloads)) == (2, tuple(workloads), len(workloads))
    assert run_of("ddp,auto").processes == 1


def test_messages_name_the_ranks(tmp_path: Any) -> None:
    reader = JournalReader(tmp_path, 1, 0)
    assert str(RankWatch(reader, 0, 0, untuned=True)) == "rank 0 without host tuning on host 0"
    assert str(RankWatch(reader, 0, 0, shared=True)) == "rank 0 of job 1 on host 0"


def compared(plain_s: float, modes: str = "ddp,plain-ddp,optimal", launches: int = 3, **fields: Any) -> Comparison:
    """A run in which `ddp` takes a second a step, and `optimal` 0.8 s."""
    run = run_of(modes, host_tuning=True, **fields)
    collector = collector_of(run)
    times = StepTimes(forward_s=0.2, backward_s=0.3, optimizer_s=0.0, step_s=0.5, steps=1, warmup_steps=0,
                      step_ci95=(0.5, 0.5), uninstrumented_step_s=0.5, overhead_ratio=0.0,
                      uninstrumented_ci95=(0.5, 0.5), overhead_ci95=(0.0, 0.0))  # fmt: skip
    collector.jobs[0].step = times
    for launch in range(launches):
        collector.begin_launch(launch)
        for mode in run.modes:
            timed(collector, mode.text, {"ddp": 1.0, "plain-ddp": plain_s, "optimal": 0.8}[mode.text])
    return comparison_record(frame(run), collector)


@pytest.mark.parametrize("reference", ["ddp", "optimal"])
def test_the_gain_of_host_tuning_is_told_apart(reference: str) -> None:
    record = compared(1.25, reference=reference)
    said = [sentence for sentence in answer(record) if sentence.startswith("Host tuning alone")]
    assert said == [
        "Host tuning alone: with it ddp takes 20.0 % less time per sample than without (plain-ddp; 95 % CI 20.0 % to "
        "20.0 %). Every other mode has it, the reference too, so no other figure here holds it."
    ]
    assert "optimal" in answer(record)[0]


def test_it_is_a_control_that_is_never_the_answer() -> None:
    record = compared(0.5)
    plain = record.modes["plain-ddp"]
    assert [result.mode for result in ranking(record)] == ["optimal", "ddp"]
    assert verdict(record, plain) == "control"
    assert plain.ratio is not None
    assert plain.ratio.value == pytest.approx(0.5)
    assert any("with it ddp takes 100.0 % more time per sample" in sentence for sentence in answer(record))
    assert not any("host tuning" in advice.told for advice in of_comparison(record, "r"))


def test_what_was_measured_with_tuning_says_nothing_of_it() -> None:
    record = compared(1.25)
    assert record.modes["ddp"].exposed_s == pytest.approx(0.5)
    plain = record.modes["plain-ddp"]
    assert (plain.predicted_step_s, plain.exposed_s, plain.removed_share) == (None, None, None)


def test_a_gain_that_is_not_shown_is_not_promised() -> None:
    told = {
        plain_s: " ".join(answer(compared(plain_s, launches=launches)))
        for plain_s, launches in ((1.001, 3), (1.002, 1))
    }
    assert "Host tuning alone changes nothing that matters: ratio of plain-ddp to ddp 1.001 [" in told[1.001]
    assert "What host tuning alone is worth is not settled: ratio of plain-ddp to ddp 1.002 [" in told[1.002]
    assert "Host tuning" not in " ".join(answer(compared(1.25, "ddp,optimal")))


def test_a_proven_gain_comes_with_the_call_that_gives_it() -> None:
    (advice,) = [one for one in of_comparison(compared(1.25), "r") if "host tuning" in one.told]
    assert advice.told.endswith("call xbench.tune_host() after the first collective.")
    assert not any("host tuning" in one.told for one in of_comparison(compared(1.001), "r"))


def test_the_report_says_which_ranks_were_not_tuned() -> None:
    assert (tuning_line(compared(1.25).spec) or "").endswith("; plain-ddp ran in ranks of its own without that")
    assert "without" not in (tuning_line(run_of("ddp", host_tuning=True)) or "")
