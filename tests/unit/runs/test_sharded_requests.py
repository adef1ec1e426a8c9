"""Requests for torch's sharded modes that are refused before anything is launched."""

from __future__ import annotations

import pytest

from xbench.errors import SpecError
from xbench.runs.prepare import check_available, check_fabric, check_real
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec

ALL = ("replicate", "fsdp", "auto:shard", "hsdp", "zero1")


@pytest.mark.parametrize("mode", ALL)
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


def test_gradients_of_zero1_are_ddp_s_and_may_be_compressed() -> None:
    assert check_available(parse_modes("ddp,zero1"), "bf16") == []


def test_groups_need_ranks() -> None:
    for fabric in (FabricSpec(name="local", ranks=4), FabricSpec(name="shaped", hosts=2, ranks=2, rate="1gbit")):
        check_fabric(fabric, parse_modes("ddp,hsdp,hsdp:group=2"))
    with pytest.raises(SpecError, match=r"mode 'hsdp' needs two or more groups .* and 2 ranks are not"):
        check_fabric(FabricSpec(name="local", ranks=2), parse_modes("ddp,hsdp"))
    with pytest.raises(SpecError, match="mode 'hsdp:group=3': 4 ranks are not two or more groups of 3"):
        check_fabric(FabricSpec(name="local", ranks=4), parse_modes("hsdp:group=3"))
