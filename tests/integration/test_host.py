"""A real run whose reader leaves, or that has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from shares import drawn
from typed_commands import comparison, ran, results_in

COMPARE = [sys.executable, "-m", "xbench", "compare", "synthetic:layers=4,bytes=64k", "--quick", "--rounds", "1"]
ALONE = ["--fabric", "local:ranks=1", "--modes", "compute,wfbp"]
PATIENCE_S = 120


@pytest.mark.usefixtures("on_one_core")
def test_a_run_that_nobody_can_hear_is_complete_and_ends_with_0(tmp_path: Path) -> None:
    words = [*COMPARE, *ALONE]
    done = ran(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *words], PATIENCE_S, results=tmp_path)
    assert done.returncode == 0
    record = comparison(tmp_path)
    assert record.complete
    assert {sample.mode for sample in record.samples} == {"compute", "wfbp"}


@pytest.mark.usefixtures("on_one_core")
@pytest.mark.parametrize("stream", drawn("reader", ["stdout", "stderr"]))
def test_a_reader_that_leaves_in_the_middle_changes_nothing(tmp_path: Path, stream: str) -> None:
    words = [*COMPARE, *ALONE, "--json", "-"]
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    process = subprocess.Popen(words, env=results_in(tmp_path), **{stream: subprocess.PIPE, other: subprocess.DEVNULL})
    pipe = getattr(process, stream)
    if stream == "stderr":
        pipe.readline()
    pipe.close()
    assert process.wait(PATIENCE_S) == 0
    assert comparison(tmp_path).complete
