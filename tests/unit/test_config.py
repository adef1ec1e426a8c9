"""The options of commands, as fields of their configs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from xbench.commands.plan import PlanConfig
from xbench.config import (
    ConvergeConfig,
    EffortOptions,
    MatrixOptions,
    ProfileConfig,
    ProfileEffort,
    RunConfig,
    TuneConfig,
    ValidateConfig,
    WorkloadOptions,
)
from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.option_fields import option_of, options_of, read_config
from xbench.schedules import parse_modes
from xbench.spec import Effort

KINDS = (RunConfig, ProfileConfig, TuneConfig, ConvergeConfig, ValidateConfig, PlanConfig)


def test_efforts() -> None:
    assert EffortOptions().read() == Effort(launches=4, rounds=4, steps=None)
    quick = EffortOptions(quick=True).read()
    assert (quick.launches, quick.rounds, quick.steps) == (1, 6, 4)
    own = EffortOptions(launches=3, quick=True).read()
    assert (own.launches, own.rounds, own.steps) == (3, 6, 4)
    assert [ProfileEffort(quick=quick).read().profile_steps for quick in (False, True)] == [16, 8]


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_a_flag_and_help(kind: type) -> None:
    for field in dataclasses.fields(kind):
        for owner, name in options_of(kind, field.name) if field.metadata else []:
            option = option_of(owner, name)
            assert option.flags[0].startswith("--")
            assert option.click["help"]


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


def test_a_list_of_workloads_keeps_their_options() -> None:
    words = "resnet18:batch-size=4,image-size=96,synthetic:layers=2,bytes=64k,vgg11"
    small, made, plain = read_config(ValidateConfig, {"workloads": words}).workloads
    assert (small.name, small.batch_size, small.image_size) == ("resnet18", 4, 96)
    assert (made.name, plain.name) == ("synthetic:layers=2,bytes=64k", "vgg11")


def test_a_matrix_is_every_rate_between_measured_and_held_out_hosts() -> None:
    matrix = MatrixOptions(rates="1gbit, 10gbit,1gbit", held_out="4").read()
    assert [str(fabric) for fabric in matrix.all] == [
        "shaped:hosts=2,rate=1gbit",
        "shaped:hosts=2,rate=10gbit",
        "shaped:hosts=4,rate=1gbit",
        "shaped:hosts=4,rate=10gbit",
    ]
    assert MatrixOptions(rates="1gbit").read().held_out == []
    with pytest.raises(SpecError, match="--rates: ',' names nothing"):
        MatrixOptions(rates=",").read()
    with pytest.raises(SpecError, match="--held-out: 2 hosts are those that are measured"):
        MatrixOptions(held_out="2").read()


def test_a_matrix_of_several_numbers_of_hosts_has_each_fabric_once() -> None:
    matrix = MatrixOptions(rates="1gbit", hosts="2, 3,2", cells=5, seed=7).read()
    assert [fabric.hosts for fabric in matrix.fabrics] == [2, 3, 2]
    assert [fabric.hosts for fabric in matrix.all] == [2, 3]
    assert (matrix.cells, matrix.seed) == (5, 7)
    assert MatrixOptions(cells=5).read().seed == 0


def test_a_matrix_of_emulated_links_is_of_workers() -> None:
    matrix = MatrixOptions(rates="1gbit", links="emulated", held_out="4,64").read()
    assert [(fabric.name, fabric.world_size, fabric.processes, fabric.rate) for fabric in matrix.all] == [
        ("emulated", 2, 1, "1gbit"), ("emulated", 4, 1, "1gbit"), ("emulated", 64, 1, "1gbit")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": "2,9"}, "--hosts: '9' in '2,9' is not a number from 2 to 8"),
        ({"hosts": "two"}, "--hosts: 'two' in 'two' is not a number from 2 to 8"),
        ({"hosts": "1"}, "--hosts: '1' in '1' is not a number from 2 to 8"),
        ({"hosts": "2,3", "held_out": "4,3"}, "--held-out: 3 hosts are those that are measured"),
        ({"held_out": "4", "cells": 3}, "--held-out is for a whole matrix, and --cells draws a part of one"),
        ({"held_out": "9"}, "--held-out: '9' in '9' is not a number from 2 to 8"),
        ({"links": "emulated", "hosts": "2048"}, "--hosts: '2048' in '2048' is not a number from 2 to 1024"),
        ({"seed": 3}, "--seed draws cells, and --cells does not say how many"),
    ],
)
def test_what_no_matrix_can_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        MatrixOptions(**options).read()


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
