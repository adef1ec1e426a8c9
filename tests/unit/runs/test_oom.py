"""A mode that runs out of memory fails by itself: what is left of the launch runs in new ranks, without it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from samples_of_runs import run_of

from xbench.errors import RankError
from xbench.launch.monitor import Verdict
from xbench.rank.events import PhaseBegan, RankFailed
from xbench.rank.program import JobPlan, Phase, Program, phases
from xbench.runs import execute, fabric_run
from xbench.runs.event_collector import Collector
from xbench.runs.execute import ModeRun
from xbench.runs.launch_policy import FixedLaunches, OomTracker
from xbench.spec import Effort

MODES = ["ddp", "single", "wfbp"]
PROFILE = Phase(kind="profile")
RUN = run_of(",".join(MODES), effort=Effort(launches=2, rounds=2), reference="ddp")
PLAN = JobPlan(buckets={}, step_s={}, exposed_s={}, link_s={}, compute_s=1.0)


def gate(mode: str) -> Phase:
    return Phase(kind="parity", mode=mode)


def block(round_: int, mode: str) -> Phase:
    return Phase(kind="block", mode=mode, round=round_)


def timeline(mode: str) -> Phase:
    return Phase(kind="timeline", mode=mode)


ORDER = ((0, "ddp"), (0, "single"), (0, "wfbp"), (1, "wfbp"), (1, "ddp"), (1, "single"))
PHASES = (PROFILE, *map(gate, MODES), *(block(round_, mode) for round_, mode in ORDER), *map(timeline, MODES))


def short(number: int, mode: str | None, modes: list[str] = MODES) -> OomTracker:
    """What is known after the second rank ran out of memory in a phase."""
    shortages = OomTracker(modes)
    shortages.begin()
    for rank in range(2):
        shortages.take(0, rank, PhaseBegan(number=number, name="round"))
    shortages.take(0, 1, RankFailed(message="OutOfMemoryError: CUDA", short_in=mode))
    return shortages


@pytest.mark.parametrize(
    ("at", "mode", "start"),
    [
        (9, "single", 7),  # an interrupted round is timed again as a whole
        (2, "single", 2),
        (2, "ddp", 2),  # it was the reference of a gate, which is tried again
    ],
)
def test_what_is_left_of_the_launch_is_run_without_the_mode(at: int, mode: str, start: int) -> None:
    shortages = short(at, mode)
    assert shortages.failed() == mode
    assert shortages.rest(PHASES) == tuple(phase for phase in PHASES[start:] if phase.mode != mode)
    assert shortages.without(phases(RUN, 1)) == tuple(phase for phase in phases(RUN, 1) if phase.mode != mode)


@pytest.mark.parametrize(("at", "mode", "recorded"), [(12, "wfbp", "wfbp"), (9, "single", None), (12, None, None)])
def test_memory_that_runs_out_while_steps_are_recorded(at: int, mode: str | None, recorded: str | None) -> None:
    assert short(at, mode).while_recording(PHASES) == recorded


def test_a_mode_fails_once() -> None:
    shortages = short(2, "ddp")
    assert shortages.failed() == "ddp"
    shortages.begin()
    assert shortages.failed() is None
    shortages.take(0, 0, RankFailed(message="", short_in="ddp"))
    assert shortages.failed() is None  # as everybody's reference it cannot be left out


@pytest.mark.parametrize("mode", [None, "ddp"])
def test_another_error_or_another_mode_is_no_shortage(mode: str | None) -> None:
    assert short(0, mode, ["single", "wfbp"]).failed() is None


# --- the launches of a run --------------------------------------------------------------------------------------------


class Said:
    """A progress display that only listens."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def begin_launch(self, launch: int, phases: tuple[Phase, ...]) -> None:
        pass

    def take(self, job: int, rank: int, event: Any) -> None:
        pass


def launched(
    monkeypatch: pytest.MonkeyPatch, folder: Path, dies: dict[int, tuple[int, str | None]]
) -> tuple[list[tuple[str, tuple[Phase, ...]]], Collector, Said, ModeRun]:
    """Run all launches of `RUN`; the n-th start of the ranks dies in a phase, short of memory in a mode."""
    starts: list[tuple[str, tuple[Phase, ...]]] = []
    run, said = RUN, Said()
    record = SimpleNamespace(samples=4, burst=1)
    found: Any = SimpleNamespace(warnings=[], workloads=[SimpleNamespace(record=record)])
    running = ModeRun(run, found, said, folder, FixedLaunches(run))  # type: ignore[arg-type]
    running.fabric = SimpleNamespace(emulated=None)  # type: ignore[assignment]
    monkeypatch.setattr(running, "write_frame", lambda: None)

    def launch(fabric: Any, jobs: int, module: str, argument: Path, directory: Path, **options: Any) -> Verdict:
        program = Program.model_validate_json(argument.read_text())
        number = len(starts)
        starts.append((directory.name, program.phases))
        if PROFILE in program.phases:
            (directory / "plan0.json").write_text(PLAN.model_dump_json())
        at, mode = dies.get(number, (len(program.phases), None))
        for place in range(min(at + 1, len(program.phases))):
            options["on_event"](0, 1, PhaseBegan(number=place, name=""))
        if number not in dies:
            return Verdict(None, [], [])
        options["on_event"](0, 1, RankFailed(message="", short_in=mode))
        return Verdict(RankError("rank 1 on host 0 ran out of GPU memory", hint="a smaller batch"), [], [])

    monkeypatch.setattr(fabric_run, "launch", launch)
    running.measure()
    return starts, running.collector, said, running


def test_the_others_go_on_and_later_launches_leave_the_mode_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = phases(RUN, 0)
    at = next(n for n, p in enumerate(first) if p.kind == "block" and p.round == 1 and p.mode == "single")
    starts, collector, said, running = launched(monkeypatch, tmp_path, {0: (at, "single")})
    assert [name for name, _ in starts] == ["launch0", "launch0-2", "launch1"]
    assert starts[0][1] == first
    assert [p.kind for p in starts[1][1]] == ["block", "block", "timeline", "timeline"]
    assert {p.round for p in starts[1][1] if p.kind == "block"} == {1}
    assert {p.mode for p in starts[1][1]} == {p.mode for p in starts[2][1]} == {"ddp", "wfbp"}
    assert collector.failed == {"single": "rank 1 on host 0 ran out of GPU memory (a smaller batch)"}
    assert collector.launch == 1
    assert running.plans == [PLAN]
    assert [line.partition(",")[0] for line in said.lines] == ["single has failed"]


@pytest.mark.parametrize(
    ("dies", "names", "left"),
    [
        ({0: (2, "single"), 1: (0, "wfbp")}, ["launch0", "launch0-2", "launch0-3", "launch1"], {"ddp"}),
        # no rank is started where every mode has failed
        ({0: (1, "ddp"), 1: (0, "single"), 2: (0, "wfbp")}, ["launch0", "launch0-2", "launch0-3"], set()),
    ],
)
def test_several_modes_may_fail_so(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dies: dict[int, tuple[int, str | None]],
    names: list[str],
    left: set[str],
) -> None:
    starts, collector, _, _ = launched(monkeypatch, tmp_path, dies)
    assert [name for name, _ in starts] == names
    assert set(collector.failed) == set(MODES) - left
    assert not left or {p.mode for p in starts[-1][1]} == left


@pytest.mark.parametrize("dies", [{0: (0, None)}, {0: (0, "ddp")}, {0: (1, "ddp"), 1: (0, "ddp")}])
def test_a_run_that_cannot_go_on_ends_with_the_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dies: dict[int, tuple[int, str | None]]
) -> None:
    if dies == {0: (0, "ddp")}:  # while profiling there is no plan to go on with
        monkeypatch.setattr(execute, "_plans", lambda directory, jobs: ())
    with pytest.raises(RankError, match="rank 1 on host 0 ran out of GPU memory"):
        launched(monkeypatch, tmp_path, dies)


def test_a_mode_whose_recorded_steps_run_out_of_memory_keeps_its_blocks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = phases(RUN, 0)
    at = next(n for n, p in enumerate(first) if p.kind == "timeline" and p.mode == "single")
    starts, collector, said, running = launched(monkeypatch, tmp_path, {0: (at, "single")})
    assert [name for name, _ in starts] == ["launch0", "launch1"]
    assert {p.mode for p in starts[1][1]} == set(MODES)
    assert (collector.failed, said.lines) == ({}, [])
    assert "single and of later modes are incomplete" in running.warnings[-1]
