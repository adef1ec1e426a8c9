"""Progress shows predictions, parts of the profile with counts, and the trainings of converge."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from samples_of_runs import A, block, run_of

from xbench.rank.events import EpochTrained, Event, ModeFailed, PhaseBegan, ProfilePartBegan, SchedulesPlanned
from xbench.rank.program import Phase, phases
from xbench.records import Bounds, Plan
from xbench.runs.converge import sized
from xbench.runs.progress import Progress, Trainings, predicted_slower
from xbench.schedules import parse_modes
from xbench.spec import RunSpec
from xbench.workloads import parse_workload


class Shown:
    """A progress whose lines are kept: printed off a terminal, redrawn on one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False) -> None:
        self.lines: list[str] = []
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100, _environ={})
        self.progress = Progress(console, launches=1)
        monkeypatch.setattr(self.progress, "_show", self.lines.append)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_profile_names_its_parts_and_on_a_terminal_how_far_each_is(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    shown = Shown(monkeypatch, terminal=terminal)
    progress = shown.progress
    progress.begin_launch(0, (Phase(kind="profile"), Phase(kind="parity", mode="ddp")))
    progress.note(0, 99.0, "starting 1 of 2")
    progress.take(0, 0, PhaseBegan(t=100.0, name="profile", number=0))
    progress.take(0, 0, ProfilePartBegan(t=100.0, name="layers"))
    progress.note(0, 103.2, "profile step 3 of 8")
    progress.note(1, 103.3, "profile step 4 of 8")
    progress.note(0, 103.4, "waiting for gradients")
    progress.take(0, 1, ProfilePartBegan(t=105.0, name="link"))
    progress.take(0, 0, ProfilePartBegan(t=112.0, name="link"))
    progress.note(0, 120.0, "all-reduce 12 of 24: 4096 bytes")
    progress.take(0, 0, PhaseBegan(t=165.0, name="gate ddp", number=1))
    progress.note(0, 166.0, "gate, step 1 of 3")
    assert [line.removeprefix("launch 1 of 1: ") for line in shown.lines] == [
        "starting the ranks",
        "profile",
        "profile, layers, 1 s so far",
        *["profile, layers 3 of 8, 3 s so far"] * terminal,
        "profile, link, 12 s so far",
        *["profile, link 12 of 24, 20 s so far"] * terminal,
        "parity check of ddp",
    ]


def test_a_line_that_stays_is_folded_between_words_on_a_terminal_alone() -> None:
    text = "so far: auto 0.901 [0.871, 0.930] of DDP's time\n/a/path/that/is/wider/than/the/terminal"
    for terminal, lines in (
        (True, ["so far: auto 0.901", "[0.871, 0.930] of", "DDP's time"]),
        (False, text.splitlines()[:1]),
    ):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=20, color_system=None, _environ={})
        Progress(console, launches=1).say(text)
        shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert [line.rstrip() for line in shown] == [*lines, text.splitlines()[1]]


def test_converge_says_what_is_done_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, terminal=True)
    trainings = Trainings(shown.progress, parse_modes("ddp,spb,crossover"), seeds=3, epochs=2)
    assert trainings.standing() == "0 of 8 trainings done"  # two seeds at a time under crossover
    shown.progress.begin_launch(0, (Phase(kind="profile"),))
    trainings.take(0, 0, PhaseBegan(t=10.0, name="profile", number=0))
    trainings.take(0, 0, ProfilePartBegan(t=11.0, name="layers"))
    trainings.take(0, 0, PhaseBegan(t=100.0, name="ddp, seed 0", number=1))
    trainings.take(0, 0, EpochTrained(t=130.0, mode="ddp", seed=0, epoch=1))
    trainings.take(0, 1, EpochTrained(t=130.0, mode="ddp", seed=0, epoch=1))
    trainings.take(0, 0, EpochTrained(t=160.0, mode="ddp", seed=0, epoch=2))
    trainings.take(1, 0, ModeFailed(t=161.0, mode="spb", message="no"))
    assert trainings.standing() == "1 of 5 trainings done, about 4 min left"
    assert shown.lines[3:] == [
        "ddp, seed 0, epoch 1 of 2 done; 0 of 8 trainings done, about 8 min left",
        "ddp, seed 0, epoch 2 of 2 done; 1 of 8 trainings done, about 7 min left",
    ]


def test_converge_takes_small_images_and_a_batch_of_32_unless_told_otherwise() -> None:
    for text, options, found in (
        ("resnet18", {}, (32, 32)),
        ("inception_v3", {}, (32, 75)),
        ("resnet18", {"batch_size": 4, "image_size": 128}, (4, 128)),
        ("resnet18:batch-size=8", {}, (8, 32)),
    ):
        spec = sized(parse_workload(text, **options))
        assert (spec.batch_size, spec.image_size) == found, text


STEPS_S = {"compute": 0.3, "ddp": 0.0202, "optimal": 0.0255, "single": 0.0204, "auto": 0.018, "wfbp": 0.0303}


def test_modes_predicted_slower_are_marked_with_the_amount() -> None:
    assert predicted_slower(run_of("ddp,auto,single,optimal,wfbp"), STEPS_S) == [
        "predicted slower than ddp (simulated): optimal by 26.2 %, wfbp by 50.0 %"
    ]
    assert predicted_slower(run_of("ddp,auto,single"), STEPS_S) == []
    unknown = run_of("horovod,optimal", reference="horovod")  # nobody knows horovod's step
    assert predicted_slower(unknown, STEPS_S) == []
    two = run_of("sequential,crossover,ddp,optimal", A, A, reference="sequential")
    assert predicted_slower(two, STEPS_S) == ["predicted slower than ddp (simulated): optimal by 26.2 %"]


def said(console_run: RunSpec, events: list[Event]) -> list[str]:
    told = io.StringIO()
    with Progress(Console(file=told, width=200), launches=1, run=console_run) as progress:
        progress.begin_launch(0, phases(console_run, 0))
        for event in events:
            progress.take(0, 0, event)
    return told.getvalue().splitlines()


def test_the_mark_comes_with_the_plans_before_anything_is_timed() -> None:
    empty = Plan(mode="", buckets=[], bucket_bytes=[], predicted_step_s=0.0, predicted_exposed_s=0.0)
    plans = {mode: empty.model_copy(update={"predicted_step_s": step_s}) for mode, step_s in STEPS_S.items()}
    bounds = Bounds(compute_s=1.0, communication_s=1.0, overlap_bound_s=1.0, backward_overlap_bound_s=1.0)
    _, told = said(run_of("ddp,optimal"), [SchedulesPlanned(cost_model=None, plans=plans, bounds=bounds)])
    assert told.startswith("predicted slower than ddp")


def test_the_live_step_of_two_jobs_at_once_is_said_to_be_one_job_s() -> None:
    asked = run_of("sequential,crossover", A, A, reference="sequential")
    places = {phase.mode: number for number, phase in enumerate(phases(asked, 0)) if phase.kind == "block"}
    events: list[Event] = []
    for mode, number in places.items():
        events.append(block(mode, [0.0, 2.0, 4.0, 6.0], warmup=0))
        events.append(PhaseBegan(t=1.0, number=number, name=f"block {mode}"))
    lines = said(asked, events)
    assert "launch 1 of 1: block crossover, median step of one of the jobs so far 2.00 s" in "\n".join(lines)
    assert "launch 1 of 1: block sequential, median step so far 2.00 s" in "\n".join(lines)
