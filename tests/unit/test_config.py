"""The options of commands, as fields of their configs."""

from __future__ import annotations

import pytest

from xbench.commands.plan import PlanConfig
from xbench.config import (
    ConvergeConfig,
    EffortOptions,
    ProfileEffort,
    RunConfig,
    TuneConfig,
    WorkloadOptions,
)
from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.option_fields import read_config
from xbench.schedules import parse_modes
from xbench.spec import Effort


def test_efforts() -> None:
    assert EffortOptions().read() == Effort(launches=4, rounds=4, steps=None)
    quick = EffortOptions(quick=True).read()
    assert (quick.launches, quick.rounds, quick.steps) == (1, 6, 4)
    own = EffortOptions(launches=3, quick=True).read()
    assert (own.launches, own.rounds, own.steps) == (3, 6, 4)
    assert [ProfileEffort(quick=quick).read().profile_steps for quick in (False, True)] == [16, 8]


def test_what_is_typed_is_read_and_what_is_no_field_stays() -> None:
    values = {"names": ("resnet18", "vgg11"), "batch_size": 2, "modes": "ddp,auto", "fabric": "local:ranks=2", "x": 1}
    config = read_config(RunConfig, values)
    assert [spec.name for spec in config.workloads] == ["resnet18", "vgg11"]
    assert [spec.batch_size for spec in config.workloads] == [2, 2]
    assert config.modes == parse_modes("ddp,auto")
    assert config.fabric == parse_fabric("local:ranks=2")
    assert values == {"x": 1}


def test_a_workload_s_text_takes_every_option_of_the_step() -> None:
    (typed,) = WorkloadOptions(names="resnet18", amp="bf16", clip=1.0, accumulate=2, seed=3).read()
    (written,) = WorkloadOptions(names="resnet18:amp=bf16,clip=1,accumulate=2,seed=3").read()
    assert typed == written


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (TuneConfig, {"minutes": 0.1}, "--minutes: 0.1 is not in the range 0.25 to 1440"),
        (TuneConfig, {"margin_percent": float("nan")}, "--margin: nan is not in the range 0 to 50"),
        (ConvergeConfig, {"lr": 0.0}, "--lr: 0 is not above 0 and up to 100"),
        (PlanConfig, {"error_band": 1.0}, "--error-band: 1 is not a share from 0 to 0.95"),
        (PlanConfig, {"rate_bps": "fast"}, "--rate: "),
    ],
)
def test_a_value_that_cannot_work_names_its_option(kind: type, values: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_config(kind, values)
