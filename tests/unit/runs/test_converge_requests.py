"""Fabrics on which `xbench converge` trains nothing: typed ones, and those that `auto` chooses."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from samples_of_runs import LOCAL, A, run_of

from xbench.config import ConvergeConfig
from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.runs import converge
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec

OTHERS = [parse_fabric("emulated"), FabricSpec(name="cluster", hosts=2)]


@pytest.fixture(autouse=True)
def with_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-learn counts as installed."""
    monkeypatch.setattr(converge.importlib.util, "find_spec", lambda name: SimpleNamespace())


def request_on(fabric: FabricSpec, **fields: Any) -> ConvergeConfig:
    return ConvergeConfig(workloads=[A], fabric=fabric, modes=parse_modes("ddp,spb"), **fields)


@pytest.mark.parametrize("fabric", OTHERS, ids=str)
def test_a_typed_fabric_without_real_ranks_of_its_own_is_refused(fabric: FabricSpec) -> None:
    with pytest.raises(SpecError, match=f"and not on fabric '{fabric.name}'"):
        converge.check(request_on(fabric))
    converge.check(request_on(LOCAL))


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
