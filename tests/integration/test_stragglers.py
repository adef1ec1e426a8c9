"""Faults planted on one of several real ranks: the profile, and a comparison, name their place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typed_commands import NETNS, command, left_behind, only_record, ran

from xbench.records import Stragglers

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
WORKLOAD = "benchmarks/planted.py:make"
LINK = "from slow_ranks import plant_slow_link; plant_slow_link(1); from xbench.__main__ import run; run()"


def found(folder: Path, plant: str, *words: str, start: list[str] | None = None) -> tuple[Stragglers, str]:
    """Run with this fault on rank 1. Return the findings and the output."""
    paths = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "XBENCH_PLANT": plant, "PYTHONPATH": paths}
    begin = command() if start is None else start
    done = ran([*begin, *words], cwd=ROOT, env=env, results=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    (job,) = only_record(folder).profiled
    assert left_behind() == ""
    return job.stragglers, " ".join(done.stdout.split())


def test_a_slow_backward_pass_is_named_with_its_layer(tmp_path: Path) -> None:
    words = ("profile", WORKLOAD, "--quick", "--fabric", "local:ranks=2")
    stragglers, said = found(tmp_path, "backward:50", *words)
    (slow,) = stragglers.ranks
    assert (slow.rank, slow.host, slow.parts, slow.layer) == (1, None, ["backward"], "layers.2")
    assert "Rank 1 holds the others back: backward from layers.2 on, " in said
    assert stragglers.links == []
    record = only_record(tmp_path)
    assert {"rank0.input_s", "rank1.input_s"} <= record.samples.keys()
    assert all(tensor.ready_loaded_s for layer in record.layers for tensor in layer.tensors)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        ("input:50", ("compare", WORKLOAD, "--rounds", "1", "--modes", "ddp,wfbp")),
        # Its batches take 120 ms, and steps 30: three quarters of a step are waits that other work cannot hide.
        ("workers:120", ("profile", "benchmarks/planted.py:make_loader")),
    ],
)
def test_a_slow_loader_is_named(tmp_path: Path, plant: str, words: tuple[str, ...]) -> None:
    stragglers, said = found(tmp_path, plant, *words, "--quick", "--fabric", "local:ranks=2")
    (slow,) = stragglers.ranks
    assert (slow.rank, slow.parts) == (1, ["input"])
    assert "Rank 1 holds the others back: its input, " in said


@NETNS
@pytest.mark.netns
def test_a_slow_link_is_named_with_its_host(tmp_path: Path) -> None:
    words = ("profile", WORKLOAD, "--quick", "--fabric", "shaped:hosts=3,rate=1gbit")
    stragglers, said = found(tmp_path, "", *words, start=[sys.executable, "-c", LINK])
    (slow,) = stragglers.links
    assert slow.hosts == ["host 1"]
    assert 0.5 < slow.rate_bps / 250e6 < 1.2
    assert "The link of host 1 holds the others back: " in said
