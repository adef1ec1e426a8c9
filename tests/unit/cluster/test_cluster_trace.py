from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_cases import pollux_folder, rigid, write
from golden_file import GOLDEN

from xbench.cluster.jobs import Job, RigidSpeed
from xbench.cluster.speeds import TableSpeed, scaled_speed
from xbench.cluster.traces import Trace, load_trace
from xbench.cluster.traces.plain import load_plain
from xbench.cluster.traces.reading import number, parse_table
from xbench.errors import SpecError
from xbench.records import load

HEADER = "name,arrival_s,gpus,duration_s"


def test_a_trace_knows_its_sums() -> None:
    trace = Trace("t", tuple(rigid((5.0, 2, 3600.0), (9.0, 4, 900.0))))
    assert trace.gpu_hours == 3.0
    assert trace.span_s == 4.0
    first = trace.first(1)
    assert [job.name for job in first.jobs] == ["a"]
    assert first.notes == ("the first 1 of 2 jobs",)
    assert trace.first(2) is trace
    with pytest.raises(SpecError, match="first 0 jobs"):
        trace.first(0)
    with pytest.raises(SpecError, match="has no jobs"):
        Trace("t", ())


def test_a_plain_trace_of_durations(tmp_path: Path) -> None:
    header = HEADER + ",least,most,exposed,step_s,forward_share,memory_bytes"
    path = write(tmp_path / "my.csv", header, "a,0,2,60,2,8,0.25,2,0.5,1000", "b,7.5,1,30,,,,,,")
    trace = load_plain(path)
    assert trace.name == "my.csv"
    facts = {"exposed": 0.25, "step_s": 2.0, "forward_share": 0.5, "memory_bytes": 1000.0}
    assert trace.jobs == (
        Job("a", 0.0, 2, 60.0, RigidSpeed(2), 2, 8, facts),
        Job("b", 7.5, 1, 30.0, RigidSpeed(1)),
    )
    path = write(tmp_path / "bad.csv", header, "a,0,2,60,,,1.5,,,", "b,0,2,60,,,,,,-1", "c,0,2,60,,,,,,")
    assert [row.reason for row in load_plain(path, "skip").skipped] == [
        "exposed = 1.5 is not a share: it must be from 0 to below 1",
        "memory_bytes = -1 is below zero",
    ]
    assert (trace.skipped, trace.notes) == ((), ())


def test_a_plain_trace_of_speeds(tmp_path: Path) -> None:
    path = write(
        tmp_path / "my.csv",
        "name,arrival_s,gpus,work,speed_4,speed_1,application", "a,0,2,600,30,10,resnet50", "b,1,1,50,,10,",
    )  # fmt: skip
    a, b = load_plain(path).jobs
    assert a.speed == TableSpeed.of({1: 10.0, 4: 30.0})
    assert a.duration_s == pytest.approx(600 / (10 * 3**0.5))
    assert a.facts == {"application": "resnet50"}
    assert (b.speed, b.duration_s) == (TableSpeed.of({1: 10.0}), 5.0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("c,1,1", "3 cells where the header has 4"),
        ("", "an empty row"),
        (",1,1,5", "name is empty"),
        ("a,1,1,5", "there is already a job 'a'"),
        ("c,-1,1,5", "arrival_s = -1.0 is not a time"),
        ("c,0.5,1,5", "arrival_s 0.5 comes after 1"),
        ("c,x,1,5", "arrival_s 'x' is not a number"),
        ("c,1,0,5", "gpus '0' is less than one"),
        ("c,1,1.5,5", "gpus '1.5' is not a whole number"),
        ("c,1,1,0", "duration_s '0' is not above zero"),
        ("c,1,1,-5", "duration_s '-5' is not above zero"),
        ("c,1,1,inf", "duration_s 'inf' is not finite"),
        ("c,1,1,nan", "duration_s 'nan' is not finite"),
    ],
)
def test_a_malformed_row_is_refused_or_skipped_and_listed(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path / "my.csv", HEADER, "a,1,1,5", row, "b,2,1,5", "b2,nonsense,1,5")
    with pytest.raises(SpecError) as raised:
        load_trace(str(path))
    assert str(raised.value).startswith(f"{path}: row 3: ")
    assert reason in str(raised.value)
    assert str(raised.value).endswith("(2 bad rows in all)")
    assert raised.value.hint == "rows=skip leaves bad rows out and lists them"
    trace = load_trace(f"{path},rows=skip")
    assert [job.name for job in trace.jobs] == ["a", "b"]
    assert [(bad.file, bad.row) for bad in trace.skipped] == [(str(path), 3), (str(path), 5)]
    assert reason in trace.skipped[0].reason


@pytest.mark.parametrize(
    ("rows", "hint"), [(["a,1,1,0"], "1 bad row skipped"), (["a,1,1,0", "b"], "2 bad rows skipped"), ([], "a row")]
)
def test_a_trace_of_bad_rows_alone_is_none(tmp_path: Path, rows: list[str], hint: str) -> None:
    path = write(tmp_path / "my.csv", HEADER, *rows)
    with pytest.raises(SpecError, match="has no jobs") as caught:
        load_trace(f"{path},rows=skip")
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("name,arrival_s,duration_s", "no column 'gpus'"),
        ("name,arrival_s,gpus,duration", "unknown column 'duration'"),
        ("name,arrival_s,gpus,duration_s,gpus", "two columns 'gpus'"),
        ("name,arrival_s,gpus", "none of duration_s, work and loss_target"),
        ("name,arrival_s,gpus,work,loss_target,speed_1", "both work and loss_target"),
        ("name,arrival_s,gpus,loss_target,loss_beta0,speed_1", "loss_target and no loss_beta1"),
        ("name,arrival_s,gpus,work,loss_beta0,speed_1", "a loss curve and no loss_target"),
        ("name,arrival_s,gpus,work,scale,speed_1", "both scale and speeds"),
        ("name,arrival_s,gpus,work,mode,speed_1", "mode and no scale"),
        ("name,arrival_s,gpus,duration_s,scale,mode", "duration_s and speeds"),
        ("name,arrival_s,gpus,duration_s,work,speed_1", "both duration_s and work"),
        ("name,arrival_s,gpus,work", "work and no speed_1"),
        ("name,arrival_s,gpus,duration_s,speed_1", "duration_s and speeds"),
        ("name,arrival_s,gpus,work,speed_one", "a column 'speed_one'"),
        ("name,arrival_s,gpus,work,speed_0", "a column 'speed_0'"),
        ("", "is empty"),
    ],
)
def test_a_header_that_is_wrong_is_refused_whatever_is_skipped(tmp_path: Path, header: str, said: str) -> None:
    path = write(tmp_path / "my.csv", header, *(["a,1,1,1,1,1"] if header else []))
    with pytest.raises(SpecError, match=said):
        load_trace(f"{path},rows=skip")


LOSSES = "name,arrival_s,gpus,loss_target,loss_beta0,loss_beta1,loss_beta2,speed_1,speed_2"


def test_a_job_may_be_done_when_its_loss_is_low_enough(tmp_path: Path) -> None:
    """1/(0.01·k + 0.5) + 0.2 = 0.7 after 150 steps; a loss that is never reached or was there makes no job."""
    rows = ("a,0,1,0.1,0.01,0.5,0.2,3,5", "b,0,1,3,0.01,0.5,0.2,3,5", "c,0,1,1,x,0.5,0.2,3,5",
            "d,0,4,0.7,0.01,0.5,0.2,3,5", "e,0,1,0.7,0.01,0.5,0.2,3,5")  # fmt: skip
    trace = load_plain(write(tmp_path / "my.csv", LOSSES, *rows), "skip")
    assert [row.reason for row in trace.skipped] == [
        "a loss of 0.1 is never reached: the curve tends to 0.2",
        "its loss is 3 before the first step",
        "loss_beta0 'x' is not a number",
        "its speed is unknown on the 4 GPUs that it asks for",
    ]
    (job,) = trace.jobs
    assert (job.work, job.duration_s) == (pytest.approx(150), pytest.approx(50))


def test_a_job_may_be_as_fast_as_a_scaling_record_says(tmp_path: Path) -> None:
    record = GOLDEN / "scaling-v1.json"
    (tmp_path / "scale.json").write_text(record.read_text())
    header = "name,arrival_s,gpus,work,scale,mode"
    path = write(tmp_path / "my.csv", header, "a,0,1,9000,scale.json,optimal", "b,1,1,9000,scale.json,optimal")
    first, second = load_plain(path).jobs
    assert first.speed == scaled_speed(load(record), "optimal")
    assert first.speed is second.speed
    rows = (
        "a,0,1,9,none.json,optimal",
        "b,0,1,9,,optimal",
        "c,0,1,9,scale.json,optimall",
        "d,0,1,9,scale.json,optimal",
    )
    trace = load_plain(write(tmp_path / "bad.csv", header, *rows), "skip")
    assert [row.row for row in trace.skipped] == [2, 3, 4]
    assert trace.skipped[1].reason == "scale is empty"
    assert "mode 'optimall'" in trace.skipped[2].reason


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.csv.gz").write_bytes(b"no gzip")
    for text, said in (
        ("missing.csv", "there is no file"),
        ("bytes.csv", "is not text in UTF-8"),
        ("broken.csv.gz", "cannot be unpacked"),
        (".", "cannot be read"),
    ):
        with pytest.raises(SpecError, match=said):
            load_trace(str(tmp_path / text))


def packed_tar(text: bytes) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo("trace-data/cluster_job_log")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return data.getvalue()


JOBS = b'[{"status": "Pass", "jobid": "application_1_0001"}]'
GOOD = f"{HEADER}\na,1,1,5\n".encode()


@pytest.mark.parametrize("kind", ["philly:", "itp:", ""])
@pytest.mark.parametrize("packed", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (JOBS, "JSON"),
        (b'\xef\xbb\xbf\n{"jobs": 3}', "JSON"),
        (b"<!DOCTYPE html><html></html>", "HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"PK\x03\x04\x14\x00", "a zip archive"),
        (b"PAR1\x15\x04\x00\x00", "binary data"),
        (packed_tar(JOBS), "a tar archive"),
    ],
)
def test_another_format_is_named(
    tmp_path: Path, kind: str, packed: Callable[[bytes], bytes], content: bytes, what: str
) -> None:
    path = tmp_path / "log"
    path.write_bytes(packed(content))
    if what == "a tar archive" and kind == "itp:":
        what = "holds no .csv file"
    with pytest.raises(SpecError, match=what) as caught:
        load_trace(f"{kind}{path}")
    assert "\\x00" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("packed", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_csv_is_read_whatever_its_name(tmp_path: Path, packed: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "my.csv"
    path.write_bytes(packed(GOOD))
    assert [job.name for job in load_plain(path).jobs] == ["a"]


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("phily:x", "unknown trace 'phily'", "did you mean 'philly'? (xbench list traces has them all)"),
        ("plain:", "names no file", "write plain:PATH"),
        ("plain", "names no file", "write plain:PATH"),
        ("plain:rows=skip", "an option where its file should be", "write plain:PATH,rows=skip"),
        ("itp:x,clustr=03", "unknown option 'clustr'", "did you mean 'cluster'?"),
        ("itp:x,path=y", "unknown option 'path'", "write itp:PATH"),
        ("itp:x,rows=drop", "unknown way to treat rows 'drop'", None),
        ("itp:x,rows=skip,rows=skip", "'rows' stands twice", "write rows= once"),
        ("itp:x,first=0", "first=0 is out of range", "try first=1"),
        ("x.csv,cluster=03", "unknown option 'cluster'", "it takes rows, first"),
        ("x.csv,", "ends with ','", "write plain:PATH,rows=skip"),
        ("pollux:x,workload=one", "workload=one is not a whole number", "1 to 1000000000"),
        ("generated:job=3", "unknown option 'job'", "did you mean 'jobs'?"),
        ("generated:rows=skip", "unknown option 'rows'", None),
        ("generated:load=much", "load=much is not a number", None),
        ("generated:load=nan", "load=nan is not above zero", None),
        ("generated:jobs=0", "jobs=0 is out of range", "try jobs=1"),
        ("generated:arrivals=poison", "unknown arrivals 'poison'", "did you mean 'poisson'?"),
        ("generated:sizes=parreto", "unknown sizes 'parreto'", "did you mean 'pareto'?"),
        ("generated:burst=4", "burst= is for arrivals=bursty", None),
        ("generated:arrivals=bursty,burst=0.5", "burst=0.5 is below 1", "16 is bursty"),
    ],
)
def test_a_trace_that_is_named_wrongly(text: str, said: str, hint: str | None) -> None:
    with pytest.raises(SpecError) as raised:
        load_trace(text)
    assert said in str(raised.value)
    assert hint is None or raised.value.hint == hint


def test_every_kind_is_found_by_its_name(tmp_path: Path) -> None:
    itp = write(tmp_path / "cluster07.csv", "job_id,submission_time,duration,num_gpu", "x,9,5,1", "y,7,5,1")
    assert [job.name for job in load_trace(f"itp:{itp},cluster=7").jobs] == ["y", "x"]
    assert len(load_trace(f"pollux:{pollux_folder(tmp_path)},workload=1,first=1").jobs) == 1
    plain = write(tmp_path / "my.csv", HEADER, "a,1,1,5")
    assert load_trace(f"plain:{plain}") == load_trace(str(plain))
    assert len(load_trace("generated:jobs=7,load=0.5,gpus=8,arrivals=bursty,burst=4,seed=3").jobs) == 7
    assert load_trace("generated") == load_trace("generated:jobs=1000,load=0.8,gpus=64,arrivals=poisson,seed=0")


def test_only_blank_lines_at_the_end_are_no_rows(tmp_path: Path) -> None:
    assert len(load_plain(write(tmp_path / "end.csv", HEADER, "a,1,1,5", "", "")).jobs) == 1
    path = write(tmp_path / "amid.csv", HEADER, "", "a,1,1,5", "", "", "b,1,1,5", "c,1,1,0")
    bad = [(row.row, row.reason) for row in load_plain(path, "skip").skipped]
    assert bad == [(row, "an empty row") for row in (2, 4, 5)] + [(7, "duration_s '0' is not above zero")]


def test_cells_may_be_quoted_and_lines_may_end_as_windows_does(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_bytes(b'\xef\xbb\xbfname,arrival_s,gpus,duration_s\r\n"a, or b",0, 2 ,5\r\n')
    assert [(job.name, job.gpus) for job in load_plain(path).jobs] == [("a, or b", 2)]


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("name,arrivals_s,gpus", "'arrivals_s' is there"),
        ("name,gpus", "it needs name, arrival_s, and has name, gpus"),
    ],
)
def test_a_missing_column_comes_with_one_like_it_or_with_all(header: str, hint: str) -> None:
    with pytest.raises(SpecError, match="my has no column 'arrival_s'") as raised:
        parse_table(f"{header}\n", "my", ("name", "arrival_s"))
    assert raised.value.hint == hint


def test_a_number_goes_up_to_a_million_billions() -> None:
    assert [number(cell, "work") for cell in ("1e15", "-1e15")] == [1e15, -1e15]
    for cell in ("1.001e15", "-1.001e15"):
        with pytest.raises(ValueError, match=r"is beyond 1e\+15"):
            number(cell, "work")
