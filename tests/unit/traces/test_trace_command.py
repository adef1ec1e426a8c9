"""`xbench trace`: what it prints, keeps and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from kineto import gpu_events, write

from xbench.commands.trace import trace
from xbench.errors import SpecError, UsageError
from xbench.records import Profile, load
from xbench.report import FORMATS


@pytest.fixture(autouse=True)
def _results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XBENCH_RESULTS", str(tmp_path / "runs"))


def invoke(*words: str) -> str:
    result = CliRunner().invoke(trace, list(words), catch_exceptions=False, standalone_mode=False)
    return " ".join(result.output.split())


def test_the_answer_comes_first_and_the_record_is_kept(tmp_path: Path) -> None:
    file = write(tmp_path / "rank0.json", gpu_events(buckets=(1, 4)))
    told = invoke(str(file), "--json", str(tmp_path / "out.json"))
    assert told.startswith("The traced step takes 1.00 ms")
    assert "In 45.0 µs (4.5 %) of it a collective ran and nothing computed (exposed communication)." in told
    assert "The step waited for its gradients during 31.0 µs (3.1 %)." in told
    assert "No schedule can remove more than" in told
    assert "For the traced buckets the model's step is" in told
    assert "batch 0" not in told
    assert "0 cores" not in told
    [record] = (tmp_path / "runs").glob("*/record.json")
    kept = load(record)
    assert isinstance(kept, Profile)
    assert kept == load(tmp_path / "out.json")


def test_the_link_of_a_file_replaces_the_traced_one(tmp_path: Path) -> None:
    file = write(tmp_path / "rank0.json", gpu_events())
    link = tmp_path / "link.csv"
    link.write_text("bytes,time_us\n1000,20\n100000,120\n", encoding="utf-8")
    invoke(str(file), "--link", str(link), "--json", str(tmp_path / "o"))
    record = load(tmp_path / "o")
    assert isinstance(record, Profile)
    assert [point.nbytes for point in record.cost_model.points] == [1000, 100000]
    assert record.cost_model.world_size == 2


def test_a_folder_that_cannot_be_made_is_refused_before_the_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XBENCH_RESULTS", str(file / "runs"))
    with pytest.raises(SpecError, match=r"XBENCH_RESULTS: .* is not a folder"):
        invoke(str(file))


def test_a_traced_step_is_described_as_such_in_every_format(tmp_path: Path) -> None:
    file = write(tmp_path / "rank0.json", gpu_events(buckets=(1, 4)))
    invoke(str(file), "--json", str(tmp_path / "out.json"))
    record = load(tmp_path / "out.json")
    for name in ("markdown", "html"):
        text = FORMATS.load(name)(record)
        assert "without communication takes" not in text
        assert "instrumented" not in text
    assert "step without its wait for gradients" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["T", "--model", "resnet19"], "unknown workload 'resnet19'"),
        (["T", "--link", "x"], "--link: there is no file 'x'"),
        (["none.json"], "FILE: there is no file 'none.json'"),
        (["T", "T"], "are both of rank 0"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_kept(tmp_path: Path, words: list[str], why: str) -> None:
    file = str(write(tmp_path / "rank0.json", gpu_events()))
    given = [file if word == "T" else word for word in words]
    with pytest.raises((SpecError, UsageError)) as caught:
        invoke(*given)
    assert why in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "runs").exists()
