"""The terminal report against golden texts, and the rules that hold for every record.

`XBENCH_UPDATE_GOLDEN=1 pytest tests/unit/report` rewrites the golden files: read the difference before you commit it.
"""

from __future__ import annotations

import io
import itertools

import pytest
import sample_predictions as predicted
import sample_records as made
from golden_file import golden
from rich.console import Console
from rich.text import Text
from sample_kinds import RESNET18

from xbench.records import Contention, ContentionPoint, Plan
from xbench.report.console import HarmlessConsole, fact, filled_table, indented, make_console, say
from xbench.report.formats.terminal import render, show
from xbench.runs.progress import Progress

CASES = [name for name in RESNET18 if name not in ("convergence", "tuned")]


@pytest.mark.parametrize(
    ("name", "width"),
    [("comparison", 60), ("comparison-paired", 60), *itertools.product(["profile", "scaling"], [100, 60])],
)
def test_golden_text(name: str, width: int) -> None:
    golden(f"{name}-{width}.txt", render(RESNET18[name](), width=width))


@pytest.mark.parametrize("width", [40, 60, 100, 200])
@pytest.mark.parametrize("name", CASES)
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut_off(name: str, width: int) -> None:
    """But for a command to copy, which stays in one piece."""
    text = render(RESNET18[name](), width=width)
    assert max(len(line) for line in text.splitlines() if not line.startswith("  xbench ")) <= width
    assert width == 40 or "…" not in text


@pytest.mark.parametrize(
    "line",
    [
        'expect_change = "parameters 298762 -> 364554, tensors 12 -> 14, grad bytes 1195048 -> 1458216"',
        "xbench plan results/resnet18.json --emit ddp --mode ddp-tuned",
        "xbench compare models/train.py:make --modes ddp,auto --fabric shaped:hosts=2,rate=1gbit",
        "pip install 'xbench-schedules[timm,hf] @ git+https://example.org/xbench'",
        "git config --global --add safe.directory /home/somebody/project",
        "python -m pip install --force-reinstall torch torchvision -q",
        "sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0",
        'xbench.attach(model, optimizer, schedule="mgwfbp", wait="step")',
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_to_paste_is_never_folded(line: str, terminal: bool) -> None:
    console = HarmlessConsole(file=io.StringIO(), width=40, force_terminal=terminal, color_system=None, markup=False)
    sentence = f"If that is what was meant, write {line} ({line}), and nothing else at all: then it passes."
    say(console, sentence)
    fact(console, "warning", sentence)
    indented(console, f"    {sentence}")
    console.print(sentence)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count(line) == 8
    assert max(map(len, text.replace(line, "").splitlines())) <= 40
    Progress(console, launches=1).say(sentence)
    assert console.file.getvalue().count(line) == 10  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CASES)
def test_colour_adds_nothing_to_the_words(name: str) -> None:
    plain = Console(file=io.StringIO(), width=100, no_color=True, highlight=False, markup=False)
    coloured = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor", highlight=False)
    for console in (plain, coloured):
        show(RESNET18[name](), console)
    assert "\x1b[" not in plain.file.getvalue()
    assert "\x1b[" in coloured.file.getvalue()


def test_a_run_that_ended_with_failed_modes_says_first_that_it_is_incomplete_and_why() -> None:
    whole = made.troubled().model_copy(update={"complete": True, "error": None})
    first = " ".join(render(whole, width=60).split("\n\n")[0].split())
    assert first.startswith("INCOMPLETE: 2 of 4 modes have no time. mgwfbp FAILED the parity check against ddp ")
    assert first.endswith("ranks differ from each other. The report names 1 other reason.")
    modes = {name: whole.modes[name] for name in ("ddp", "optimal", "single")}
    one = whole.model_copy(update={"modes": modes})
    assert render(one, width=200).startswith(
        "INCOMPLETE: 1 of 3 modes has no time. single FAILED: rank 1 on host 1 died: killed by SIGKILL.\n"
    )


@pytest.mark.parametrize("width", [60, 100])
def test_the_reference_is_named_in_the_answer_and_beside_the_ratios(width: int) -> None:
    modes = [made.mode_result("wfbp", 0.6, (1.0, 1.0, 1.0), "reference"),
             made.mode_result("single", 0.7, (1.17, 1.1, 1.2), "slower")]  # fmt: skip
    text = " ".join(render(made.comparison(modes, reference="wfbp"), width=width).split())
    assert "wfbp, the reference, is fastest" in text
    assert ("ratio to the reference, wfbp" if width == 100 else "ratio to wfbp") in text


def test_the_gap_is_to_the_best_schedule_and_not_to_the_control() -> None:
    record = made.profile()
    compute = Plan(mode="compute", buckets=[], bucket_bytes=[], predicted_step_s=0.4, predicted_exposed_s=0.0)
    text = render(record.model_copy(update={"plans": {"compute": compute, **record.plans}}))
    rows = {row.split()[0]: row for row in text.splitlines() if row.startswith(" ") and row.strip()}
    assert "%" not in rows["compute"]
    assert "+0.0 %" in rows["optimal"]
    assert "+49.2 %" in rows["single"]


def test_overhead_beyond_the_goal_is_pointed_out() -> None:
    record = made.profile()
    slow = record.model_copy(update={"step": made.STEP.model_copy(update={"overhead_ratio": 0.034})})
    assert "more than the goal of 2 %" not in render(record, width=200)
    assert "more than the goal of 2 %" in render(slow, width=200)


def test_names_with_brackets_are_not_taken_for_markup() -> None:
    workload = made.WORKLOAD.model_copy(update={"title": "[red]mine[/red]"})
    assert "[red]mine[/red]" in render(made.profile().model_copy(update={"workload": workload}))


def test_records_with_nothing_measured_still_render() -> None:
    bare = made.comparison([], complete=False, samples=[], cost_model=None, bounds=None, jobs=[], warnings=[])
    assert "No mode was measured" in render(bare)
    empty = made.profile().model_copy(
        update={"layers": [], "step": None, "cost_model": None, "plans": {}, "bounds": None, "complete": False}
    )
    assert "INCOMPLETE: it ended before everything was measured." in render(empty)


def test_contention_is_told_where_it_was_measured() -> None:
    point = ContentionPoint(nbytes=1024, in_flight=1, alone_s=1e-3, loaded_s=2e-3, compute_slowdown=1.25)
    contention = Contention(launch_s=1e-5, points=[point])
    told = "as long while the device computes, and computation 1.25 times as long beside one"
    profile, comparison = made.profile(), made.comparison([])
    jobs = [comparison.jobs[0].model_copy(update={"contention": contention})]
    assert told in render(profile.model_copy(update={"contention": contention}), width=300)
    assert told in render(comparison.model_copy(update={"jobs": jobs}), width=300)
    assert "contention" not in render(profile, width=300)
    nothing = contention.model_copy(update={"points": [point.model_copy(update={"alone_s": 0.0})]})
    assert "contention" not in render(profile.model_copy(update={"contention": nothing}), width=300)


@pytest.mark.parametrize(
    ("bound", "told", "left_out"),
    [
        (True, "launch-bound, so predictions add launches and hooks to it", "calls for single buckets\n"),
        (
            False,
            "not launch-bound, so predictions take launches and hooks as free",
            "gradients travel have part of it\n",
        ),
        (None, None, "copies into buckets, and host time of launches, and optimizer calls"),
    ],
)
def test_launches_of_a_gpu_and_what_its_predictions_leave_out_are_told(
    bound: bool | None, told: str | None, left_out: str
) -> None:
    times = {"host_step_s": 9.5e-3, "device_step_s": 0.01} if bound is not None else {}
    contention = Contention(launch_s=4e-5, hook_s=1e-5, launch_bound=bound, points=[], **times)
    profile, comparison = made.profile(), made.comparison([])
    on_gpu = {"spec": profile.spec.model_copy(update={"device": "cuda"}), "contention": contention}
    jobs = [comparison.jobs[0].model_copy(update={"contention": contention})]
    both = {"spec": comparison.spec.model_copy(update={"device": "cuda"}), "jobs": jobs}
    for text in (
        render(profile.model_copy(update=on_gpu), width=500),
        render(comparison.model_copy(update=both), width=500),
    ):
        assert left_out in text
        measured = (
            "launching a collective takes the host 40.0 µs, a gradient's hook 10.0 µs; a step takes the host 9.50 ms"
        )
        assert (f"{measured} and the device 10.0 ms: {told}\n" in text) == (told is not None)
        assert ("launches  " in text) == (told is not None)
    # not of a CPU, and not where nothing is predicted
    for other in (profile, profile.model_copy(update={**on_gpu, "cost_model": None})):
        assert "left out" not in render(other, width=500)


@pytest.mark.parametrize(
    ("width", "step_s", "shown"),
    [(60, 1e-300, "█"), (60, 1e12, "█"), (100, 1e-300, "█"), (100, 1e9, "█"), (100, 1e12, "ddp")],
)
def test_bars_are_drawn_of_any_times(width: int, step_s: float, shown: str) -> None:
    mode = made.mode_result("ddp", step_s, (1.0, 1.0, 1.0), "reference")
    assert shown in render(made.comparison([mode]), width=width)


def test_off_a_terminal_the_console_is_plain_and_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    console = make_console()
    assert (console.width, console.color_system, console.stderr) == (100, None, True)
    monkeypatch.setenv("COLUMNS", "72")
    assert make_console().width == 72


@pytest.mark.parametrize(
    ("clocks", "told"),
    [
        ({}, "The first rank waited 200 µs for the last (median over sizes)."),
        ({"clock_offset_s": [0.0, 0.0], "clock_error_s": 0.0}, "for the last (median over sizes)."),
        (
            {"clock_offset_s": [0.0, 0.25, -1.5], "clock_error_s": 3e-5},
            "for the last (median over sizes); the ranks' clocks differ by up to 1.50 s, known to within ±30.0 µs.",
        ),
    ],
)
def test_a_profile_tells_waits_and_clocks_that_differ(clocks: dict[str, object], told: str) -> None:
    record = made.profile()
    assert record.cost_model is not None
    cost = record.cost_model.model_copy(update=clocks)
    text = render(record.model_copy(update={"cost_model": cost}), width=300, verbose=True)
    assert told in text
    assert ("clocks differ" in text) == (clocks.get("clock_error_s", 0.0) != 0.0)


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_end_in_blanks_on_a_terminal_alone_and_never_between_a_number_and_its_unit(terminal: bool) -> None:
    console = HarmlessConsole(file=io.StringIO(), width=26, force_terminal=terminal, color_system=None, _environ={})
    console.print(Text("it takes 1.123 [10.0 ms, 12.0 ms] and saves 18.5 % of 2 s"))
    rows = [["ddp", "44.6 MiB"], ["a-longer-name", "x"]]
    console.print(filled_table("", ["mode", "note"], rows, ["mode", "note"]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.rstrip() for line in lines] == [
        "it takes 1.123",
        "[10.0 ms, 12.0 ms] and",
        "saves 18.5 % of 2 s",
        "",
        " mode           note",
        " ────────────────────────",
        " ddp            44.6 MiB",
        " a-longer-name  x",
        "",
    ]
    assert any(line != line.rstrip() for line in lines) is terminal


def test_a_profile_fits_on_a_screen_and_v_shows_the_rest() -> None:
    notes = ["TCP congestion control: reno", "gradients travel as bf16"]
    profile = made.profile()
    record = profile.model_copy(
        update={
            "fabric": profile.fabric.model_copy(update={"notes": notes}),
            "spec": profile.spec.model_copy(update={"host_tuning": True}),
        }
    )
    brief, whole = render(record), render(record, verbose=True)
    assert len(brief.splitlines()) <= 55
    for text in (
        "Cost of one all_reduce",
        "The first rank waited",
        "ranks keep freed memory",
        "TCP congestion control: reno",
    ):
        assert text not in brief
        assert text in whole
    assert "gradients travel as bf16" in brief
    assert brief.endswith("-v         shows the cost of each collective and how threads and memory were set up too\n")
    assert "-v " not in whole


def test_a_scaling_shows_two_tables_and_four_findings_and_v_shows_the_rest() -> None:
    record = predicted.scaling().model_copy(update={"findings": [f"Finding {number}." for number in range(1, 7)]})
    brief, whole = render(record), render(record, verbose=True)
    assert [line for line in brief.splitlines() if line.endswith("(simulated)")] == [
        "Step (simulated)",
        "Scaling efficiency (simulated)",
    ]
    assert sum(line.endswith("(simulated)") for line in whole.splitlines()) == 6
    assert ("Finding 4." in brief, "Finding 5." in brief, "Finding 6." in whole) == (True, False, True)
    told = " ".join(brief[brief.index("\n-v ") :].split())
    assert told == (
        "-v shows 2 more findings, and samples/s, exposed communication, buckets and the all-reduce by size too"
    )
