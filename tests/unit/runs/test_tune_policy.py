"""The launches of a tuned run, on a clock of its own: what is timed, what is left out, and when it ends."""

from __future__ import annotations

import pytest
from samples_of_runs import Clock, block, collector_of, run_of

from xbench.errors import SpecError
from xbench.rank.program import JobPlan
from xbench.records import Plan
from xbench.runs.launch_policy import FixedLaunches, LaunchSpec
from xbench.runs.tune import Tune
from xbench.spec import FabricSpec

MODES = "compute,ddp,auto,ddp-tuned,optimal,mgwfbp,single"
STEP_S = {"compute": 0.4, "ddp": 0.65, "auto": 0.55, "ddp-tuned": 0.6, "optimal": 0.58, "mgwfbp": 0.6, "single": 0.9}


class World:
    """Ranks that take exactly what `step_s` says, 12 s to start, and 0.3 s around each block."""

    def __init__(self, minutes: float, step_s: dict[str, float], predicted_s: dict[str, float] = STEP_S) -> None:
        self.clock = Clock()
        self.step_s = step_s
        self.run = run_of(MODES, reference="ddp")
        self.found = collector_of(self.run)
        self.policy = Tune(60 * minutes, 0.01, self.clock)
        self.launches: list[LaunchSpec] = []
        self.policy.check(self.run)
        made = {mode: plan_of(mode, predicted_s[mode]) for mode in predicted_s}
        self.found.jobs[0].plans = made
        self.plans = JobPlan(
            buckets={mode: plan.buckets for mode, plan in made.items()}, step_s=predicted_s, exposed_s={}, link_s={},
            compute_s=0.4,
        )  # fmt: skip

    def go(self, profile_s: float = 60.0) -> list[tuple[tuple[str, ...], int]]:
        """Run to the end: the modes of each timed launch, in the order of the spec, and its steps a block."""
        number = 0
        while (launch := self.policy.next_launch(number, self.found, [self.plans])) is not None:
            self.launches.append(launch)
            self.found.begin_launch(number)
            if number == 0:
                self.clock.now_s += profile_s
            else:
                self.clock.now_s += 12.0
                for position, phase in enumerate(launch.phases):
                    self.block(launch, phase.mode, phase.round, position)
            number += 1
            assert number < 50
        return [
            (
                tuple(m.text for m in self.run.modes if m.text in {p.mode for p in launch.phases}),
                launch.run.effort.steps or 0,
            )
            for launch in self.launches[1:]
        ]

    def block(self, launch: LaunchSpec, mode: str, turn: int, position: int) -> None:
        noise = 1 + 0.002 * ((7 * turn + 3 * position + self.found.launch) % 5 - 2)
        stamps = [self.clock.now_s]
        for _ in range(2 + (launch.run.effort.steps or 0)):
            stamps.append(stamps[-1] + noise * self.step_s[mode])
        for rank in range(2):
            self.found.take(0, rank, block(mode, stamps, turn, position=position, warmup=2))
        self.clock.now_s = stamps[-1] + 0.3

    @property
    def spent_s(self) -> float:
        return self.clock.now_s - 100.0


def plan_of(mode: str, step_s: float) -> Plan:
    names = [["a", "b"], ["c"]] if mode == "ddp" else [[f"{mode}"], ["rest"]]
    return Plan(mode=mode, buckets=names, bucket_bytes=[8, 8], predicted_step_s=step_s, predicted_exposed_s=0.1)


def test_the_first_launch_profiles_and_gates_and_times_nothing() -> None:
    world = World(10, STEP_S)
    launch = world.policy.next_launch(0, world.found, [])
    assert [(phase.kind, phase.mode) for phase in launch.phases] == [
        ("profile", ""),
        *(("parity", mode) for mode in MODES.split(",")[1:]),
    ]


def test_what_is_predicted_far_behind_is_set_aside_and_the_rest_is_timed_until_it_is_settled() -> None:
    world = World(10, STEP_S)
    timed = world.go()
    assert timed[0] == (("compute", "ddp", "auto", "ddp-tuned", "optimal", "mgwfbp"), 5)
    assert timed[1:] == [(("ddp", "auto"), 5)]  # 0.55 is 5 % better than the next, and the control is known
    (warning,) = world.policy.warnings
    assert warning.startswith("single was not timed: its predicted step is 64 % above")
    ran = world.policy.ran(world.run)
    assert [mode.text for mode in ran.modes] == ["compute", "ddp", "auto", "ddp-tuned", "optimal", "mgwfbp"]
    assert ran.effort.launches == 2
    assert world.spent_s < 600


def test_candidates_with_the_same_buckets_are_timed_once() -> None:
    world = World(10, STEP_S)
    plans = world.found.jobs[0].plans
    plans["optimal"] = plans["optimal"].model_copy(update={"buckets": plans["auto"].buckets})
    plans["ddp-tuned"] = plans["ddp-tuned"].model_copy(update={"buckets": plans["ddp"].buckets})
    plans["mgwfbp"] = plans["mgwfbp"].model_copy(update={"buckets": plans["ddp"].buckets})  # on another reducer
    assert world.go()[0][0] == ("compute", "ddp", "auto", "mgwfbp")
    assert world.policy.warnings[:2] == [
        "ddp-tuned was not timed: it forms the buckets of ddp",
        "optimal was not timed: it forms the buckets of auto",
    ]


def test_auto_that_is_ddp_itself_is_said_to_have_its_times() -> None:
    world = World(10, STEP_S)
    plans = world.found.jobs[0].plans
    plans["auto"] = plans["auto"].model_copy(update={"buckets": plans["ddp"].buckets, "carrier": "ddp"})
    assert world.go()[0][0] == ("compute", "ddp", "ddp-tuned", "optimal", "mgwfbp")
    assert world.policy.warnings[0].startswith("auto is ddp itself here")
    assert not any("auto was not timed" in told for told in world.policy.warnings)


def test_a_candidate_with_the_buckets_of_one_that_is_set_aside_is_timed() -> None:
    world = World(10, STEP_S, STEP_S | {"auto": 0.9})
    plans = world.found.jobs[0].plans
    plans["optimal"] = plans["optimal"].model_copy(update={"buckets": plans["auto"].buckets})
    assert world.go()[0][0] == ("compute", "ddp", "ddp-tuned", "optimal", "mgwfbp")


def test_where_every_candidate_has_ddps_buckets_one_is_timed_all_the_same() -> None:
    world = World(10, dict.fromkeys(STEP_S, 0.6))
    plans = world.found.jobs[0].plans
    for mode in ("auto", "optimal", "mgwfbp", "single"):
        del plans[mode]
    plans["ddp-tuned"] = plans["ddp-tuned"].model_copy(update={"buckets": plans["ddp"].buckets})
    assert world.go()[0][0] == ("compute", "ddp", "ddp-tuned")
    assert world.policy.warnings == []


@pytest.mark.parametrize(
    ("minutes", "slower", "auto_s"), [(20, 0.4, 0.55), (20, 3.0, 0.55), (12, 3.0, 0.65)], ids=["fast", "slow", "equal"]
)
def test_steps_unlike_their_prediction_are_learnt_once(minutes: float, slower: float, auto_s: float) -> None:
    took_s = {mode: slower * step_s for mode, step_s in (STEP_S | {"auto": auto_s}).items()}
    world = World(minutes, took_s)
    assert len(world.go()) >= 2
    assert world.policy._slower == pytest.approx(1.0, abs=0.1)
    assert world.spent_s <= 60 * minutes * 1.02


def test_when_ddp_is_best_it_ends_early() -> None:
    world = World(30, STEP_S | dict.fromkeys(("auto", "ddp-tuned", "optimal", "mgwfbp"), 0.75))
    assert len(world.go()) == 2
    assert world.spent_s < 600


def test_an_equal_race_ends_with_the_minutes_and_never_a_launch_beyond_them() -> None:
    world = World(6, dict.fromkeys(STEP_S, 0.6))
    assert len(world.go()) >= 2
    assert world.spent_s <= 360 * 1.02  # predicted lengths are those of real blocks but for the noise


@pytest.mark.parametrize("minutes", [0.25, 0.5, 1.0, 2.0, 3.0])
def test_short_minutes_make_blocks_shorter_and_candidates_fewer_but_one_launch_runs(minutes: float) -> None:
    world = World(minutes, STEP_S)
    timed = world.go()
    assert len(timed) >= 1
    modes, steps = timed[0]
    assert {"ddp", "auto"} <= set(modes)  # the best predicted is the last to go
    least_s = 60 + 12 + 4 * 2 * (0.3 + 4 * 0.65)
    assert world.spent_s <= max(60 * minutes * 1.02, least_s)
    if minutes < 1:
        assert (modes, steps) == (("ddp", "auto"), 2)
        assert "mgwfbp was not timed: the minutes did not suffice" in world.policy.warnings


def test_candidates_that_fail_the_gate_take_no_part() -> None:
    world = World(10, STEP_S)
    world.found.failed = {"auto": "sparse gradients", "mgwfbp": "no"}
    assert world.go()[0][0] == ("compute", "ddp", "ddp-tuned", "optimal")
    assert [mode.text for mode in world.policy.ran(world.run).modes] == [*MODES.split(",")[:6]]
    none = World(10, STEP_S)
    none.found.failed = dict.fromkeys(("auto", "ddp-tuned", "optimal", "mgwfbp", "single"), "no")
    assert none.go() == []
    assert none.policy.ran(none.run) == none.run


def test_one_rank_has_nothing_to_tune() -> None:
    world = World(1, STEP_S)
    with pytest.raises(SpecError, match="local:ranks=1 has 1 rank"):
        world.policy.check(world.run.model_copy(update={"fabric": FabricSpec(name="local", ranks=1)}))


def test_a_fixed_course_is_the_effort() -> None:
    world = World(1, STEP_S)
    policy = FixedLaunches(world.run)
    launches = [policy.next_launch(number, world.found, []) for number in range(3)]
    assert [launch is not None for launch in launches] == [True, True, False]
    assert policy.ran(world.run) is world.run
    profile = FixedLaunches(world.run.model_copy(update={"kind": "profile"}))
    assert profile.next_launch(0, world.found, []) is not None
    assert profile.next_launch(1, world.found, []) is None
