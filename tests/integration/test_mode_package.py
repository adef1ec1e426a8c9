"""A schedule of another package, on real ranks: timed, planned, predicted, reported and compared like ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import compare, xbench

from xbench.records import Comparison

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, with_pairs: dict[str, str]) -> tuple[Comparison, str, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    record, done = compare(
        "synthetic:layers=6,bytes=64k", "--modes", "ddp,pairs", "--fabric", "local:ranks=2",
        "--quick", "--rounds", "2", results=folder, env=with_pairs,
    )  # fmt: skip
    return record, done.stdout + done.stderr, next(folder.glob("*/record.json"))


def test_it_is_planned_predicted_timed_and_held_to_ddp(compared: tuple[Comparison, str, Path]) -> None:
    record, _, _ = compared
    theirs = record.modes["pairs"]
    assert theirs.status == "ok", theirs.error
    assert theirs.blocks == 2
    assert theirs.plan == record.jobs[0].plans["pairs"]
    assert {len(bucket) for bucket in theirs.plan.buckets[:-1]} == {2}
    assert theirs.predicted_step_s == theirs.plan.predicted_step_s
    assert theirs.prediction_error is not None
    assert theirs.removed_share is not None or record.bounds is not None
    assert (theirs.parity.ok, theirs.parity.shown, theirs.parity.reference) == (True, True, "ddp")
    assert theirs.ratio.verdict in ("faster", "slower", "equivalent", "inconclusive")
    # What was sent is what was planned.
    assert sorted(sent.nbytes for sent in theirs.timeline.communication) == sorted(theirs.plan.bucket_bytes)


def test_it_is_reported_where_the_package_is_and_where_it_is_not(
    compared: tuple[Comparison, str, Path], with_pairs: dict[str, str]
) -> None:
    _, said, path = compared
    assert any(line.split()[:1] == ["pairs"] for line in said.splitlines())
    for env in (with_pairs, None):
        done = xbench("report", str(path), env=env)
        assert done.returncode == 0, done.stderr
        assert any(line.split()[:1] == ["pairs"] for line in done.stdout.splitlines())


def test_its_plan_can_be_made_again_and_pasted(
    compared: tuple[Comparison, str, Path], with_pairs: dict[str, str]
) -> None:
    record, _, path = compared
    done = xbench("plan", str(path), "--emit", "python", "--mode", "pairs", env=with_pairs)
    assert done.returncode == 0, done.stderr
    assert 'schedule="pairs", plan=buckets, wait="step")' in done.stdout
    for bucket in record.jobs[0].plans["pairs"].buckets:
        assert repr(bucket) in done.stdout
