from __future__ import annotations

import gzip
import io
import math
import tarfile
from pathlib import Path

import pytest
from cluster_cases import pollux_folder, write
from public_files import public_file

from xbench.cluster.traces import load_trace
from xbench.cluster.traces.microsoft import load_itp, load_philly
from xbench.cluster.traces.pollux import Application, Measured, load_application, load_pollux, steps_of
from xbench.errors import SpecError, XbenchError

ITP = "job_id,submission_time,duration,num_gpu"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster"


def _archive(path: Path, **files: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{name}.csv")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_itp_joins_its_clusters_from_their_first_job_on(tmp_path: Path) -> None:
    path = _archive(
        tmp_path / "t.tar.gz", cluster02=f"{ITP}\nb,120,60,8\n", cluster01=f"{ITP}\na,100,3600,2\nc,130,5,1"
    )
    trace = load_itp(path)
    assert [(job.name, job.arrival_s, job.gpus, job.duration_s) for job in trace.jobs] == [
        ("a", 0.0, 2, 3600.0),
        ("b", 20.0, 8, 60.0),
        ("c", 30.0, 1, 5.0),
    ]
    assert all(job.rigid for job in trace.jobs)
    alone = load_itp(path, "cluster02")
    assert (alone.name, alone.jobs[0].arrival_s) == ("itp:cluster02", 0.0)
    with pytest.raises(SpecError, match="unknown cluster '11'"):
        load_itp(path, "11")


FILES = {
    "itp": ("cluster01.csv", f"{ITP}\na,1,5,1\n"),
    "philly": ("philly.csv", f"{PHILLY}\n2017-10-09 07:01:55,66.0,1,66.0,ab\n"),
    "pollux": ("workloads/workload-1.csv", "name,time,application,num_replicas,batch_size\nyolov3-0,5,yolov3,4,64\n"),
}
"""A file of each kind with one good row."""


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        ("itp", "a,1,5,1", "there is already a job 'a'"),
        ("itp", ",1,5,1", "job_id is empty"),
        ("itp", "b,1,5,0", "num_gpu '0' is less than one"),
        ("itp", "b,1,0,1", "duration '0' is not above zero"),
        ("itp", "b,soon,5,1", "submission_time 'soon' is not a number"),
        ("itp", "b,1,5", "3 cells where the header has 4"),
        ("philly", "yesterday,66.0,1,66.0,ab", "timestamp 'yesterday' is not a date and time"),
        ("philly", "2017-10-09 07:01:55+00:00,66.0,1,66.0,ab",
         "timestamp '2017-10-09 07:01:55+00:00' has a time zone, and the others have none"),
        ("philly", "2017-10-09 07:01:55,66.0,2,66.0,ab", "gpu_time '66.0' is not duration '66.0' times num_gpus '2'"),
        ("philly", "2017-10-09 07:01:55,-1,1,-1,ab", "duration '-1' is not above zero"),
        ("philly", "2017-10-09 07:01:55,66.0,0,0,ab", "num_gpus '0' is less than one"),
        ("pollux", "a,1,yolo,4,64", "application 'yolo' was not measured, 'yolov3' was"),
        ("pollux", "a,1,yolov3,5,64", "yolov3 of batch 64 was not measured on 5 packed GPUs"),
        ("pollux", "a,1,yolov3,4,3", "yolov3 was never measured with a batch as small as 3"),
        ("pollux", "yolov3-0,1,yolov3,4,64", "there is already a job 'yolov3-0'"),
        ("pollux", "a,-1,yolov3,4,64", "job 'a': arrival_s = -1.0 is not a time since the trace began"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_refused_or_skipped(tmp_path: Path, kind: str, row: str, reason: str) -> None:
    name, text = FILES[kind]
    path = write(pollux_folder(tmp_path) / name, text + row)
    named = f"{kind}:{tmp_path if kind == 'pollux' else path}"
    with pytest.raises(SpecError) as raised:
        load_trace(named)
    assert str(raised.value) == f"{path}: row 3: {reason}"
    trace = load_trace(f"{named},rows=skip")
    assert (len(trace.jobs), [bad.row for bad in trace.skipped]) == (1, [3])


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    path = _archive(tmp_path / "t.tar.gz", cluster01="\n".join([ITP, *(f"j{n},{n * n},{n},1" for n in range(1, 500))]))
    (tmp_path / "short.tar.gz").write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(SpecError, match="cannot be unpacked"):
        load_itp(tmp_path / "short.tar.gz")
    (tmp_path / "shorter.tar.gz").write_bytes(path.read_bytes()[:40])
    with pytest.raises(SpecError, match="cannot be unpacked"):
        load_itp(tmp_path / "shorter.tar.gz")
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz") as archive:
        archive.add(path, "t.tar.gz")
    with pytest.raises(SpecError, match=r"holds no \.csv file"):
        load_itp(tmp_path / "empty.tar.gz")


def test_itp_whole() -> None:
    path = public_file("itp/raw-traces.tar.gz")
    trace = load_trace(f"itp:{path}")
    assert len(trace.jobs) == 69_351
    assert round(trace.gpu_hours, 1) == 1_632_719.7
    assert trace.skipped == ()
    assert trace.jobs[0].arrival_s == 0
    third = {job.name: job.service_s for job in load_trace(f"itp:{path},cluster=03").jobs}
    assert third == {job.name: job.service_s for job in trace.jobs if job.name in third}


@pytest.mark.parametrize(("name", "said"), [("itp", "raw-traces.tar.gz"), ("philly:cluster=ab", "traces/philly.csv")])
def test_a_published_trace_is_fetched_whole_or_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, said: str
) -> None:
    """A file of that name with other bytes is not taken for the published one, and nothing answers here."""
    monkeypatch.setenv("XBENCH_TRACES", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(XbenchError, match=f"{said} cannot be fetched") as raised:
        load_trace(name)
    assert str(tmp_path) in str(raised.value.hint)
    assert list(tmp_path.rglob("*.csv")) == []


def test_philly_counts_from_its_first_job(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv.gz"
    rows = [PHILLY, "2017-10-09 07:01:55,66.0,2,132.0,ab", "2017-10-08 07:01:50,10.0,1,10.0,cd", ""]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    trace = load_philly(path)
    assert [(job.name, job.arrival_s, job.gpus, job.duration_s) for job in trace.jobs] == [
        ("cd-3", 0.0, 1, 10.0),
        ("ab-2", 86405.0, 2, 66.0),
    ]
    assert [job.arrival_s for job in load_philly(path, "ab").jobs] == [0.0]
    with pytest.raises(SpecError, match="unknown cluster 'abc'") as raised:
        load_philly(path, "abc")
    assert raised.value.hint == "did you mean 'ab'?"


def test_philly_s_gpu_time_may_be_rounded_to_seconds(tmp_path: Path) -> None:
    """66.4 s on 3 GPUs are 199.2 GPU seconds; a second more or less is rounding."""
    rows = [f"2017-10-09 07:01:55,66.4,3,{gpu_s},ab" for gpu_s in ("199.2", "199", "200", "198", "201")]
    trace = load_philly(write(tmp_path / "philly.csv", PHILLY, *rows), rows="skip")
    assert [job.name for job in trace.jobs] == ["ab-2", "ab-3", "ab-4"]
    assert [bad.row for bad in trace.skipped] == [5, 6]


def test_philly_whole() -> None:
    trace = load_trace(f"philly:{public_file('philly/philly.csv.gz')}")
    assert len(trace.jobs) == 82_247
    assert round(trace.gpu_hours, 1) == 978_078.5
    assert trace.skipped == ()


def test_pollux_measures_packed_gpus_and_accumulates_what_does_not_fit(tmp_path: Path) -> None:
    application = load_application(pollux_folder(tmp_path), "yolov3")
    assert sorted(application.by_gpus) == [1, 2, 4, 8, 16]  # '41' and 16 GPUs on 6 hosts are not packed
    assert application.step(16, 4) == pytest.approx((4.4, 0.4))
    assert application.step(24, 4) == pytest.approx((6.4, 0.4))  # between 4 and 8 samples
    assert application.step(64, 4) == pytest.approx((8.4 + 8, 0.4))  # 16 samples, and 8 at once: two times 8
    assert application.step(8, 4) is None  # 2 samples were never measured
    assert application.step(64, 3) is None
    assert application.speed(64)(4) == pytest.approx(64 / 16.4)
    assert application.speed(8).points == ((1, pytest.approx(8 / 8.1)), (2, pytest.approx(8 / 4.2)))
    with pytest.raises(SpecError, match="never measured with a batch as small as 3"):
        application.speed(3)


def test_one_gpu_accumulates_at_least_once_above_the_initial_batch() -> None:
    times = Measured((128.0, 256.0, 512.0), (2.0, 3.0, 5.0), (0.5, 0.5, 0.5))
    application = Application("ncf", {1: times, 2: times})
    assert application.step(256, 1) == pytest.approx((3.0, 0.5))
    assert application.step(512, 1) == pytest.approx((3.0 + 2.5, 0.5))  # two times 256
    assert application.step(512, 2) == pytest.approx((3.0, 0.5))


def test_pollux_s_jobs_take_what_their_steps_imply(tmp_path: Path) -> None:
    trace = load_pollux(pollux_folder(tmp_path))
    four, two = trace.jobs
    assert (four.name, four.arrival_s, four.gpus) == ("yolov3-0", 5.0, 4)
    assert four.work == 14577 * 64
    assert four.duration_s == pytest.approx(14577 * 16.4)
    assert two.duration_s == pytest.approx(14577 * (8.2 + 3 * 8))  # 32 samples: four times 8
    assert four.facts == {"application": "yolov3", "batch_size": 64.0, "exposed": pytest.approx(0.4 / 16.4)}
    assert trace.notes == ()


def test_work_that_is_not_known_is_refused() -> None:
    assert steps_of("bert", 384) == 480
    with pytest.raises(SpecError, match="work of bert at batch 12 is not known") as raised:
        steps_of("bert", 12)
    assert raised.value.hint == "bert's is known at batch 384"
    with pytest.raises(SpecError, match="work of gpt at batch 12 is not known"):
        steps_of("gpt", 12)


@pytest.mark.parametrize("number", range(1, 7))
def test_pollux_whole(number: int) -> None:
    folder = public_file("pollux/workloads").parent
    trace = load_trace(f"pollux:{folder},workload={number}")
    assert len(trace.jobs) == 160
    assert trace.span_s < 8 * 3600
    assert trace.notes == ()
    for job in trace.jobs:
        assert not job.rigid
        assert job.duration_s < 48 * 3600, job.name
        assert 0 < job.facts["exposed"] < 1  # type: ignore[operator]
        assert all(math.isfinite(job.speed(gpus)) for gpus in job.speed.sizes)
