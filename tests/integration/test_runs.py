"""Whole runs of the command line on real ranks: what a user types, and what must be in the record afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xbench.fabrics import links, shaped
from xbench.records import Comparison, Profile, load

pytestmark = pytest.mark.integration
NETNS = pytest.mark.skipif(shaped.obstacle() is not None, reason=f"shaped links do not work here: {shaped.obstacle()}")
TINY = "transformer-tiny"
SHORT = ("--launches", "1", "--rounds", "4", "--steps", "3")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "xbench", *arguments]


def xbench(*arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    return ran(command(*arguments), timeout_s)


def ran(arguments: list[str], timeout_s: float = 240, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    # An environment of its own: readline, which pytest imports, puts COLUMNS into the one that children get otherwise.
    return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=dict(os.environ))


def only_record(folder: Path) -> Profile | Comparison:
    (path,) = folder.glob("*/record.json")
    return load(path)


def left_behind() -> str:
    """Processes of ours and namespaces that are still there."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout if shutil_ip() else ""
    names = [line for line in listed.splitlines() if line.startswith("xb")]
    ranks = subprocess.run(["pgrep", "-af", "xbench.runtime.worker|crossover.arbiter"], capture_output=True, text=True)
    return "\n".join([*names, ranks.stdout.strip()]).strip()


def shutil_ip() -> bool:
    return any((Path(folder) / "ip").exists() for folder in ("/usr/sbin", "/sbin", "/usr/bin"))


# --- one job ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def single_jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, str, Path]:
    folder = tmp_path_factory.mktemp("single")
    done = xbench(
        "compare", TINY, "--fabric", "local:ranks=2", "--launches", "2", "--rounds", "4", "--steps", "3",
        "--modes", "compute,ddp,ddp-tuned,single,wfbp,mgwfbp,optimal,ddp@b",
        "--output", str(folder), "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    kept = only_record(folder)
    assert isinstance(kept, Comparison)
    assert json.loads(done.stdout) == json.loads(kept.model_dump_json())  # stdout carries the JSON alone
    return kept, done.stderr, folder


def test_every_single_job_mode_runs_and_trains_what_ddp_trains(single_jobs: tuple[Comparison, str, Path]) -> None:
    record, _, _ = single_jobs
    assert record.complete
    for name, mode in record.modes.items():
        assert mode.status == "ok", (name, mode.error)
        assert mode.label == "real"
        assert mode.blocks == 8
        if name == "compute":
            assert mode.parity is None
        else:
            assert mode.parity is not None
            assert mode.parity.ok
            assert mode.parity.bitwise_across_ranks
    assert record.reference == "ddp"
    assert record.modes["ddp"].ratio is not None
    assert record.modes["ddp"].ratio.verdict == "reference"


def test_every_block_of_every_mode_is_there_raw(single_jobs: tuple[Comparison, str, Path]) -> None:
    record, _, _ = single_jobs
    seen = {(s.launch, s.round, s.mode) for s in record.samples}
    assert seen == {(launch, round_, mode) for launch in (0, 1) for round_ in range(4) for mode in record.modes}
    assert all(len(s.steps_s) == 3 and len(s.warmup_s) == 2 for s in record.samples)


def test_plans_cover_the_model_and_the_bounds_are_ordered(single_jobs: tuple[Comparison, str, Path]) -> None:
    record, _, _ = single_jobs
    names = {tensor.name for layer in record.jobs[0].layers for tensor in layer.tensors}
    for mode in ("single", "wfbp", "mgwfbp", "optimal"):
        plan = record.modes[mode].plan
        assert plan is not None
        assert {name for bucket in plan.buckets for name in bucket} == names
    assert record.bounds is not None
    assert record.bounds.compute_s <= record.bounds.backward_overlap_bound_s
    assert record.cost_model is not None
    assert record.cost_model.points[-1].nbytes >= record.jobs[0].workload.grad_bytes


def test_progress_says_mode_round_and_time_left(single_jobs: tuple[Comparison, str, Path]) -> None:
    _, stderr, _ = single_jobs
    assert re.search(r"launch 1 of 2: gate optimal", stderr)
    assert re.search(r"launch 2 of 2: round 4 \S+, median step so far .*, about \d+ (s|min) left", stderr)


def test_the_report_is_made_again_without_torch(single_jobs: tuple[Comparison, str, Path]) -> None:
    _, _, folder = single_jobs
    (run,) = folder.iterdir()
    blocked = "import sys; sys.modules['torch'] = None; from xbench.cli import main; sys.exit(main())"
    done = ran([sys.executable, "-c", blocked, "report", str(run)])
    assert done.returncode == 0, done.stderr
    assert "ddp-tuned" in done.stdout


def test_a_plan_of_the_record_attaches_to_the_users_model(single_jobs: tuple[Comparison, str, Path]) -> None:
    import torch

    import xbench as library
    from xbench.spec import WorkloadSpec
    from xbench.workloads import resolve
    from xbench.workloads.build import build

    record, _, folder = single_jobs
    workload = build(resolve(WorkloadSpec(name=TINY), "cpu"), torch.device("cpu"))
    path = next(folder.glob("*/record.json"))
    with library.attach(workload.model, workload.optimizer, schedule="optimal", plan=path) as handle:
        workload.forward_loss(handle.model).backward()  # type: ignore[no-untyped-call]
        workload.optimizer.step()
        plan = record.modes["optimal"].plan
        assert plan is not None
        assert handle.buckets == plan.buckets


def test_a_world_of_one_compares_hooks_with_the_bare_loop(tmp_path: Path) -> None:
    done = xbench(
        "compare",
        TINY,
        "--fabric",
        "local:ranks=1",
        *SHORT,
        "--modes",
        "compute,wfbp,optimal",
        "--output",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_record(tmp_path)
    assert isinstance(record, Comparison)
    assert list(record.modes) == ["compute", "wfbp"]
    assert "no link is used: optimal" in done.stderr
    assert record.modes["wfbp"].ratio is not None
    assert record.reference == "compute"


def test_inside_torchrun_the_ranks_are_torchruns(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "xbench"]
    arguments = ["compare", TINY, *SHORT, "--modes", "ddp,optimal", "--output", str(tmp_path)]
    done = ran([*torchrun, *arguments])
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_record(tmp_path)
    assert isinstance(record, Comparison)
    assert record.fabric.name == "cluster"
    assert record.fabric.world_size == 2
    assert record.modes["optimal"].blocks == 4
    assert done.stderr.count("Time per sample") == 1  # one rank speaks
    assert done.stderr.count("record: ") == 1
    assert "leaked" not in done.stderr  # what libraries say when an interpreter ends is no result


def test_a_users_own_factory(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import torch\nfrom torch import nn\n\n\ndef make():\n"
        "    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))\n"
        "    model[0].extra = nn.Linear(4, 4)  # never used\n"
        "    return model, (torch.randn(6, 8), torch.randint(0, 3, (6,))), nn.CrossEntropyLoss()\n"
    )
    modes = "ddp,single,wfbp,mgwfbp,optimal"
    done = xbench("compare", f"{script}:make", "--fabric", "local:ranks=2", *SHORT, "--modes", modes,
                  "--output", str(tmp_path / "o"))  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_record(tmp_path / "o")
    assert isinstance(record, Comparison)
    assert all(mode.parity is not None and mode.parity.ok for mode in record.modes.values())
    assert record.samples[0].samples_per_step == 12


# --- shaped links and two jobs ---------------------------------------------------------------------------------------


@NETNS
@pytest.mark.netns
def test_two_different_jobs_share_shaped_hosts(tmp_path: Path) -> None:
    modes = "concurrent,crossover,crossover:wfbp,ddp-tuned"
    done = xbench(
        "compare", TINY, "synthetic:layers=12,bytes=32k", "--fabric", "shaped:hosts=2,rate=200mbit", *SHORT,
        "--modes", modes, "--output", str(tmp_path), "--json", str(tmp_path / "copy.json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_record(tmp_path)
    assert isinstance(record, Comparison)
    assert load(tmp_path / "copy.json") == record
    assert list(record.modes) == [*modes.split(","), "sequential"]  # which the comparison of unequal jobs needs
    for mode in record.modes.values():
        assert mode.status == "ok", mode.error
        assert mode.parity is not None
        assert mode.parity.ok
    assert {s.job for s in record.samples if s.mode == "ddp-tuned"} == {0, 1}
    pattern = record.modes["crossover"].pattern
    assert pattern is not None
    assert set(pattern) == {"A", "B"}
    assert record.fabric.rate_bps == 200e6
    assert record.fabric.measured_bps is not None
    assert 0.5 * 200e6 < record.fabric.measured_bps < 1.1 * 200e6
    assert left_behind() == ""


@NETNS
@pytest.mark.netns
def test_profile_on_a_shaped_link(tmp_path: Path) -> None:
    done = xbench("profile", TINY, "--fabric", "shaped:hosts=2,rate=500mbit", "--steps", "6", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_record(tmp_path)
    assert isinstance(record, Profile)
    assert record.step is not None
    assert record.cost_model is not None
    assert record.cost_model.points[0].nbytes == 1024
    assert record.cost_model.points[-1].nbytes >= record.workload.grad_bytes
    ready = [layer.ready_s for layer in record.layers]
    assert ready == sorted(ready)
    assert sum(layer.parameters for layer in record.layers) == record.workload.parameters
    assert set(record.plans) == {"compute", "ddp", "ddp-tuned", "single", "wfbp", "mgwfbp", "optimal"}
    # What the exact plan promises: of all that travel during backward, its last bucket arrives first.
    arrives_s = {
        mode: plan.timeline.communication[-1].end_s
        for mode, plan in record.plans.items()
        if plan.timeline is not None and mode not in ("compute", "single")
    }
    assert arrives_s["optimal"] <= min(arrives_s.values()) * (1 + 1e-9)


# --- runs that end badly ---------------------------------------------------------------------------------------------


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    base = ["compare", TINY, "--launches", "1", "--rounds", "400", "--steps", "3", "--modes", "ddp,wfbp"]
    return subprocess.Popen(
        command(*base, "--output", str(folder), *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def blocks_of(folder: Path, rank: int) -> tuple[int, int]:
    """(pid, blocks so far) of one rank, from its journal."""
    pid, blocks = 0, 0
    for path in folder.glob(f"*/launch0/job0-rank{rank}.jsonl"):
        for line in path.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            pid = event.get("pid", pid)
            blocks += event["event"] == "block"
    return pid, blocks


def wait_for_blocks(folder: Path, running: subprocess.Popen[str], blocks: int = 4) -> None:
    deadline = time.monotonic() + 120
    while min(blocks_of(folder, 0)[1], blocks_of(folder, 1)[1]) < blocks:
        assert running.poll() is None, running.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def fabric() -> Iterator[str]:
    yield "local:ranks=2" if shaped.obstacle() is not None else "shaped:hosts=2,rate=1gbit"
    assert left_behind() == ""


def ends(running: subprocess.Popen[str], folder: Path) -> tuple[int, str, Comparison]:
    _, stderr = running.communicate(timeout=60)
    record = only_record(folder)
    assert isinstance(record, Comparison)
    assert not record.complete
    assert len(record.samples) >= 4
    return running.returncode, stderr, record


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, fabric: str) -> None:
    running = started(tmp_path, "--fabric", fabric)
    wait_for_blocks(tmp_path, running)
    os.killpg(running.pid, signal.SIGINT)
    code, stderr, record = ends(running, tmp_path)
    assert code == 130
    assert "error: interrupted" in stderr
    assert record.error == "interrupted"
    assert "Traceback" not in stderr


def test_a_killed_rank_is_named_and_the_samples_are_kept(tmp_path: Path, fabric: str) -> None:
    running = started(tmp_path, "--fabric", fabric)
    wait_for_blocks(tmp_path, running)
    os.kill(blocks_of(tmp_path, 1)[0], signal.SIGKILL)
    code, stderr, record = ends(running, tmp_path)
    assert code == 1
    assert re.search(r"error: rank 1 on host \d .*killed", stderr), stderr[-2000:]
    assert record.error is not None
    assert "rank 1" in record.error


def test_a_stopped_rank_is_named_after_the_timeout(tmp_path: Path, fabric: str) -> None:
    running = started(tmp_path, "--fabric", fabric, "--timeout", "5s")
    wait_for_blocks(tmp_path, running)
    os.kill(blocks_of(tmp_path, 1)[0], signal.SIGSTOP)
    code, stderr, record = ends(running, tmp_path)
    assert code == 1
    assert re.search(r"error: rank 1 on host \d .*stopped", stderr), stderr[-2000:]
    assert "5 s" in stderr
    assert record.error is not None
    assert "rank 1" in record.error


@NETNS
@pytest.mark.netns
def test_a_link_that_goes_down_is_named(tmp_path: Path, fabric: str) -> None:
    running = started(tmp_path, "--fabric", fabric, "--timeout", "20s")
    wait_for_blocks(tmp_path, running)
    identify = ["ip", "netns", "identify", str(blocks_of(tmp_path, 1)[0])]
    namespace = subprocess.run(identify, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["ip", "-n", namespace, "link", "set", links.INTERFACE, "down"], check=True)
    code, stderr, record = ends(running, tmp_path)
    assert code == 1
    assert re.search(r"error: the link of host 1 is down, so the ranks", stderr), stderr[-2000:]
    assert record.error is not None
    assert "link of host 1" in record.error


@pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs needs root")
def test_a_full_disk_ends_the_run_and_the_record_goes_where_there_is_room(tmp_path: Path, fabric: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], check=True)
    try:
        running = started(disk, "--fabric", fabric)
        wait_for_blocks(disk, running)
        with open(disk / "filler", "wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        _, stderr = running.communicate(timeout=90)
        assert running.returncode == 1
        assert "space" in stderr or "full" in stderr, stderr[-2000:]
        said = re.search(r"record: (\S+)", stderr)
        assert said is not None
        record = load(Path(said[1]))
        assert isinstance(record, Comparison)
        assert not record.complete
        assert len(record.samples) >= 4
        if not said[1].startswith(str(disk)):
            Path(said[1]).unlink()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --- wrong input: one sentence, exit 2, nothing launched --------------------------------------------------------------

WRONG = [
    (["compare", "resnet51"], "unknown workload 'resnet51'", "resnet50"),
    (["compare", "--modes", "wfpb"], "unknown mode 'wfpb'", "wfbp"),
    (["compare", "--modes", "ddp,ddp"], "mode 'ddp' stands twice", "ddp@b"),
    (["compare", "--modes", "crossover:ddpp"], "unknown carrier for crossover 'ddpp'", "ddp"),
    (["compare", "--fabric", "shapd"], "unknown fabric 'shapd'", "shaped"),
    (["compare", "--fabric", "shaped:hosts=1"], "2", "hosts"),
    (["compare", "--fabric", "shaped:hosts=2,rate=fast"], "'fast'", "1gbit"),
    (["compare", "--fabric", "shaped:hosts=2,rat=1gbit"], "unknown option 'rat'", "rate"),
    (["compare", "--batch-size", "0"], "0", "1"),
    (["compare", "resnet18", "resnet18", "resnet18"], "3 workloads were named", "at most 2"),
    (["compare", "nowhere.py:make"], "nowhere.py", ""),
    (["compare", "--quick", "--rigorous"], "exclude each other", "leave one"),
    (["compare", "--reference", "single", "--modes", "ddp,wfbp"], "'single' is not among the modes", "ddp, wfbp"),
    (["profile", "transformer-tiny", "--image-size", "64"], "image", ""),
    (["compare", "synthetic:layers=0"], "layers", "1"),
    (["compare", "--fabric", "local:ranks=1", "--modes", "ddp,crossover"], "local:ranks=1 has 1 rank", "ranks=2"),
    (["compare", "--fabric", "local:ranks=1", "--modes", "optimal"], "no link", "ranks=2"),
    (["compare", "--fabric", "local:ranks=1", "--reference", "optimal", "--modes", "ddp,optimal"], "no link", ""),
    (["compare", "--output", "/proc/1/nothing"], "--output", ""),
    (["compare", "--json", "nowhere/a.json"], "--json", "mkdir"),
    (["compare", "--timeout", "soon"], "--timeout", ""),
    (["report", "no-such-file.json"], "there is no result file", ""),
]


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, hint: str, tmp_path: Path
) -> None:
    done = ran(command(*arguments), 60, tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_an_image_size_that_a_model_cannot_take_is_refused_before_launch(tmp_path: Path) -> None:
    done = xbench("compare", "inception_v3", "--image-size", "8", "--output", str(tmp_path / "o"))
    assert done.returncode == 2
    assert "image" in done.stderr
    assert not (tmp_path / "o").exists()


def test_a_factory_that_raises_shows_its_own_message(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("def make():\n    raise ValueError('the moon is in the wrong phase')\n")
    done = xbench("compare", f"{script}:make", "--output", str(tmp_path / "o"))
    assert done.returncode == 2
    assert "the moon is in the wrong phase" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_memory_is_said_beforehand(tmp_path: Path) -> None:
    done = xbench("compare", "vit_h_14", "--batch-size", "4096", "--output", str(tmp_path / "o"))
    assert done.returncode == 2
    assert "GiB" in done.stderr
    assert not (tmp_path / "o").exists()
