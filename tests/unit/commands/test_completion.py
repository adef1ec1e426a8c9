"""Shell completion: what each word completes to, by click's own classes and in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from xbench import cli
from xbench.commands.completion import Bash, Fish, LineComplete, Zsh
from xbench.errors import UsageError
from xbench.fabrics import FABRICS, emulated, parse_fabric
from xbench.records import load, save

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"


def completed(*words: str) -> list[str]:
    """What the last of the words is completed to."""
    found = ShellComplete(cli.cli, {}, "xbench", "_XBENCH_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found if item.type == "plain"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["re"], ["regress", "report"]),
        (["comp"], ["compare", "completion"]),
        (["compare", "resnet10"], ["resnet101"]),
        (["compare", "resnet18", "bert-b"], ["bert-base"]),
        (["profile", "gpt"], ["gpt2-small"]),
        (["profile", "tim"], ["timm/"]),
        (["compare", "--modes", "opt"], ["optimal"]),
        (["cluster", "compare", "--policies", "sr"], ["srtf", "srsf"]),
        (
            ["cluster", "compare", "--policies", "fifo,las:promote=8,fi"],
            ["fifo,las:promote=8,fifo-backfill", *(f"fifo,las:promote=8,fixed{gpus}" for gpus in ("", -1, -2, -4, -8))],
        ),
        (["compare", "--modes", "ddp,opt"], ["ddp,optimal"]),
        (["compare", "--modes", "ddp,d"], ["ddp,ddp-tuned", "ddp,dear", "ddp,ddp+compile"]),
        (["compare", "--modes", "ddp,horovod:fusion=32,op"], ["ddp,horovod:fusion=32,optimal"]),
        (["compare", "--modes", "horovod:fus"], []),
        (["compare", "--modes", "ddp,crossover:wf"], ["ddp,crossover:wfbp"]),
        (["compare", "--modes", "crossover:d"], ["crossover:ddp", "crossover:ddp-tuned"]),
        (["compare", "--modes", "crossover:p"], ["crossover:processes=1", "crossover:processes=2"]),
        (
            ["compare", "--modes", "ddp,crossover:processes="],
            ["ddp,crossover:processes=1", "ddp,crossover:processes=2"],
        ),
        (["compare", "--modes", "concurrent:p"], ["concurrent:priority"]),
        (["compare", "--modes", "concurrent:de"], ["concurrent:dear"]),
        (["compare", "--modes", "nothing:d"], []),
        (["compare", "--modes", "ddp,auto:s"], ["ddp,auto:shard=on"]),
        (["compare", "--modes=ddp,opt"], ["ddp,optimal"]),
        (["compare", "--reference", "sing"], ["single"]),
        (["plan", "x.json", "--mode", "mg"], ["mgwfbp"]),
        (["compare", "--fabric", "s"], ["shaped:"]),
        (["compare", "--fabric", "c"], ["cluster"]),
        (["compare", "--fabric", "shaped:"], ["shaped:hosts=", "shaped:rate=", "shaped:ranks="]),
        (["compare", "--fabric", "shaped:hosts=2,ra"], ["shaped:hosts=2,rate=", "shaped:hosts=2,ranks="]),
        (["compare", "--fabric", "shaped:rate=1g"], ["shaped:rate=1gbit"]),
        (["compare", "--fabric", "shaped:hosts=2,hosts"], []),
        (["compare", "--fabric", "shaped:hosts="], []),
        (["compare", "--fabric", "none:"], []),
        (["env", "--links", "emulated:la"], ["emulated:latency="]),
        (["list", "workloads", "resnet1"], ["resnet101", "resnet152", "resnet18"]),
        (["list", "modes", "resnet1"], []),
        (["report", "--mark"], ["--markdown"]),
        (["completion", "z"], ["zsh"]),
        (["nonsense", "x"], []),
    ],
)
def test_words(folder: Path, words: list[str], found: list[str]) -> None:
    assert completed(*words) == found


@pytest.mark.parametrize(("module", "typed", "found"), [("timm", "timm/inception_v4", ["timm/inception_v4"]),
                                                        ("transformers", "hf/b", ["hf/bert"])])  # fmt: skip
def test_models_of_a_library(folder: Path, module: str, typed: str, found: list[str]) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    assert completed("compare", typed) == found


def test_every_option_of_a_fabric_is_one_that_it_takes() -> None:
    assert FABRICS.entry("emulated").facts["keys"] == emulated.OPTIONS
    for entry in FABRICS:
        for key in entry.facts.get("keys", ()):
            assert not _is_unknown(f"{entry.name}:{key}=2")
            assert _is_unknown(f"{entry.name}:{key}x=2")


def _is_unknown(fabric: str) -> bool:
    """Whether an option is refused for its name; its value, or another's absence, is of no interest."""
    try:
        parse_fabric(fabric)
    except UsageError as error:
        return "unknown option" in str(error)
    return False


def test_names_come_with_their_summary() -> None:
    shell = ShellComplete(cli.cli, {}, "xbench", "_XBENCH_COMPLETE")
    (item,) = shell.get_completions(["compare", "--modes"], "ddp,optimal"[:7])
    assert (item.value, item.help) == ("ddp,optimal", "exact best buckets for a link that costs computation nothing")


def test_a_python_file_and_the_functions_in_it(folder: Path) -> None:
    (folder / "train.py").write_text("def make(): ...\ndef other(x): ...\ndef _own(): ...\nasync def later(): ...\n")
    (folder / "broken.py").write_text("def (")
    (folder / "models").mkdir()
    assert completed("compare", "tr") == ["transformer-tiny", "train.py:"]
    assert completed("compare", "mod") == ["models/"]
    assert completed("compare", "./") == ["./broken.py:", "./models/", "./train.py:"]
    assert completed("compare", "train.py:") == ["train.py:make"]
    assert completed("compare", "broken.py:") == completed("compare", "none.py:") == []


def test_results_are_runs_newest_first_and_json_files(folder: Path) -> None:
    record = load(GOLDEN / "profile-v1.json")
    for name in ("20260101-120000-a", "20260201-120000-b"):
        save(record, folder / "results" / "runs" / name / "record.json")
    (folder / "results" / "runs" / "unfinished").mkdir()
    save(record, folder / "results" / "kept.json")
    for name in ("README.md", "kept.trace.json"):
        (folder / "results" / name).write_text("")
    assert completed("report", "") == [
        "latest",
        "results/runs/20260201-120000-b",
        "results/runs/20260101-120000-a",
        "results/kept.json",
        "results/runs/",
    ]
    assert completed("report", "results/k") == ["results/kept.json"]
    assert completed("plan", "la") == ["latest"]
    assert completed("plan", "results/runs/") == [
        "results/runs/20260101-120000-a",
        "results/runs/20260201-120000-b",
        "results/runs/unfinished/",
    ]
    assert completed("report", "none/") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    out, err = capfd.readouterr()
    assert f"_XBENCH_COMPLETE={shell}_complete" in out
    assert err == ""


def test_without_a_name_it_is_for_the_shell_in_use(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert cli.main(["completion"]) == 0
    assert "fish_complete" in capfd.readouterr().out
    monkeypatch.setenv("SHELL", "/bin/dash")
    assert cli.main(["completion"]) == 2
    assert capfd.readouterr().err == (
        "error: $SHELL names 'dash', and completion is for bash, zsh and fish\n"
        "  hint: name the shell: xbench completion bash\n"
    )


@pytest.mark.parametrize(
    ("line", "words", "typed"),
    [
        ("xbench ", [], ""),
        ("xbench comp", [], "comp"),
        ("xbench compare --modes crossover:wf", ["compare", "--modes"], "crossover:wf"),
        ("/usr/bin/xbench report 'a b", ["report"], "a b"),
        ("FOO=1 xbench report ", ["report"], ""),
    ],
)
def test_bash_s_line_is_split_at_spaces_alone(
    monkeypatch: pytest.MonkeyPatch, line: str, words: list[str], typed: str
) -> None:
    monkeypatch.setenv("XBENCH_LINE", line)
    assert LineComplete(cli.cli, {}, "xbench", "_XBENCH_COMPLETE").get_completion_args() == (words, typed)


@pytest.mark.parametrize(
    ("line", "breaks", "replies"),
    [
        ("xbench compare --modes ddp,crossover:wf", ":=", ["plain\twfbp"]),
        ("xbench compare --modes ddp,crossover:wf", "", ["plain\tddp,crossover:wfbp"]),
        ("xbench compare --modes=ddp,opt", ":=", ["plain\tddp,optimal"]),
        ("xbench compare --modes=ddp,opt", "", ["plain\t--modes=ddp,optimal"]),
        ("xbench compare --fabric shaped:hosts=2,rat", ":=", ["plain\t2,rate="]),
        ("xbench compare --fabric sha", ":=", ["plain\tshaped:"]),
        ("xbench completion z", ":=", ["plain\tzsh"]),
    ],
)
def test_bash_gets_what_it_puts_in_place_of_its_own_last_word(
    monkeypatch: pytest.MonkeyPatch, line: str, breaks: str, replies: list[str]
) -> None:
    monkeypatch.setenv("XBENCH_LINE", line)
    monkeypatch.setenv("XBENCH_BREAKS", breaks)
    assert Bash(cli.cli, {}, "xbench", "_XBENCH_COMPLETE").complete().splitlines() == replies


@pytest.mark.parametrize("shell", [Zsh, Fish])
@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("xbench compare --modes ddp,crossover:wf", "plain\tddp,crossover:wfbp\tone collective a tensor"),
        ("xbench compare --modes=ddp,opt", "plain\t--modes=ddp,optimal\texact best buckets"),
        ("xbench compare --fabric shaped:hosts=2,rat", "plain\tshaped:hosts=2,rate="),
    ],
)
def test_other_shells_get_whole_words_and_what_they_are(
    monkeypatch: pytest.MonkeyPatch, shell: type[LineComplete], line: str, reply: str
) -> None:
    monkeypatch.setenv("XBENCH_LINE", line)
    (told,) = shell(cli.cli, {}, "xbench", "_XBENCH_COMPLETE").complete().splitlines()
    assert told.startswith(reply)


def test_a_press_of_tab_imports_no_torch(folder: Path) -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['torchvision'] = None; from xbench.cli import main; main([])"
    for line in (
        "xbench compare res",
        "xbench compare timm/inc",
        "xbench compare hf/b",
        "xbench compare --modes ddp,",
        "xbench compare --fabric s",
        "xbench report ",
    ):
        environment = {**os.environ, "_XBENCH_COMPLETE": "bash_complete", "XBENCH_LINE": line, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, check=True
        )
        assert done.stderr == b""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash_completes(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    source = capfd.readouterr().out
    program = folder / "xbench"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m xbench "$@"\n')
    program.chmod(0o755)
    line = "xbench compare --modes ddp,crossover:wf"
    script = (
        f"{source}\ncompopt() {{ :; }}\nCOMP_LINE='{line}'\nCOMP_POINT={len(line)}\n"
        "COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'\n"
        "_xbench_completion xbench\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, timeout=60,
                          check=True)  # fmt: skip
    assert (done.stdout, done.stderr) == ("wfbp\n", "")


def test_every_word_that_names_a_mode_a_fabric_or_a_result_is_completed() -> None:
    """A new option of these kinds that nobody thought of completing is seen here."""
    metavars = {"SPEC", "MODE", "A,B,...", "RESULT", "RESULT...", "[WORKLOAD]...", "[FABRIC]"}
    bare = []
    context = click.Context(cli.cli, info_name="xbench")
    for name in cli.COMMANDS:
        command = cli.cli.get_command(context, name)
        assert command is not None
        commands = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        for one in commands:
            bare += [f"{name} {parameter.name}" for parameter in one.params
                     if parameter.metavar in metavars and parameter._custom_shell_complete is None]  # fmt: skip
    assert bare == []
