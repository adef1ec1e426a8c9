"""Horovod for real: its own optimizer and two jobs in turns, on local and on shaped ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typed_commands import NETNS, TINY, compare, comparison, left_behind, results_in, scenarios_of

from xbench import horovod
from xbench.fabrics import links, open_fabric, parse_fabric, shaped
from xbench.records import Comparison

RANKS = Path(__file__).parent / "ranks" / "horovod_steps.py"
SCENARIOS = [name for name in scenarios_of("horovod_steps.py") if name != "clipped_without_a_wait"]
HERE = horovod.obstacle() is None
pytestmark = pytest.mark.integration
NEEDS_HOROVOD = pytest.mark.skipif(not HERE, reason=f"{horovod.obstacle()}: {horovod.INSTALL} builds it")


@pytest.fixture(scope="module")
def output() -> str:
    return said_by(2, *SCENARIOS)


def said_by(ranks: int, *scenarios: str) -> str:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(RANKS), *scenarios]
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=280, env=env)
    return done.stdout + done.stderr


@NEEDS_HOROVOD
@pytest.mark.xdist_group("output")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_trains_what_a_hand_written_average_trains(output: str, scenario: str) -> None:
    assert output.count(f"{scenario}: ok") == 2, output[-3000:]


@NEEDS_HOROVOD
def test_nothing_is_in_flight_in_a_world_of_one() -> None:
    output = said_by(1, "clipped_without_a_wait")
    assert "clipped_without_a_wait: ok" in output, output[-3000:]


def compared(folder: Path, modes: str, fabric: str, *more: str, workloads: tuple[str, ...] = (TINY,)) -> Comparison:
    record, _ = compare(
        *workloads, "--modes", modes, "--fabric", fabric, "--quick", "--rounds", "2", *more, results=folder
    )
    assert left_behind() == ""
    return record


def passed(record: Comparison) -> dict[str, bool]:
    return {name: mode.parity.ok for name, mode in record.modes.items() if mode.parity is not None}


@NEEDS_HOROVOD
def test_two_settings_and_ddp_in_one_comparison_on_hosts_that_it_finds(tmp_path: Path) -> None:
    modes = "ddp,horovod,horovod:fusion=32,cycle=5"
    fabric = "local:ranks=2" if shaped.obstacle() is not None else "shaped:hosts=2,rate=1gbit"
    record = compared(tmp_path, modes, fabric)
    assert passed(record) == {"ddp": True, "horovod": True, "horovod:fusion=32,cycle=5": True}
    assert any(note.startswith(f"Horovod {horovod.version()}, built against torch") for note in record.fabric.notes)
    assert record.environment.facts["horovod"] == horovod.version()


@NETNS
@pytest.mark.netns
def test_in_a_namespace_the_machine_s_name_is_the_host_s_address() -> None:
    with open_fabric(parse_fabric("shaped:hosts=2,rate=1gbit"), "a1b2d1") as fabric:
        for host in fabric.hosts:
            words = [*host.prefix, sys.executable, "-c", "import socket as s; print(s.gethostbyname(s.gethostname()))"]
            assert subprocess.run(words, capture_output=True, text=True).stdout.strip() == host.address
    assert not [name for name in links.hosts_files() if name.startswith("xba1b2d1")]


@NEEDS_HOROVOD
def test_two_jobs_in_turns_share_one_horovod(tmp_path: Path) -> None:
    record = compared(tmp_path, "sequential:horovod,crossover:horovod", "local:ranks=2")
    assert passed(record) == {"sequential:horovod": True, "crossover:horovod": True}
    assert record.spec.processes == 1


def test_where_it_is_missing_the_other_modes_run(tmp_path: Path) -> None:
    """A package of that name, built against a torch that is not here, stands before any other."""
    place = tmp_path / "first" / "horovod"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "metadata.json").write_text('{"pytorch": "1.0.0"}')
    before = os.environ.get("PYTHONPATH")
    words = ["-m", "xbench", "compare", TINY, "--modes", "ddp,horovod", "--fabric", "local:ranks=2", "--quick",
             "--rounds", "2"]  # fmt: skip
    env = results_in(tmp_path / "runs") | {"PYTHONPATH": os.pathsep.join([str(place.parent), *filter(None, [before])])}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 1, done.stderr[-3000:]
    record = comparison(tmp_path / "runs")
    assert record.modes["ddp"].status == "ok", record.modes["ddp"].error
    assert record.modes["horovod"].status == "failed"
    assert (record.modes["horovod"].error or "").startswith("Horovod was built against torch 1.0.0, and torch ")
