"""`xbench.attach` with the file of `xbench tune`: the file's schedule and buckets, or a sentence on why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch import nn

import xbench
from xbench.errors import SpecError
from xbench.records import Plan, Tuned, load, save

GOLDEN = Path(__file__).parents[2] / "golden" / "tuned-v1.json"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 1, 1, bias=False)
        self.fc = nn.Linear(2, 2)


def file_with(folder: Path, **changes: object) -> Path:
    record = load(GOLDEN)
    assert isinstance(record, Tuned)
    return save(record.model_copy(update=changes), folder / "tuned.json")


@pytest.mark.parametrize("schedule", [None, "auto"])
def test_the_file_says_schedule_and_buckets(schedule: str | None) -> None:
    entry = next(one for one in os.scandir(GOLDEN.parent) if one.name == GOLDEN.name)  # a PathLike that is no Path
    for plan in (GOLDEN, str(GOLDEN), entry, load(GOLDEN)):
        assert not isinstance(plan, (xbench.Profile, xbench.Comparison))
        with xbench.attach(Small(), schedule=schedule, plan=plan) as handle:  # type: ignore[arg-type]
            assert handle.buckets == [["fc.bias", "fc.weight"], ["conv1.weight"]]


def test_a_plan_says_its_schedule_too() -> None:
    plan = Plan(mode="single", buckets=[["fc.bias", "fc.weight", "conv1.weight"]], bucket_bytes=[28],
                predicted_step_s=0, predicted_exposed_s=0)  # fmt: skip
    with xbench.attach(Small(), plan=plan) as handle:
        assert handle.buckets == plan.buckets
        assert handle.engine is not None
        assert not handle.engine.overlap


def test_another_schedule_than_the_file_s_is_refused() -> None:
    with pytest.raises(SpecError, match="the tuned file is for 'auto', and schedule='optimal' was asked for"):
        xbench.attach(Small(), schedule="optimal", plan=GOLDEN)


def test_another_model_is_refused_by_the_names_of_its_parameters(tmp_path: Path) -> None:
    other = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(SpecError, match=r"the plan, made for resnet18, names 'fc\.bias', .* \(3 of its 3 names are"):
        xbench.attach(other, plan=GOLDEN)
    tuned = file_with(tmp_path, schedule="ddp-tuned")
    with pytest.raises(SpecError, match=r"the plan, made for resnet18, names 'fc\.bias'"):
        xbench.attach(other, plan=tuned)
    model = Small()
    model.extra = nn.Linear(1, 1)
    with pytest.raises(SpecError, match=r"the plan leaves out parameter 'extra\.weight'"):
        xbench.attach(model, plan=GOLDEN)
