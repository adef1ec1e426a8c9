"""Requests that are refused before a launch: steps, links and fabrics that a mode or a command cannot use."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from samples_of_runs import LOCAL, A, run_of

from xbench.config import ConvergeConfig, RunConfig
from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.runs import converge
from xbench.runs.prepare import check_available, check_fabric, check_real, check_request
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec, WorkloadSpec

CLIPPED = WorkloadSpec(name="resnet18", clip=1.0)
SCALED = WorkloadSpec(name="resnet18", amp="fp16")


@pytest.mark.parametrize("mode", ["dear", "priority", "auto:forward"])
@pytest.mark.parametrize(("workload", "flag"), [(CLIPPED, "--clip"), (SCALED, "--amp fp16")])
def test_no_update_is_put_off_where_gradients_are_clipped_or_unscaled(
    workload: WorkloadSpec, flag: str, mode: str
) -> None:
    said = f"mode '{mode}' updates each layer in the next forward pass, and {flag} needs"
    with pytest.raises(SpecError, match=said):
        check_request(RunConfig(workloads=[workload], modes=parse_modes(f"ddp,{mode}")))
    for without in (WorkloadSpec(name="resnet18"), WorkloadSpec(name="resnet18", amp="bf16")):
        check_request(RunConfig(workloads=[without], modes=parse_modes(f"ddp,{mode}")))


def test_nor_does_auto_put_any_off() -> None:
    for workload in (CLIPPED, WorkloadSpec(name="resnet18")):
        check_request(RunConfig(workloads=[workload], modes=parse_modes("ddp,auto")))


@pytest.mark.parametrize("mode", ["replicate", "fsdp", "auto:shard", "hsdp", "zero1"])
def test_not_over_emulated_links(mode: str) -> None:
    emulated = FabricSpec(name="emulated", workers=4, rate="1gbit")
    with pytest.raises(SpecError, match=f"mode '{mode}' sends by torch itself, over links that are there"):
        check_real(emulated, parse_modes(f"ddp,{mode}"))
    check_real(FabricSpec(name="local", ranks=2), parse_modes(mode))


@pytest.mark.parametrize("mode", ["replicate", "fsdp", "auto:shard", "hsdp"])
def test_not_compressed(mode: str) -> None:
    with pytest.raises(SpecError, match=f"mode '{mode}' sends parameters and gradients as they are, and not as bf16"):
        check_available(parse_modes(f"ddp,{mode}"), "bf16")
    assert check_available(parse_modes(f"ddp,{mode}"), None) == []
    assert check_available(parse_modes("ddp,zero1"), "bf16") == []  # whose gradients are DDP's


def test_groups_need_ranks() -> None:
    for fabric in (FabricSpec(name="local", ranks=4), FabricSpec(name="shaped", hosts=2, ranks=2, rate="1gbit")):
        check_fabric(fabric, parse_modes("ddp,hsdp,hsdp:group=2"))
    with pytest.raises(SpecError, match=r"mode 'hsdp' needs two or more groups .* and 2 ranks are not"):
        check_fabric(FabricSpec(name="local", ranks=2), parse_modes("ddp,hsdp"))
    with pytest.raises(SpecError, match="mode 'hsdp:group=3': 4 ranks are not two or more groups of 3"):
        check_fabric(FabricSpec(name="local", ranks=4), parse_modes("hsdp:group=3"))


OTHERS = [parse_fabric("emulated"), FabricSpec(name="cluster", hosts=2)]


@pytest.fixture
def with_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-learn counts as installed."""
    monkeypatch.setattr(converge.importlib.util, "find_spec", lambda name: SimpleNamespace())


def request_on(fabric: FabricSpec, **fields: Any) -> ConvergeConfig:
    return ConvergeConfig(workloads=[A], fabric=fabric, modes=parse_modes("ddp,spb"), **fields)


@pytest.mark.usefixtures("with_digits")
@pytest.mark.parametrize("fabric", OTHERS, ids=str)
def test_a_typed_fabric_without_real_ranks_of_its_own_is_refused(fabric: FabricSpec) -> None:
    with pytest.raises(SpecError, match=f"and not on fabric '{fabric.name}'"):
        converge.check(request_on(fabric))
    converge.check(request_on(LOCAL))


@pytest.mark.usefixtures("with_digits")
@pytest.mark.parametrize("fabric", OTHERS, ids=str)
def test_one_that_auto_chose_is_refused_too(
    fabric: FabricSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(converge, "prepare", lambda config: (run_of("ddp,spb", fabric=fabric), None, []))
    config = request_on(FabricSpec(name="auto"), output=tmp_path / "runs")
    with pytest.raises(SpecError, match=f"and not on fabric '{fabric.name}'") as caught:
        converge.execute(config, Console(file=io.StringIO()))
    assert caught.value.hint == "try --device cpu --fabric local:ranks=2"
    assert not (tmp_path / "runs").exists()
