"""Predicted steps of torch's own modes, on examples that are computed by hand.

Three layers, r0 → a → b → r1 in forward order, of which the root has r0 and r1. Sizes are bytes, and every collective
takes a second a byte, or half of one, without latency.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_cases import layer, line, planner_of

from xbench.errors import SpecError
from xbench.planning import sharded_step
from xbench.planning.sharded_step import ROOT, Sharded, fsdp, largest_share, options, replicate, shard_ranks, zero1
from xbench.planning.step import Gradient
from xbench.records import Layer, UnitCost
from xbench.schedules import parse_mode, parse_modes

SIZES = {"r1": 1, "b": 4, "a": 2, "r0": 1}
"""Bytes by layer, in ready order."""

READY_S = {"r1": 1.0, "b": 3.0, "a": 5.0, "r0": 6.0}


def layers() -> list[Layer]:
    return [
        layer(name, [(size, READY_S[name])], forward_s=1.0, backward_s=1.0 if name.startswith("r") else 2.0)
        for name, size in SIZES.items()
    ]


def inputs(*, waits: bool, per_byte_s: float = 1.0, workers: int = 2) -> Sharded:
    gradients = [Gradient(f"{name}.0", size, READY_S[name], elements=size) for name, size in SIZES.items()]
    planner = planner_of(gradients, line(0.0, per_byte_s), forward_s=4.0, backward_s=6.0, optimizer_s=1.0)
    units = {"a": ["a.0"], "b": ["b.0"], ROOT: ["r0.0", "r1.0"]}
    costs = {name: line(0.0, per_byte_s / 2) for name in ("all_gather", "reduce_scatter", "broadcast")}
    return Sharded(planner, layers(), units, costs, workers, waits=waits)


def test_where_the_host_waits_every_collective_is_exposed() -> None:
    # Gathers of 2 · 6 + 2 bytes and scatters of 8, at half a second a byte.
    assert fsdp(inputs(waits=True)) == pytest.approx(4.0 + 6.0 + 0.5 + (14 + 8) / 2)
    assert replicate(inputs(waits=True)) == pytest.approx(11.0 + 8.0)


def test_the_root_alone_is_gathered_once() -> None:
    whole = replace(inputs(waits=True), units={ROOT: [f"{name}.0" for name in SIZES]})
    assert fsdp(whole) == pytest.approx(10.5 + (8 + 8) / 2)


def test_every_micro_step_gathers_and_only_the_last_scatters() -> None:
    for waits in (True, False):
        given = inputs(waits=waits)
        step = replace(given.step, micro_steps=3, accumulate_s=20.0)
        several = replace(given, planner=replace(given.planner, step=step))
        if waits:
            assert fsdp(several) == pytest.approx(fsdp(given) + 20.0 + 2 * 14 / 2)
        else:
            # A step without its scatters: b is gathered to 9, a to 10, r0 computes to 14.
            assert fsdp(several) == pytest.approx(fsdp(given) + 2 * 14.0)
        assert replicate(several) == pytest.approx(replicate(given) + 20.0)


def test_the_wait_for_input_is_a_part_of_the_step() -> None:
    for waits in (True, False):
        given = inputs(waits=waits)
        fed = replace(given, planner=replace(given.planner, step=replace(given.step, input_s=20.0)))
        assert fsdp(fed) == pytest.approx(fsdp(given) + 20.0)
        assert replicate(fed) == pytest.approx(replicate(given) + 20.0)


def test_units_and_tensors_cost_the_host_its_time() -> None:
    unit = UnitCost(unit_s=10.0, tensor_s=2.0)
    for waits in (True, False):
        given = inputs(waits=waits)
        costly = replace(given, unit=unit)
        more_s = 3 * 10.0 + 4 * 2.0 if waits else 0.0
        assert fsdp(costly) == pytest.approx(fsdp(given) + more_s)
        assert replicate(costly) == pytest.approx(replicate(given) + more_s)


def test_on_a_stream_one_gather_is_ahead() -> None:
    """A half second a byte.

    Forward: the root arrives at 1 and a, which was issued beside it, at 2. r0 computes from 1 to 2, a from 2 to 3. b
    was issued at 2 and arrives at 4; it computes to 5, r1 to 6.
    Backward: r1 to 7. b is gathered to 9, a after it to 10, while b computes to 11. b is scattered to 13, a computes to
    13, a is scattered to 14, and r0 computes to 14. The root is scattered to 15.
    """
    assert fsdp(inputs(waits=False)) == pytest.approx(15.0 + 0.5)


def test_on_a_stream_a_free_link_costs_nothing() -> None:
    assert fsdp(inputs(waits=False, per_byte_s=0.0)) == pytest.approx(10.5)
    assert replicate(inputs(waits=False, per_byte_s=0.0)) == pytest.approx(11.0)


def test_on_a_stream_units_are_reduced_as_they_are_ready() -> None:
    # b is ready at 3 and reduced to 7, a to 9, the root is ready at 6 and reduced to 11.
    assert replicate(inputs(waits=False)) == pytest.approx(4.0 + 11.0 + 1.0)


def test_groups_reduce_their_shards_between_each_other() -> None:
    """Half a second a byte within groups of two, a second a byte of a shard between them."""
    for waits in (True, False):
        given = inputs(waits=waits)
        costs = {f"{name}:group=2": line(0.0, 0.5) for name in ("all_gather", "reduce_scatter")}
        grouped = replace(given, in_groups=True, costs=costs | {"all_reduce:group=2": line(0.0, 1.0)})
        if waits:
            assert fsdp(grouped) == pytest.approx(fsdp(given) + 8 / 2)
        else:  # shards of b from 13 to 15, of a to 16, of the root to 17: the last scatter ended at 15
            assert fsdp(grouped) == pytest.approx(17.0 + 0.5)
        with pytest.raises(KeyError):
            fsdp(replace(grouped, costs=costs))


def test_zero1_is_ddp_with_a_share_of_the_updates_and_all_broadcasts() -> None:
    # DDP sends one bucket of 8 bytes after 6 s. The ranks own 4 and 2 + 1 + 1 elements.
    assert zero1(inputs(waits=True)) == pytest.approx(4.0 + 6.0 + 8.0 + 0.5 + 8 / 2)


def test_tensors_go_to_the_emptiest_rank_the_largest_first() -> None:
    assert largest_share([1, 4, 2, 1], 2) == 0.5
    assert largest_share([6, 1, 1], 2) == 0.75
    assert largest_share([5], 4) == 1.0


@pytest.mark.parametrize("forecast", [fsdp, zero1])
def test_a_collective_that_was_not_measured(forecast: object) -> None:
    with pytest.raises(KeyError):
        forecast(replace(inputs(waits=True), costs={}))  # type: ignore[operator]


def test_a_unit_without_gradients_sends_nothing() -> None:
    frozen = replace(inputs(waits=True), units={"a": ["a.0"], "b": ["b.0"], "c": ["frozen"], ROOT: ["r0.0", "r1.0"]})
    assert fsdp(frozen) == fsdp(inputs(waits=True))


def test_a_unit_of_gradients_without_bytes_can_be_predicted() -> None:
    given = inputs(waits=False)
    empty = Gradient("c.0", 0, 4.0, elements=0)
    gradients = sorted([*given.step.gradients, empty], key=lambda one: one.ready_s)
    planner = replace(given.planner, step=replace(given.step, gradients=gradients))
    with_empty = replace(given, planner=planner, units={**given.units, "c": ["c.0"]})
    assert replicate(with_empty) == pytest.approx(replicate(given))


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
    assert sharded_step.replicate_obstacle() is None
    monkeypatch.setattr(sharded_step.Path, "exists", lambda path: False)
    assert sharded_step.replicate_obstacle() == "this torch has no torch.distributed._composable.replicate_with_fsdp"
