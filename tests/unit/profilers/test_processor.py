"""Use of processors from counters of the kernel that a test writes, and from this kernel's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from xbench.profilers.processor import ProcessorUse, ProcessorWatch, ThreadTimes, between, read


def counters(folder: Path, **tasks: str) -> Path:
    for name, text in tasks.items():
        (folder / name).mkdir()
        (folder / name / "schedstat").write_text(text)
    return folder


def test_times_of_each_thread_are_read_in_seconds(tmp_path: Path) -> None:
    found = read(counters(tmp_path, t1="1500000000 250000000 7\n", t2="0 0 0\n"))
    assert found == {"t1": ThreadTimes(1.5, 0.25), "t2": ThreadTimes(0.0, 0.0)}


def test_threads_that_ended_and_kernels_that_do_not_count_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    assert read(counters(tmp_path, odd="not a number\n")) == {}
    assert read(tmp_path / "nothing") == {}
    assert ProcessorWatch(tmp_path / "nothing").use() == ProcessorUse(0.0, 0.0)


def test_the_thread_that_waited_longest_counts_and_all_together_want_processors() -> None:
    before = {"a": ThreadTimes(1.0, 1.0), "b": ThreadTimes(0.0, 0.0), "ended": ThreadTimes(9.0, 9.0)}
    after = {"a": ThreadTimes(2.0, 3.0), "b": ThreadTimes(3.0, 0.5), "new": ThreadTimes(9.0, 9.0)}
    assert between(before, after, 4.0) == ProcessorUse(waited_share=0.5, wanted=(1 + 2 + 3 + 0.5) / 4)
    assert between(before, after, 0.0) == ProcessorUse(0.0, 0.0)


def test_this_process_has_run() -> None:
    found = read()
    if not any(one.ran_s for one in found.values()):
        pytest.skip("this kernel does not count")
    watch = ProcessorWatch()
    assert sum(range(1_000_000)) > 0
    assert watch.use().wanted > 0
