"""`xbench report`: where formats go, what is refused before any work, and that every kind of file is one sentence."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import types
from functools import partial
from pathlib import Path

import pytest
from outcome import Outcome, Run

from xbench.commands.report import BESIDE, path_beside, resolve
from xbench.records import dump, load, save

GOLDEN = Path(__file__).parents[2] / "golden"
COMPARISON = GOLDEN / "comparison-v1.json"


@pytest.fixture
def run(xbench: Run) -> Run:
    """Run `xbench report` on words."""
    return partial(xbench, "report")


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A comparison called resnet18.json."""
    return save(load(COMPARISON), tmp_path / "resnet18.json")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each page was made of; the page itself is not built."""
    made: list[int] = []
    module = types.ModuleType("xbench.report.formats.html")
    module.page = lambda records, place: made.append(len(records)) or "<html></html>"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xbench.report.formats.html", module)
    return made


@pytest.mark.parametrize(
    ("results", "name"),
    [
        (["runs/one/record.json"], "runs/one/report.html"),
        (["runs/one"], "runs/one/report.html"),
        (["resnet18-1gbit.json"], "resnet18-1gbit.html"),
        (["a.b"], "a.b.html"),
        (["runs/one", "resnet18-1gbit.json"], "runs/one/compared.html"),
    ],
)
def test_a_format_without_a_file_goes_beside_the_record(tmp_path: Path, results: list[str], name: str) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    assert path_beside([tmp_path / part for part in results], "html") == tmp_path / name


def test_outputs_are_in_the_order_of_the_formats_and_leave_out_what_was_not_asked_for(tmp_path: Path) -> None:
    asked = {"html": BESIDE, "trace": BESIDE, "markdown": "-", "csv": None, "junit": BESIDE}
    beside = {name: str(tmp_path / f"x.{end}") for name, end in (("html", "html"), ("trace", "trace.json"))}
    found = resolve(asked, [tmp_path / "x.json"])
    assert list(found.items()) == [*beside.items(), ("markdown", "-"), ("junit", str(tmp_path / "x.junit.xml"))]


FORMATS_OF_ONE = ["trace", "markdown", "csv", "junit"]


@pytest.mark.parametrize("format", FORMATS_OF_ONE)
def test_a_format_goes_to_a_file_beside_or_to_stdout(run: Run, result: Path, tmp_path: Path, format: str) -> None:
    code, out, err = run(result, f"--{format}", "-")
    assert (code, err) == (0, "")
    code, nothing, err = run(result, f"--{format}")
    assert (code, nothing) == (0, "")
    target = err.splitlines()[0].removeprefix(f"{format}: ")
    assert Path(target).read_text(encoding="utf-8") == out
    code, nothing, err = run(result, f"--{format}", tmp_path / "named")
    assert (code, nothing) == (0, "")
    assert (tmp_path / "named").read_text(encoding="utf-8") == out
    assert "optimal" in out


@pytest.mark.parametrize("words", [["--markdown", "-"], ["--json", "-"]], ids=str)
def test_a_file_s_text_on_stdout_is_utf_8_whatever_the_terminal_is(words: list[str]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "xbench", "report", str(COMPARISON), *words]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    assert "3×128×128 images" in done.stdout.decode("utf-8")


def test_csv_writes_its_other_tables_beside_the_samples(run: Run, result: Path) -> None:
    code, out, err = run(result, "--csv", result.parent / "out.csv")
    assert (code, out) == (0, "")
    assert err == "".join(f"csv: {result.parent}/{name}\n" for name in ("out.csv", "out-steps.csv", "out-modes.csv"))


def test_csv_to_a_pipe_is_its_main_table_alone(run: Run, result: Path) -> None:
    pipe, read = result.parent / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert run(result, "--csv", pipe) == (0, "", f"csv: {pipe}\n")
    reader.join()
    assert read == [run(result, "--csv", "-")[1]]
    assert sorted(result.parent.iterdir()) == [pipe, result]


def test_all_formats_at_once(run: Run, result: Path, pages: list[int]) -> None:
    code, out, err = run(result, "--html", "--trace", "--markdown", "--csv", "--junit", "--json", result.parent / "c")
    assert (code, out) == (0, "")
    assert [line.partition(":")[0] for line in err.splitlines()] == ["html", "trace", "markdown", *["csv"] * 3, "junit"]
    assert load(result.parent / "c") == load(result)


def test_the_page_s_commands_name_the_record_that_was_shown(run: Run, tmp_path: Path) -> None:
    result = save(load(GOLDEN.parents[1] / "results" / "resnet18-b14-1gbit.json"), tmp_path / "mine.json")
    assert run(result, "--html")[0] == 0
    assert f"xbench plan {result} --emit ddp" in re.sub("</?span>", "", (tmp_path / "mine.html").read_text())


def test_html_of_several_results_is_one_page(run: Run, result: Path, pages: list[int]) -> None:
    other = save(load(COMPARISON), result.parent / "other.json")
    code, out, err = run(result, other, "--html")
    target = result.parent / "compared.html"
    assert (code, out, err) == (0, "", f"html: {target}\n")
    assert (pages, target.read_text()) == ([2], "<html></html>")


def test_several_results_are_shown_in_turn(run: Run, result: Path) -> None:
    code, out, err = run(result, GOLDEN / "profile-v1.json")
    assert (code, err) == (0, "")
    first, second = out.index("resnet18.json ─"), out.index("profile-v1.json ─")
    assert first < out.index("optimal is faster") < second < out.index("Layers in gradient-ready order")


def refused(outcome: Outcome, sentence: str, hint: str | None = None) -> None:
    assert outcome == (2, "", f"error: {sentence}\n" + (f"  hint: {hint}\n" if hint else ""))


def test_a_folder_that_may_not_be_written_is_refused(run: Run, result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(**options: object) -> None:  # root may write all
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("xbench.scratch.tempfile.mkstemp", forbidden)
    why = f"--html: '{result.parent / 'resnet18.html'}' cannot be written: permission denied"
    refused(run(result, "--html"), why, "--html FILE writes where you may")


@pytest.mark.parametrize("format", ["html", "trace", "markdown", "csv", "junit", "json"])
def test_a_file_of_others_is_never_written_over(run: Run, result: Path, pages: list[int], format: str) -> None:
    mine = result.parent / "mine"
    for text in ("import torch\n", '{"schemaVersion": 1, "traceEvents": []}'):
        mine.write_text(text)
        refused(
            run(result, f"--{format}", mine),
            f"--{format}: '{mine}' is a file that xbench did not write",
            "name another FILE, or replace it: --force",
        )
        assert mine.read_text() == text
    assert run(result, f"--{format}", mine, "--force")[0] == 0
    assert mine.read_text() != text


def test_a_file_of_others_beside_the_csv_is_never_written_over(run: Run, result: Path) -> None:
    mine = result.parent / "out-modes.csv"
    mine.write_text("a,b\n1,2\n")
    code, out, err = run(result, "--csv", result.parent / "out.csv")
    assert (code, out) == (2, "")
    assert f"'{mine}' is a file that xbench did not write" in err
    assert sorted(result.parent.iterdir()) == [mine, result]


def test_a_result_is_never_written_over(run: Run, result: Path, pages: list[int]) -> None:
    before = result.read_bytes()
    refused(
        run("--html", result, COMPARISON),
        f"--html: '{result}' is a result, and would be written over",
        "name the results first, and --html after them",
    )
    refused(
        run("--json", result),
        f"--json: '{result}' is a result, and would be written over",
        "name the result first, and --json FILE after it",
    )
    refused(
        run(result, "--json", result),
        f"--json: '{result}' is a result, and would be written over",
        "name the results first, and --json after them",
    )
    assert (result.read_bytes(), pages) == (before, [])


BROKEN = {
    "cut off": (lambda text: text[:5000], "is not whole JSON: it was cut off or is another kind of file"),
    "foreign": (lambda text: '{"a": 1}', "is not an xbench result"),
    "another kind": (
        lambda text: text.replace('"kind": "comparison"', '"kind": "novel"'),
        "is not a valid xbench result",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("words", [[], ["--markdown", "--csv", "--junit", "--trace"]], ids=str)
def test_a_bad_file_is_one_sentence_whatever_is_asked_for(
    run: Run, tmp_path: Path, case: str, words: list[str]
) -> None:
    spoil, sentence = BROKEN[case]
    text = dump(load(COMPARISON))
    spoilt = spoil(text)
    assert spoilt != text
    path = tmp_path / "spoilt.json"
    path.write_text(spoilt)
    code, out, err = run(path, *words)
    assert (code, out) == (2, "")
    assert f"error: '{path}' {sentence}" in err.splitlines()[0]
    assert len(err.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == [path]
