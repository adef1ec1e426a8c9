"""The command line from outside: exit codes, one sentence on stderr, and nothing heavy before it is needed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from outcome import Run

from xbench import __version__, cli
from xbench.commands import report
from xbench.commands.options import show_result, takes
from xbench.config import EffortOptions, ProfileEffort, RunConfig, WorkloadOptions
from xbench.errors import Interrupted, RankError, SpecError
from xbench.records import load, loads
from xbench.schedules import parse_modes
from xbench.spec import Effort, FabricSpec, WorkloadSpec

GOLDEN, FROZEN = (Path(__file__).parents[2] / name for name in ("golden", "frozen"))
RECORD = GOLDEN / "comparison-v1.json"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `xbench report` raise."""

    def set_up(error: BaseException) -> None:
        def fail(**_: object) -> None:
            raise error

        monkeypatch.setattr(report.report, "callback", fail)

    return set_up


def test_no_command_shows_the_help_and_is_a_usage_error(xbench: Run) -> None:
    code, out, err = xbench()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: xbench")


def test_version(xbench: Run) -> None:
    code, out, _ = xbench("--version")
    assert code == 0
    assert out == f"xbench {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (SpecError("the rate 'x' is no rate", hint="write 1gbit"), 2, "the rate 'x' is no rate\n  hint: write 1gbit"),
        (RankError("rank 1 on host 1 died"), 1, "rank 1 on host 1 died"),
        (Interrupted("interrupted in round 2"), 130, "interrupted in round 2"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (OSError("runs/ledger.jsonl: the disk took 5 of 80 bytes"), 1,
         "runs/ledger.jsonl: the disk took 5 of 80 bytes\n  hint: --debug shows where"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/record.json"), 1,
         "/x/record.json: No space left on device\n  hint: --debug shows where"),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 2,
         "/root/x: Permission denied\n  hint: --debug shows where"),
        (ModuleNotFoundError("No module named 'torch'", name="torch._C"), 1,
         "this needs the Python package 'torch', which is not installed\n  hint: pip install torch"),
        (ZeroDivisionError("division\nby zero"), 1,
         "this is a bug in xbench: ZeroDivisionError: division by zero\n"
         "  hint: run the same command with --debug and report the traceback"),
        (ModuleNotFoundError("No module named 'xbench.nothing'", name="xbench.nothing"), 1,
         "this is a bug in xbench: ModuleNotFoundError: No module named 'xbench.nothing'\n"
         "  hint: run the same command with --debug and report the traceback"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1,
         "this is a bug in xbench: RuntimeError: a pipe between processes broke\n"
         "  hint: run the same command with --debug and report the traceback"),
    ],
)  # fmt: skip
def test_every_exception_is_one_sentence_and_an_exit_code(
    xbench: Run,
    failing: Callable[[BaseException], None],
    error: BaseException,
    code: int,
    sentence: str,
) -> None:
    failing(error)
    got, out, err = xbench("report")
    assert (got, out) == (code, "")
    assert err.lstrip("\n") == f"error: {sentence}\n"  # click ends the line of a ^C first


@pytest.mark.parametrize("words", [["--debug", "report"], ["report", "--debug"]])
def test_debug_shows_the_traceback_from_both_places(
    xbench: Run, failing: Callable[[BaseException], None], words: list[str]
) -> None:
    failing(ZeroDivisionError("here"))
    code, _, err = xbench(*words)
    assert code == 1
    assert "raise error\nZeroDivisionError: here\n" in err


def test_debug_shows_a_rank_s_own_traceback(xbench: Run, failing: Callable[[BaseException], None]) -> None:
    failing(RankError("rank 1 on host 1 died", detail="Traceback of rank 1:\n  boom\n"))
    assert "boom" not in xbench("report")[2]
    assert xbench("report", "--debug")[2] == "error: rank 1 on host 1 died\nTraceback of rank 1:\n  boom\n"


def test_debug_works_when_the_words_do_not_parse(xbench: Run) -> None:
    code, _, err = xbench("list", "--nothing", "--debug")
    assert code == 2
    assert "Traceback" in err


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (3, 3), ("text", 0)])
def test_a_command_may_return_its_exit_code(
    xbench: Run, monkeypatch: pytest.MonkeyPatch, returned: object, code: int
) -> None:
    monkeypatch.setattr(report.report, "callback", lambda **_: returned)
    assert xbench("report")[0] == code


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    command = 'mkdir "$0/gone" && cd "$0/gone" && rmdir "$0/gone" && exec "$@"'
    words = [sys.executable, "-m", "xbench", "compare", "synthetic:layers=4,bytes=64k", "--fabric", "local:ranks=2"]
    environ = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run(
        ["bash", "-c", command, str(tmp_path), *words], env=environ, capture_output=True, text=True, timeout=60
    )
    told = "error: the folder that this was started in is gone\n  hint: cd to one that is there\n"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(told)


def test_report_prints_the_table_again(xbench: Run) -> None:
    code, out, err = xbench("report", str(RECORD))
    assert (code, err) == (0, "")
    shown = [line.rstrip() for line in out.splitlines()]
    named = (FROZEN / "comparison.txt").read_text(encoding="utf-8").replace("plan RECORD ", f"plan {RECORD} ")
    assert shown == named.splitlines()


def test_report_all_shows_every_layer(xbench: Run) -> None:
    record = load(GOLDEN / "profile-v1.json")
    last = record.layers[-1].name  # type: ignore[union-attr]
    assert last not in xbench("report", str(GOLDEN / "profile-v1.json"))[1]
    assert last in xbench("report", "--all", str(GOLDEN / "profile-v1.json"))[1]


def test_report_gives_stdout_to_json_alone(xbench: Run, tmp_path: Path) -> None:
    code, out, err = xbench("report", str(RECORD), "--json", "-")
    assert code == 0
    assert loads(out) == load(RECORD)
    assert "optimal is faster" in err
    assert xbench("report", str(RECORD), "--json", str(tmp_path / "copy.json"))[0] == 0
    assert load(tmp_path / "copy.json") == load(RECORD)


def test_report_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['torchvision'] = None; from xbench.cli import main; "
        f"sys.exit(main(['report', {str(RECORD)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "optimal is faster" in done.stdout


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Configurations that a command receives from its options; `xbench report` stands in for it."""
    got: list[RunConfig] = []

    @click.command(name="report")
    @takes(RunConfig, "modes", "workloads", "effort", "fabric", "device", "timeout_s", "compress")
    def command(config: RunConfig) -> None:
        got.append(config)

    monkeypatch.setattr(report, "report", command)
    return got


def test_options_that_are_not_given_leave_the_config_as_it_is(xbench: Run, options: list[RunConfig]) -> None:
    assert xbench("report")[0] == 0
    assert options == [RunConfig(workloads=(WorkloadSpec(name="resnet50"),))]


def test_options_stand_in_the_config(xbench: Run, options: list[RunConfig]) -> None:
    words = ["--batch-size", "4", "--seed", "7", "--rounds", "3", "--fabric", "local:ranks=2", "--timeout", "1.5min"]
    assert xbench("report", *words, "--compress", "bf16",
                  "--modes", "ddp,auto")[0] == 0  # fmt: skip
    assert options == [
        RunConfig(
            modes=parse_modes("ddp,auto"),
            workloads=(WorkloadSpec(name="resnet50", batch_size=4, seed=7),),
            effort=Effort(launches=4, rounds=3),
            fabric=FabricSpec(name="local", ranks=2),
            timeout_s=90.0,
            compress="bf16",
        )
    ]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_a_device_may_be_one_gpu(xbench: Run, options: list[RunConfig], device: str) -> None:
    assert xbench("report", "--device", device)[0] == 0
    assert [config.device for config in options] == [device]


@pytest.mark.parametrize(("torchruns_own", "says"), [({}, True), ({"TORCHELASTIC_RUN_ID": "1"}, False)])
def test_another_rank_is_silent_only_where_an_engine_started_it(
    torchruns_own: dict[str, str], says: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    for name, value in (place | torchruns_own).items():
        monkeypatch.setenv(name, value)
    assert cli.main(["compare", "resnet51"]) == 2
    assert ("unknown workload 'resnet51'" in capsys.readouterr().err) is says


@pytest.mark.parametrize(
    ("taken", "where"), [((None, None), 0), (("a.json", None), 0), (("-", None), 1), ((None, "-"), 1)]
)
def test_a_result_is_shown_on_stdout_unless_that_is_taken(
    capfd: pytest.CaptureFixture[str], taken: tuple[str | None, ...], where: int
) -> None:
    show_result(load(RECORD), *taken)
    shown = capfd.readouterr()
    assert shown[where].startswith("optimal is faster: 10.8 % less")
    assert shown[1 - where] == ""


def test_efforts() -> None:
    assert EffortOptions().read() == Effort(launches=4, rounds=4, steps=None)
    quick = EffortOptions(quick=True).read()
    assert (quick.launches, quick.rounds, quick.steps) == (1, 6, 4)
    own = EffortOptions(launches=3, quick=True).read()
    assert (own.launches, own.rounds, own.steps) == (3, 6, 4)
    assert [ProfileEffort(quick=quick).read().profile_steps for quick in (False, True)] == [16, 8]


def test_a_workload_s_text_takes_every_option_of_the_step() -> None:
    (typed,) = WorkloadOptions(names="resnet18", amp="bf16", clip=1.0, accumulate=2, seed=3).read()
    (written,) = WorkloadOptions(names="resnet18:amp=bf16,clip=1,accumulate=2,seed=3").read()
    assert typed == written


def test_completing_a_word_imports_no_torch() -> None:
    code = "import sys; from xbench.cli import main\ntry: main([])\nfinally: assert 'torch' not in sys.modules"
    typed = {"_XBENCH_COMPLETE": "bash_complete", "COMP_WORDS": "xbench compare --de", "COMP_CWORD": "2"}
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, **typed}, capture_output=True, text=True)
    assert "plain,--device" in ran.stdout.split()
    assert "AssertionError" not in ran.stderr
