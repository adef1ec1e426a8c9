"""A shell's limits are named by the sentence of whoever runs into one."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from xbench import cli
from xbench.errors import RunError, UsageError, XbenchError
from xbench.limits import last_line, limit_behind, require_files


def limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """The limits of this process: those named, and no others."""
    found = {getattr(resource, f"RLIMIT_{name}"): most for name, most in limits.items()}
    monkeypatch.setattr(
        resource, "getrlimit", lambda number: (found.get(number, resource.RLIM_INFINITY), resource.RLIM_INFINITY)
    )


@pytest.mark.parametrize(
    ("limits", "text", "hint"),
    [
        ({"AS": 1 << 30}, "ImportError: libtorch_cpu.so: failed to map segment from shared object",
         "this shell limits a process's memory: raise ulimit -v, which is 1048576"),
        ({"AS": 1 << 30}, "MemoryError: ", "this shell limits a process's memory: raise ulimit -v, which is 1048576"),
        ({"NOFILE": 48}, "rank 0 raised OSError: [Errno 24] Too many open files",
         "this shell limits a process's open files: raise ulimit -n, which is 48"),
        ({"NPROC": 90}, "RuntimeError: can't start new thread",
         "this shell limits a user's processes and threads: raise ulimit -u, which is 90"),
        ({"FSIZE": 20480}, "OSError: [Errno 27] File too large",
         "this shell limits a file's size: raise ulimit -f, which is 20"),
        ({"FSIZE": 20480}, "rank 0 was killed (SIGXFSZ)",
         "this shell limits a file's size: raise ulimit -f, which is 20"),
        ({"FSIZE": 20480}, "OSError: [Errno 28] No space left on device",
         "this shell limits a file's size: raise ulimit -f, which is 20"),
        ({}, "RuntimeError: can't start new thread", None),
        ({}, "OSError: [Errno 28] No space left on device", None),
        ({"AS": 1 << 30}, "ValueError: out of range", None),
    ],
)  # fmt: skip
def test_the_limit_that_an_error_points_to_is_named(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], text: str, hint: str | None
) -> None:
    limited(monkeypatch, **limits)
    assert limit_behind(text) == hint


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RunError("rank 0 raised OSError: Too many open files"), "rank 0 raised OSError: Too many open files"),
        (OSError(24, "Too many open files", "a/b"), "a/b: Too many open files"),
        (ImportError("a.so: too many open files"), "ImportError: a.so: too many open files"),
    ],
)
def test_the_command_line_gives_it_as_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, sentence: str
) -> None:
    def fails(**_: object) -> None:
        raise error

    limited(monkeypatch, NOFILE=48)
    monkeypatch.setattr("xbench.commands.report.report.callback", fails)
    assert cli.main(["report"]) == 1
    told = capsys.readouterr().err
    assert (
        told == f"error: {sentence}\n  hint: this shell limits a process's open files: raise ulimit -n, which is 48\n"
    )


def test_a_hint_of_its_own_comes_first() -> None:
    error = XbenchError("Too many open files", hint="close some")
    assert cli._explain(error)[2] == "close some"


REQUIRE = (
    "import resource; from xbench.limits import require_files; {}; require_files(64); print(*resource.getrlimit(7))"
)


@pytest.mark.parametrize(
    ("lowered", "told"),
    [("resource.setrlimit(7, (16, 512))", "64 512"), ("resource.setrlimit(7, (128, 512))", "128 512")],
)
def test_open_files_are_raised_to_what_a_run_needs_and_no_further(lowered: str, told: str) -> None:
    words = [sys.executable, "-c", REQUIRE.format(lowered)]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.strip() == told


def test_too_few_open_files_are_refused_before_anything_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda number: (16, 16))
    monkeypatch.setattr(resource, "setrlimit", refuses)
    with pytest.raises(UsageError, match="a process may open 16 files here, and a run needs 64") as caught:
        require_files()
    assert caught.value.hint == "ulimit -n 64"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("a\nb\n\n", "b"),
        ("", ""),
        ("a\x1b]52;c;x\x07b\u202e", "a ]52;c;x b"),
        ("x" * 1000, "x" * 300),
        ("error: no such file\n  hint: give another\n", "error: no such file"),
    ],
)
def test_the_last_line_is_plain_text(log: str, line: str) -> None:
    assert last_line(log) == line
