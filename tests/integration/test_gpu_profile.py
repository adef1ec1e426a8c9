"""What a profile measures on a GPU in the place of contention, measured by two real ranks on CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import TINY, only_record, with_ranks_of

from xbench.planning.contention import is_launch_bound
from xbench.planning.measured import measured, planned_contention
from xbench.planning.scenario import Change, replan, what_if

pytestmark = pytest.mark.integration


def test_launches_are_measured_and_planned_with(tmp_path: Path) -> None:
    done = with_ranks_of("profile_as_on_gpu", "profile", TINY, "--fabric", "local:ranks=2", "--quick", results=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_record(tmp_path)
    tensors = [tensor for layer in record.layers for tensor in layer.tensors]
    assert all(tensor.ready_loaded_each_s for tensor in tensors)
    assert {tensor.ready_loaded_each_s for tensor in tensors} != {tensor.ready_loaded_s for tensor in tensors}
    found = record.contention
    assert found.points == []
    assert 0 < found.launch_s < found.host_step_s
    assert found.launch_bound is is_launch_bound(found.host_step_s, found.device_step_s)
    assert "launching a collective takes the host" in done.stdout
    # the ranks' plans are those that a record gives again
    read = measured(record, "made")
    again = replan(what_if(read, Change()), ["wfbp", "single", "ddp"])
    for mode, plan in again.plans.items():
        assert plan.predicted_step_s == pytest.approx(record.plans[mode].predicted_step_s, rel=1e-6)
    # of a launch-bound step, each collective costs its launch
    bound = planned_contention(found.model_copy(update={"launch_bound": True}), read.cost)
    assert bound.launch_s == found.launch_s
