"""jobs.toml: what it says, and one sentence for everything that is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from xbench.cluster.live.jobs_file import JobEntry, check_fit, load_jobs
from xbench.cluster.live.state import check_known
from xbench.cluster.speeds import RingSpeed
from xbench.errors import SpecError
from xbench.records import Scaling, load, save

ROOT = Path(__file__).parents[3]
JOB = '[[job]]\nname = "a"\nworkload = "resnet18"\nsteps = 10\nbatch_size = 8\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    assert [job.name for job in load_jobs(written(tmp_path, "\ufeff" + JOB)).jobs] == ["a"]


def test_the_example() -> None:
    file = load_jobs(ROOT / "examples" / "jobs.toml")
    assert file.slots == 2
    assert [(job.name, job.steps, job.arrival_s) for job in file.jobs] == [
        ("long", 600, 0.0), ("short", 200, 8.0), ("late", 300, 20.0)
    ]  # fmt: skip
    assert all(job.speed is not None and job.speed(2) == 33.0 for job in file.jobs)
    check_fit(file.jobs, 2)
    for policy in ("doubling", "srtf", "fifo", "exploratory"):
        check_known(policy, file.jobs)


def test_what_is_left_out_is_as_in_a_live_job(tmp_path: Path) -> None:
    file = load_jobs(written(tmp_path, JOB))
    assert file.slots is None
    job = file.jobs[0]
    assert (job.arrival_s, job.gpus, job.least, job.most, job.seed, job.checkpoint_steps) == (0, 1, 1, None, 0, 50)
    assert file.jobs[0].speed is None
    assert JobEntry.model_validate_json(file.jobs[0].model_dump_json()) == file.jobs[0]


def test_speeds_from_a_ring(tmp_path: Path) -> None:
    text = JOB + "ring = { theta = [0.1, 0.01, 0.0, 0.0], model_bytes = 4.0e6 }\n"
    speed = load_jobs(written(tmp_path, text)).jobs[0].speed
    assert speed == RingSpeed((0.1, 0.01, 0.0, 0.0), 8, 4.0e6)


def test_speeds_from_a_scaling_record_are_in_steps(tmp_path: Path) -> None:
    record = load(ROOT / "tests" / "golden" / "scaling-v1.json")
    assert isinstance(record, Scaling)
    save(record, tmp_path / "scale.json")
    job = load_jobs(written(tmp_path, JOB + f'scale = "scale.json"\nmode = "{record.modes[0]}"\n')).jobs[0]
    point = next(point for point in record.points if point.mode == record.modes[0])
    assert job.speed(point.workers) == pytest.approx(point.samples_per_s / 8)
    assert job.speed(1) == pytest.approx(record.workload.batch_size / record.compute_s / 8)
    assert JobEntry.model_validate_json(job.model_dump_json()).speed == job.speed


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("job = 3", "there is no [[job]]", "write [[job]]"),
        ("", "there is no [[job]]", "write [[job]]"),
        ("[[jobs]]\n", "unknown key 'jobs' in the file", "did you mean 'job'?"),
        ("[cluster]\nslot = 2\n" + JOB, "unknown key 'slot' in [cluster]", "did you mean 'slots'?"),
        ("[cluster]\nslots = 0\n" + JOB, "[cluster]: slots = 0: it has to be greater than or equal to 1", None),
        ("cluster = 3\n" + JOB, "cluster is not a table", "[cluster]"),
        (JOB + "step = 3\n", "unknown key 'step' in job 'a'", "did you mean 'steps'?"),
        (JOB.replace("steps = 10", "steps = 0"), "job 'a': steps = 0: it has to be greater", None),
        (JOB.replace("steps = 10", 'steps = "10"'), "job 'a': steps = \"10\": it has to be a valid integer", None),
        (JOB.replace("steps = 10", "steps = true"), "job 'a': steps = True: it has to be a valid integer", None),
        (JOB.replace("steps = 10\n", ""), "job 'a' has no 'steps'", "add steps = …"),
        (JOB.replace('name = "a"\n', ""), "[[job]] number 1 has no 'name'", "add name = …"),
        (JOB.replace('"a"', '"a/b"'), "name = 'a/b' cannot name a folder", None),
        (JOB + "arrival_s = -1\n", "job 'a': arrival_s = -1: it has to be greater", None),
        (JOB + "arrival_s = nan\n", "job 'a': arrival_s = nan", None),
        (JOB + JOB, "two jobs are named 'a'", 'name one "a-2"'),
        (JOB + "arrival_s = 5\n" + JOB.replace('"a"', '"b"'), "job 'b': arrival_s = 0 is before that of 'a'", "sort"),
        (JOB + "least = 2\nmost = 1\n", "job 'a': most = 1 is less than least = 2", "write most = 2"),
        (JOB + "gpus = 9\n", "gpus = 9 workers cannot share batch_size = 8", "write gpus = 8"),
        (JOB.replace("resnet18", "resnet19"), "job 'a': workload: unknown workload 'resnet19'", "resnet18"),
        (JOB.replace("resnet18", "resnet18:batch-size=4"), "has a batch size of its own", "batch_size"),
        (JOB + "speeds = { 1 = 0.0 }\n", "job 'a': speeds: a table of speeds has 0.0 at 1 GPUs", None),
        (JOB + "speeds = { one = 1.0 }\n", "'one' is not a number of workers", "speeds = { 1 = 10.0"),
        (JOB + "ring = { theta = [1.0], model_bytes = 1.0 }\n", "a ring has four θ, and this one 1", "theta ="),
        (JOB + "ring = { thetas = [1.0] }\n", "unknown key 'thetas' in ring of job 'a'", "did you mean 'theta'?"),
        (JOB + 'scale = "none.json"\n', "job 'a': scale: there is no result file", None),
        (JOB + 'mode = "ddp"\n', "mode selects a mode of scale, and there is no scale", "add scale"),
        (JOB + 'scale = "x.json"\nspeeds = { 1 = 1.0 }\n', "speeds and scale both define its speed", "leave one"),
        ("[[job]\n", "is not TOML", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(text: str, told: str, hint: str | None, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_jobs(written(tmp_path, text))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hint is None or hint in (caught.value.hint or "")


def test_no_file() -> None:
    with pytest.raises(SpecError, match=r"there is no file of jobs 'nowhere\.toml'"):
        load_jobs(Path("nowhere.toml"))


def test_a_job_larger_than_the_cluster(tmp_path: Path) -> None:
    jobs = load_jobs(written(tmp_path, JOB + "gpus = 3\n")).jobs
    check_fit(jobs, 3)
    with pytest.raises(SpecError, match="job 'a': gpus = 3, and the cluster has 2 slots"):
        check_fit(jobs, 2)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("doubling", "needs to know speeds on several numbers of workers, and no speed is known of job 'a'"),
        ("srtf", "policy 'srtf' needs to know how long a job takes, and no speed is known of job 'a'"),
        ("gittins:learn=on", "needs to know how long a job takes"),
    ],
)
def test_policies_that_need_to_know(policy: str, told: str, tmp_path: Path) -> None:
    jobs = load_jobs(written(tmp_path, JOB)).jobs
    with pytest.raises(SpecError) as caught:
        check_known(policy, jobs)
    assert told in str(caught.value)
    for other in ("fifo", "las", "exploratory"):
        check_known(other, jobs)


def test_speeds_that_leave_out_what_the_job_asks_for(tmp_path: Path) -> None:
    jobs = load_jobs(written(tmp_path, JOB + "gpus = 4\nspeeds = { 1 = 1.0, 2 = 2.0 }\n")).jobs
    with pytest.raises(SpecError, match="its speeds lack the gpus = 4"):
        check_known("fifo", jobs)
