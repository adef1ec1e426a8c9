"""Scaling: exact figures on a step that can be worked out by hand, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import constant, layer, line, step_times
from what_if_cases import GOLDEN, beside
from what_if_cases import record as golden_profile

from xbench.errors import SpecError
from xbench.modes import waiting_modes
from xbench.planning.measured import measured
from xbench.planning.plans import Planner
from xbench.planning.scale import (
    ERROR_BAND,
    GROWTH,
    GROWTH_SOURCE,
    Request,
    crossovers,
    error_band,
    parse_scaled_modes,
    parse_workers,
    scale,
    to_record,
)
from xbench.planning.scenario import Change, what_if
from xbench.planning.step import StepModel
from xbench.planning.topology import Topology, parse_topology
from xbench.records import Comparison, CostPoint, ErrorBand, Profile, ScalingPoint, dump, load, loads

RING = Topology("ring")
BAND = ErrorBand(share=0.25, source="given")
POINTS = [CostPoint(nbytes=n, transfer_s=0.2, ci95=(0.2, 0.2), wait_s=0.0, repetitions=3) for n in (8, 1024**2)]
COST = line(0.2, 0.0).model_copy(update={"points": POINTS})
LAYERS = [layer("late", [(4, 1.0)], 0.5, 1.0), layer("early", [(8, 2.0)], 0.5, 1.0)]
TIMES = step_times(3.0, forward_s=1.0, backward_s=2.0, optimizer_s=0.0)


def step() -> StepModel:
    """Forward 1 s, backward 2 s; 4 bytes are ready after 1 s of backward, 8 at its end."""
    return StepModel.of(LAYERS, TIMES)


def profile() -> Profile:
    """The golden profile with that step."""
    return golden_profile().model_copy(update={"layers": LAYERS, "step": TIMES, "cost_model": COST})


def comparison(errors: dict[str, float]) -> Comparison:
    """The golden comparison of these modes with that step, where each mode's prediction was off by so much."""
    found = load(GOLDEN.parent / "comparison-v1.json")
    assert isinstance(found, Comparison)
    modes = {name: found.modes[name].model_copy(update={"prediction_error": error}) for name, error in errors.items()}
    job = found.jobs[0].model_copy(update={"layers": LAYERS, "step": TIMES})
    return found.model_copy(update={"modes": modes, "jobs": [job]})


def test_exact_figures_of_single_and_wfbp() -> None:
    """Forward 1, backward 2, no optimizer; gradients of 4 and 8 bytes at 1 and 2 s; α = 0.1 s a message, β = 0."""
    found = scale(Planner(step(), COST), RING, [2, 4], ["compute", "single", "wfbp"], batch_size=5, band=BAND)
    assert [(p.mode, p.workers) for p in found] == [
        ("compute", 2), ("compute", 4), ("single", 2), ("single", 4), ("wfbp", 2), ("wfbp", 4),
    ]  # fmt: skip
    # An all-reduce takes 0.2 s on 2 workers and 0.6 s on 4. wfbp: the first travels within backward.
    assert [p.step_s for p in found] == pytest.approx([3.0, 3.0, 3.2, 3.6, 3.2, 3.6])
    four = found[3]
    assert four.samples_per_s == pytest.approx(4 * 5 / 3.6)
    assert four.efficiency == pytest.approx(3 / 3.6)
    assert four.exposed_s == pytest.approx(0.6)
    assert four.step_band_s == pytest.approx((3.6 / 1.25, 3.6 / 0.75))
    assert (four.buckets, four.largest_bucket_bytes, found[5].buckets, found[0].buckets) == (1, 12, 2, 0)
    # without a known batch there is no throughput
    (point,) = scale(Planner(step(), COST), RING, [4], ["single"], batch_size=0, band=BAND)
    assert point == four.model_copy(update={"samples_per_s": None})


def test_on_the_workers_that_were_measured_the_steps_are_the_profile_s_own_plans() -> None:
    modes = [mode for mode in waiting_modes() if mode not in ("compute", "auto")]
    found = scale(Planner(step(), COST), RING, [2], modes, batch_size=1, band=BAND)
    plans = Planner(step(), COST).plans(modes)
    assert [point.step_s for point in found] == [plans[mode].predicted_step_s for mode in modes]


@given(st.sampled_from(["ring", "tree"]), st.integers(2, 3000), st.integers(2, 3000))
def test_throughput_never_exceeds_what_compute_allows_and_steps_never_shrink(name: str, few: int, many: int) -> None:
    few, many = sorted((few, many))
    for mode in ("single", "wfbp", "optimal", "ddp"):
        points = scale(Planner(step(), COST), Topology(name), [few, many], [mode], batch_size=3, band=BAND)
        assert all(0 < point.efficiency <= 1 for point in points)
        assert points[0].step_s <= points[1].step_s * (1 + 1e-12)


def test_contention_makes_overlap_cost_something() -> None:
    free, dear = (
        scale(Planner(step(), COST, c), RING, [2], ["wfbp"], batch_size=1, band=BAND)[0]
        for c in (None, constant(2.0, 2.0))
    )
    # The first collective takes 0.4 s beside backward, which then runs at half speed: 0.2 s of it are lost.
    assert (free.step_s, dear.step_s) == pytest.approx((3.2, 3.4))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("2..16", (2, 4, 8, 16)),
        ("2..20", (2, 4, 8, 16, 20)),
        ("3..3", (3,)),
        ("8,2,4, 4", (2, 4, 8)),
        ("2, 6..24 ,100", (2, 6, 12, 24, 100)),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_workers(text) == sizes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1..8", "--workers: 1 is below 2, and one worker has nobody to share with"),
        ("0", "--workers: 0 is below 2, and one worker has nobody to share with"),
        ("-4", "--workers: -4 is below 2, and one worker has nobody to share with"),
        ("8..2", "--workers: '8..2' runs backwards"),
        ("many", "--workers: 'many' in 'many' is not a whole number"),
        ("2,,4", "--workers: '' in '2,,4' is not a whole number"),
        ("2...8", "--workers: '.8' in '2...8' is not a whole number"),
        ("2..9999999", "--workers: 9999999 is above 1000000"),
        (",".join(map(str, range(2, 200))), "--workers: 198 sizes are too many"),
    ],
)
def test_bad_sizes(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_workers(text)
    assert str(caught.value) == sentence
    assert caught.value.hint


@given(st.text("0123456789.,- x", max_size=12))
def test_sizes_parse_or_are_refused(text: str) -> None:
    try:
        sizes = parse_workers(text)
    except SpecError:
        return
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[0] >= 2


def test_modes() -> None:
    assert parse_scaled_modes(None) == tuple(mode for mode in waiting_modes() if mode != "compute")
    assert parse_scaled_modes("wfbp, compute,wfbp") == ("wfbp", "compute")
    for text, sentence, hint in (
        ("optimum", "unknown mode 'optimum'", "did you mean 'optimal'?"),
        ("wfbp,", "--modes: 'wfbp,' has an empty name", "write ddp,optimal"),
    ):
        with pytest.raises(SpecError) as caught:
            parse_scaled_modes(text)
        assert (str(caught.value), caught.value.hint) == (sentence, hint)


def test_the_band_is_the_given_one_or_the_record_s_worst_or_the_constant() -> None:
    given = error_band(measured(profile(), "p"), 0.3)
    assert (given.share, given.workers, given.growth) == (0.3, None, None)
    assert error_band(measured(profile(), "p"), None) == ERROR_BAND
    own = error_band(measured(comparison({"compute": 0.5, "ddp": -0.08, "wfbp": 0.03}), "c"), None)
    assert (own.share, own.source) == (0.08, "the largest error of this record's own predictions, that of ddp")
    assert (own.workers, own.growth, own.growth_source) == (2, GROWTH, GROWTH_SOURCE)
    assert error_band(measured(comparison({"ddp": -3.0}), "c"), None).share == 0.95
    assert error_band(measured(comparison({}), "c"), None) == ERROR_BAND


def record(
    source: Profile | Comparison | None = None, topology: str = "ring", workers: str = "2..2048", **change: float
):  # type: ignore[no-untyped-def]
    scenario = what_if(measured(source or profile(), "results/p.json"), Change(**change))  # type: ignore[arg-type]
    request = Request(parse_topology(topology), parse_workers(workers), parse_scaled_modes(None))
    return to_record(scenario, request, "xbench plan results/p.json --workers 2,8")


def test_a_whole_record_survives_its_round_trip() -> None:
    made = record()
    assert loads(dump(made)) == made
    assert (made.source.path, made.source.kind, made.topology) == ("results/p.json", "profile", "ring")
    assert len(made.points) == len(made.modes) * len(made.workers)
    assert [link.workers for link in made.links] == made.workers
    assert made.links[0].a_s == made.measured_link.a_s == COST.alpha_s
    assert made.links[0].all_gradients_s == pytest.approx(COST.alpha_s)


def test_a_faster_device_halves_compute_and_leaves_the_link() -> None:
    whole, half = record(), record(compute_scale=0.5)
    assert (whole.compute_s, half.compute_s, half.compute_scale) == (3.0, 1.5, 0.5)
    assert whole.links == half.links
    assert any("What if: compute × 0.5" in sentence for sentence in half.assumptions)


def test_whether_computation_slows_communication_is_said() -> None:
    both = profile().model_copy(update={"contention": beside((8, 1, 0.2, 0.4, 1.5))})
    said = [
        [sentence for sentence in record(of).assumptions if "slow each other down" in sentence]
        for of in (profile(), both)
    ]
    assert said == [
        ["Computation and communication do not slow each other down: this record did not measure how much."],
        ["Computation and communication slow each other down as was measured, by size of message."],
    ]


def test_reaching_far_is_allowed_and_said() -> None:
    told = " ".join(record().warnings)
    assert "2 workers were measured. Other sizes, up to 2048 (1024 times as many), are extrapolated" in told
    assert not any("were measured. Other sizes" in sentence for sentence in record(workers="2").warnings)
    small = " ".join(record(topology="tree", workers="2").warnings)
    assert "the largest measured was" not in small  # 12 bytes travel, 1 MiB was measured


def test_a_cost_model_that_misses_a_size_by_over_a_quarter_is_said() -> None:
    told = []
    for residual in (0.0, 0.25, 0.26):
        cost = COST.model_copy(update={"max_relative_residual": residual})
        warnings = record(profile().model_copy(update={"cost_model": cost})).warnings
        told.append([sentence for sentence in warnings if "misses a size" in sentence])
    assert told == [
        [], [],
        ["The cost model misses a size that was measured by 26 %: profile again on a quieter machine."],
    ]  # fmt: skip


def on(hosts: int, ranks_per_host: int, backend: str = "nccl", name: str = "cluster") -> Profile:
    """The profile as if it had been measured on these hosts, by as many workers in all."""
    world = hosts * ranks_per_host
    fabric = profile().fabric.model_copy(
        update={
            "name": name, "backend": backend, "hosts": hosts, "ranks_per_host": ranks_per_host, "world_size": world,
            "rate_bps": None,
        }
    )  # fmt: skip
    cost = COST.model_copy(update={"world_size": world, "backend": backend})
    return profile().model_copy(update={"fabric": fabric, "cost_model": cost})


def test_a_record_of_one_host_is_the_link_inside_and_the_link_between_is_given() -> None:
    made = record(on(1, 8, name="local"), "hierarchical:gpus=8,between=8gbit,latency=1ms", "8,16")
    assert made.topology == "hierarchical:gpus=8,between=8gbit,latency=1000us"
    assert [link.a_s for link in made.links] == pytest.approx([COST.alpha_s, COST.alpha_s + 2 * 1e-3])
    told = " ".join(made.assumptions)
    assert "What was measured is the link inside a host of 8. Between hosts a message takes 1.00 ms and" in told
    assert "8 workers that were measured over nccl are taken to have run a ring" in told
    assert not any("links between machines" in sentence for sentence in made.warnings)
    inside = "The all-reduce was measured inside one machine"
    assert any(inside in sentence for sentence in record(on(1, 8, name="cluster")).warnings)


def test_a_link_between_hosts_is_not_taken_for_the_one_inside() -> None:
    with pytest.raises(SpecError, match=r"'results/p\.json' was measured on 2 hosts") as caught:
        record(on(2, 8), "hierarchical:gpus=8,between=400gbit")
    assert caught.value.hint == "leave out between=, and give the link inside a host with rate="


def test_two_kinds_of_links_are_not_passed_for_one_ring() -> None:
    sentence = "The all-reduce was measured on 2 hosts of 8 workers, and is taken for a ring of 16 equal links."
    assert any(told.startswith(sentence) for told in record(on(2, 8)).warnings)
    more = what_if(measured(on(2, 8), "p"), Change(workers=32))
    assert any(told.startswith(sentence) for told in more.cautions)
    for hosts, ranks in ((1, 8), (8, 1)):
        more = what_if(measured(on(hosts, ranks), "p"), Change(workers=32))
        assert not any("equal links" in told for told in [*record(on(hosts, ranks)).warnings, *more.cautions])


def test_a_band_grows_with_each_doubling() -> None:
    checked = ErrorBand(share=0.25, source="checked", workers=4, growth=0.1, growth_source="held out")
    points = scale(Planner(step(), COST), RING, [2, 4, 8, 1024], ["single"], batch_size=5, band=checked)
    shares = [0.35, 0.25, 0.35, 0.95]  # eight doublings would be 1.05
    for point, share in zip(points, shares, strict=True):
        assert point.step_band_s == pytest.approx((point.step_s / (1 + share), point.step_s / (1 - share)))
    assert error_band(measured(comparison({"ddp": -0.08}), "c"), None).workers == COST.world_size


SIZES = (2, 4, 8, 16)


def mode(name: str, steps: Sequence[float], buckets: Sequence[int] = (9, 9, 9, 9)) -> list[ScalingPoint]:
    return [
        ScalingPoint(
            mode=name, workers=size, step_s=step_s, step_band_s=(step_s, step_s), exposed_s=step_s - 1,
            samples_per_s=1.0, efficiency=1 / step_s, buckets=count, largest_bucket_bytes=1,
        )
        for size, step_s, count in zip(SIZES, steps, buckets, strict=False)
    ]  # fmt: skip


def told(*modes: list[ScalingPoint], dtypes: int = 1) -> list[str]:
    return crossovers({points[0].mode: points for points in modes}, dtypes=dtypes)


STEPS = (1.1, 1.2, 1.3, 1.4)


@pytest.mark.parametrize(
    ("modes", "lines"),
    [
        ([], []),
        ([mode("wfbp", [1.1, 1.1, 1.1, 1.1])], []),
        ([mode("wfbp", [1.3, 1.4, 1.5, 1.6]), mode("mgwfbp", STEPS)], ["mgwfbp is fastest at every size."]),
        ([mode("wfbp", [1.3]), mode("mgwfbp", [1.1])], ["mgwfbp is fastest with 2 workers."]),
        (
            [mode("wfbp", [1.1, 1.2, 1.8, 1.9]), mode("single", [1.4, 1.4, 1.4, 1.4])],
            ["wfbp is fastest with 2 workers, single from 8 on."],
        ),
        (
            [mode("mgwfbp", STEPS), mode("single", [1.102, 1.2, 1.3, 1.4])],
            ["mgwfbp and single are fastest at every size."],
        ),
        ([mode("optimal", STEPS, [5, 3, 1, 1])], ["From 8 workers on one bucket is best."]),
        ([mode("optimal", STEPS, [1, 1, 1, 1])], ["At every size one bucket is best."]),
        (
            [mode("optimal", STEPS, [1, 1, 2, 4])],
            ["Up to 16 workers several buckets are best: optimal has 4 there."],
        ),
        (
            [mode("wfbp", [2.1, 3, 4, 5])],
            ["At every size even wfbp waits for gradients for more than half of the step."],
        ),
    ],
)
def test_what_is_said_of_modes_over_sizes(modes: list[list[ScalingPoint]], lines: list[str]) -> None:
    assert told(*modes) == lines


def test_from_some_size_on_even_the_fastest_mostly_waits() -> None:
    lines = told(mode("wfbp", [1.5, 3, 4, 5]), mode("single", [1.6, 1.9, 2.1, 3]))
    assert lines[-1] == "From 8 workers on even the fastest mode waits for gradients for more than half of the step."


def test_one_bucket_a_dtype_is_the_least() -> None:
    lines = told(mode("optimal", STEPS, [5, 2, 2, 2]), dtypes=2)
    assert lines == ["From 4 workers on one bucket a dtype is best."]


def test_one_bucket_is_best_where_nothing_is_faster_whatever_the_exact_plan_has() -> None:
    exact, single = mode("optimal", [1.1, 1.2, 1.5, 1.6]), mode("single", [1.4, 1.4, 1.4, 1.4], [1, 1, 1, 1])
    assert "From 8 workers on one bucket is best." in told(exact, single)
    found = mode("auto", [1.1, 1.2, 1.3, 1.3], [7, 6, 5, 3])
    assert "Up to 16 workers several buckets are best: auto has 3 there." in told(exact, single, found)
    near = mode("auto", [1.1, 1.2, 1.396, 1.396], [7, 6, 5, 3])  # half a percent is no difference
    assert "From 8 workers on one bucket is best." in told(exact, single, near)
    assert told(single) == []


def test_where_ddp_s_default_stops_being_good_enough() -> None:
    best = [1.0, 1.0, 1.0, 1.0]
    assert told(mode("mgwfbp", best), mode("ddp", [1.004, 1.008, 1.2, 1.5])) == [
        "mgwfbp is fastest at every size.",
        "DDP's default buckets are more than 1 % behind the fastest from 8 workers on, by 50 % with 16.",
    ]
    assert told(mode("mgwfbp", best), mode("ddp", [1.3, 1.2, 1.2, 1.2]))[1] == (
        "DDP's default buckets are more than 1 % behind the fastest at every size, by 30 % with 2."
    )
    assert told(mode("mgwfbp", best), mode("ddp", [1.0, 1.0, 1.0, 1.009]))[1] == (
        "DDP's default buckets are within 1 % of the fastest at every size."
    )
    assert told(mode("mgwfbp", best), mode("ddp", [1.0, 1.4, 1.0, 1.0]))[1] == (
        "DDP's default buckets are within 1 % of the fastest with 16 workers, and 40 % behind with 4."
    )
