"""Standard streams that are closed or lose their reader: nothing ends, and no file takes a stream's descriptor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[1] / "golden" / "comparison-v1.json"

OPENED = """
import os, subprocess, sys
from xbench.__main__ import secure
secure()
kept = open(sys.argv[1], "w")
print("to nobody"); print("to nobody", file=sys.stderr); sys.stdin.read()
sys.stdout.flush()
child = subprocess.run([sys.executable, "-c", "import os; [os.fstat(n) for n in range(3)]"])
kept.write(f"{kept.fileno()} {child.returncode}")
"""

WRITES = """
import sys
from xbench.__main__ import secure
secure()
sys.stdin.readline()
for number in range(3):
    print("x" * 100_000, file=sys.{stream}, flush=True)
    sys.{stream}.flush()
open(sys.argv[1], "w").write("went on")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_descriptor_is_taken_by_no_file_and_children_have_it_open(tmp_path: Path, closed: str) -> None:
    told = tmp_path / "told"
    words = ["bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-c", OPENED, str(told)]
    done = subprocess.run(words, timeout=60, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0, done.stderr
    descriptor, child = map(int, told.read_text().split())
    assert (descriptor > 2, child) == (True, 0)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_does_not_end_the_writer(tmp_path: Path, stream: str, unbuffered: str) -> None:
    told = tmp_path / "told"
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES.format(stream=stream), str(told)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        **{stream: write},
    )
    os.close(write)
    os.close(read)
    process.communicate(b"\n", timeout=60)
    assert (process.returncode, told.read_text()) == (0, "went on")


def test_a_full_disk_behind_stderr_ends_nothing_and_behind_stdout_is_told() -> None:
    with open("/dev/full", "wb") as full:
        words = [sys.executable, "-m", "xbench", "report", str(RECORD)]
        assert subprocess.run(words, stdout=subprocess.DEVNULL, stderr=full, timeout=60).returncode == 0
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output: No space left on device\n")


@pytest.mark.parametrize(("words", "code"), [(["report", str(RECORD)], 0), (["report", "nowhere.json"], 2)])
def test_the_exit_code_is_the_command_s_where_nobody_can_read_a_word(words: list[str], code: int) -> None:
    command = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-m", "xbench", *words]
    assert subprocess.run(command, timeout=60).returncode == code
