"""What torch's sharded modes need of the ranks."""

from __future__ import annotations

import pytest

from xbench.errors import SpecError
from xbench.planning import sharding
from xbench.planning.sharding import options, shard_ranks
from xbench.schedules import parse_mode, parse_modes


@pytest.mark.parametrize(
    ("asked", "world_size", "per_host", "ranks"),
    [
        ({}, 4, 4, 2),  # one host: the largest group that leaves two copies
        ({}, 16, 8, 8),  # a host's ranks
        ({}, 4, 1, 2),  # one rank a host
        ({}, 12, 5, 6),  # a host's ranks do not divide them
        ({"group": "2"}, 16, 8, 2),
        ({"group": "8"}, 16, 4, 8),
    ],
)
def test_ranks_that_divide_a_copy(asked: dict[str, str], world_size: int, per_host: int, ranks: int) -> None:
    assert shard_ranks("hsdp", asked, world_size, per_host) == ranks


@pytest.mark.parametrize(
    ("asked", "world_size", "message", "hint"),
    [
        ({}, 2, "'hsdp' needs two or more groups of two or more ranks, and 2 ranks are not", "local:ranks=4"),
        ({}, 3, "and 3 ranks are not", "local:ranks=4"),
        ({"group": "3"}, 8, "8 ranks are not two or more groups of 3", "try group=2"),
        ({"group": "8"}, 8, "8 ranks are not two or more groups of 8", "try group=4"),
    ],
)
def test_ranks_that_do_not_suffice(asked: dict[str, str], world_size: int, message: str, hint: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        shard_ranks("hsdp", asked, world_size, world_size)
    assert hint in (caught.value.hint or "")


def test_options() -> None:
    assert options("hsdp:group=2", {"group": "2"}) == {"group": "2"}
    assert parse_mode("hsdp:group=4").options == (("group", "4"),)
    assert [mode.text for mode in parse_modes("ddp,hsdp:group=2,fsdp")] == ["ddp", "hsdp:group=2", "fsdp"]
    for text, words in (("hsdp:group=1", "out of range 2"), ("hsdp:size=2", "unknown option 'size'")):
        with pytest.raises(SpecError, match=words):
            parse_mode(text)
    with pytest.raises(SpecError, match="mode 'fsdp' takes no options"):
        parse_mode("fsdp:group=2")


def test_the_form_of_a_mode_is_part_of_its_name() -> None:
    mode = parse_mode("auto:shard")
    assert (mode.text, mode.name, mode.carrier, mode.options) == ("auto:shard", "auto:shard", "auto:shard", ())
    modes = parse_modes("auto,auto:shard,gathered=64m,auto:shard@b,auto:shard,gathered=1k")
    assert [mode.text for mode in modes] == [
        "auto", "auto:shard,gathered=64m", "auto:shard@b", "auto:shard,gathered=1k"
    ]  # fmt: skip
    assert [mode.name for mode in modes] == ["auto", *["auto:shard"] * 3]
    assert modes[1].options == (("gathered", "64m"),)


def test_a_unit_may_be_of_a_single_byte() -> None:
    assert parse_mode("auto:shard,gathered=1").options == (("gathered", "1"),)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("auto:gathered=64m", "mode 'auto' takes no options", "write auto"),
        ("auto:forward,gathered=64m", "mode 'auto:forward' takes no options", "write auto:forward"),
        ("auto:shard,gathered=0", "a unit of 0 has no parameters", "try gathered=64MiB"),
        ("auto:shard,gathered=much", "'much' is not a size", "write it like"),
        ("auto:shard,gather=64m", "unknown option 'gather'", "did you mean 'gathered'"),
    ],
)
def test_units_that_cannot_be_searched(text: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_mode(text)
    assert (caught.value.hint or "").startswith(hint)


@pytest.mark.parametrize("carrier", ["fsdp", "auto:shard", "hsdp", "replicate", "zero1"])
@pytest.mark.parametrize("paired", ["crossover", "sequential", "concurrent"])
def test_they_carry_no_pair_of_jobs(paired: str, carrier: str) -> None:
    with pytest.raises(SpecError, match=f"unknown carrier for {paired} '{carrier}'"):
        parse_mode(f"{paired}:{carrier}")


def test_a_torch_without_replicate_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sharding.replicate_obstacle() is None
    monkeypatch.setattr(sharding.Path, "exists", lambda path: False)
    assert sharding.replicate_obstacle() == "this torch has no torch.distributed._composable.replicate_with_fsdp"
