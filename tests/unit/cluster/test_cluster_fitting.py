"""Fits of rings and loss curves, and `xbench cluster fit`: what a file of runs or losses says, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from cluster_cases import write
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench import cli
from xbench.cluster.fitting import LossCurve, RingRun, fit_loss, fit_ring, fitted_lines
from xbench.cluster.live.jobs_file import load_jobs
from xbench.cluster.speeds import RingSpeed, Theta
from xbench.cluster.traces import load_trace
from xbench.errors import SpecError

RING = (0.01, 0.002, 1e-9, 0.05)
NBYTES = 1e8
STEPS = tuple(range(0, 3000, 100))
THETAS = st.tuples(*(st.floats(low, high) for low, high in ((1e-4, 1e-1), (0, 1e-2), (0, 1e-8), (0, 1.0))))


def runs_of(theta: Theta, *batches: float) -> list[RingRun]:
    return [
        RingRun(gpus, batch, RingSpeed(theta, batch, NBYTES).step_s(gpus)) for batch in batches for gpus in (1, 2, 4, 8)
    ]


@given(THETAS)
def test_a_fit_to_a_ring_is_that_ring(theta: Theta) -> None:
    fit = fit_ring(runs_of(theta, 32.0, 128.0), NBYTES)
    assert fit.identified
    assert fit.residual < 1e-6
    truth, found = RingSpeed(theta, 256.0, NBYTES), fit.speed(256.0)
    for gpus in (1, 3, 16, 64):
        assert found.step_s(gpus) == pytest.approx(truth.step_s(gpus), rel=1e-4)


@given(THETAS)
def test_runs_of_one_batch_foretell_that_batch_and_no_other(theta: Theta) -> None:
    fit = fit_ring(runs_of(theta, 128.0), NBYTES)
    assert not fit.identified
    truth = RingSpeed(theta, 128.0, NBYTES)
    for gpus in (1, 3, 16):
        assert fit.speed(128.0).step_s(gpus) == pytest.approx(truth.step_s(gpus), rel=1e-4)
    with pytest.raises(SpecError, match="say nothing of batch 64"):
        fit.speed(64.0)


def test_the_held_out_error_is_that_of_each_run_foretold_by_the_others() -> None:
    runs = runs_of(RING, 32.0, 128.0)
    runs[3] = runs[3]._replace(step_s=2 * runs[3].step_s)
    fit = fit_ring(runs, NBYTES)
    without = fit_ring([*runs[:3], *runs[4:]], NBYTES)
    assert fit.held_out[3] == pytest.approx(without.speed(32.0).step_s(8) / runs[3].step_s - 1)
    assert fit.held_out[3] == pytest.approx(-0.5, abs=1e-3)
    assert fit.held_out_error > fit.residual > 0.1
    assert fit.residuals[3] == pytest.approx(fit.speed(32.0).step_s(8) / runs[3].step_s - 1)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "on no GPUs"),
        ([RingRun(1, 8, 1.0), RingRun(2, 8, 1.0), RingRun(2, 16, 1.0)], "1 and 2 GPUs do not make a ring"),
        ([RingRun(1, 8, 1.0), RingRun(2, 8, 0.0), RingRun(4, 8, 1.0)], "step_s = 0.0"),
        ([RingRun(1, 8, math.inf), RingRun(2, 8, 1.0), RingRun(4, 8, 1.0)], "step_s = inf"),
        ([RingRun(1, math.nan, 1.0), RingRun(2, 8, 1.0), RingRun(4, 8, 1.0)], "batch = nan"),
        ([RingRun(0, 8, 1.0), RingRun(2, 8, 1.0), RingRun(4, 8, 1.0)], "on 0 GPUs"),
        ([RingRun(2, 8, 1.0), RingRun(3, 8, 2.0), RingRun(5, 8, 4.0)], "without any time"),
    ],
)
def test_runs_that_make_no_ring_are_refused(runs: list[RingRun], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        fit_ring(runs, 1.0)


def test_a_step_of_the_smallest_batch_on_one_gpu_has_to_take_time() -> None:
    """w GPUs take 10⁻¹² s a sample over w, and w − 1 s: on one GPU, 1 s for 10¹² samples and nothing for one."""
    runs = [RingRun(gpus, batch, batch * 1e-12 / gpus + gpus - 1) for batch in (1.0, 1e12) for gpus in (2, 3, 5)]
    assert fit_ring(runs[3:], 0.0).speed(1e12).step_s(1) == pytest.approx(1.0)
    with pytest.raises(SpecError, match="leaves a step on one GPU without any time"):
        fit_ring(runs, 0.0)


@settings.get_profile("few")
@given(st.floats(1e-4, 1e-1), st.floats(0.05, 2.0), st.floats(0.0, 1.0))
def test_a_fit_to_a_curve_is_that_curve(slope: float, start: float, floor: float) -> None:
    truth = LossCurve((slope, start, floor))
    fit = fit_loss(STEPS[::-1], [truth(step) for step in STEPS[::-1]])  # in any order
    assert fit.points == len(STEPS)
    assert fit.residual < 1e-3
    assert fit.held_out_error < 2e-2
    for step in (50, 1234, 2900):
        assert fit.curve(step) == pytest.approx(truth(step), rel=5e-3)


@given(st.floats(1e-6, 1.0), st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.floats(1e-3, 10))
def test_the_curve_is_at_its_target_after_the_steps_to_it(slope: float, start: float, floor: float, up: float) -> None:
    curve = LossCurve((slope, start, floor))
    step = curve.steps_to(floor + up)
    assert curve(step) <= (floor + up) * (1 + 1e-6)
    if step > 0:
        assert curve(step) == pytest.approx(floor + up, rel=1e-5)


@pytest.mark.parametrize("target", [0.25, 0.1, -1.0, math.nan])
def test_a_loss_below_what_the_curve_tends_to_is_never_reached(target: float) -> None:
    with pytest.raises(SpecError, match=r"is never reached: the curve tends to 0\.25"):
        LossCurve((0.001, 0.5, 0.25)).steps_to(target)


def test_a_flat_curve_reaches_nothing_lower() -> None:
    fit = fit_loss(STEPS, [2.0] * len(STEPS))
    assert fit.curve(10**6) == pytest.approx(2.0)
    with pytest.raises(SpecError, match="never reached"):
        fit.curve.steps_to(1.9)


def test_losses_that_do_not_fall_are_their_mean() -> None:
    curve = fit_loss(range(6), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).curve
    assert [curve(step) for step in (0, 100)] == pytest.approx([3.5, 3.5])


def test_losses_without_a_falling_curve_are_their_mean_too() -> None:
    """The first loss is as low as the last, so the line of 1/loss begins at 0, where a curve has no value."""
    losses = [1.0, 6.0, 2.1, 1.5, 1.2, 1.0, 0.9]
    curve = fit_loss(range(0, 70, 10), losses).curve
    assert curve(0) == curve(60) == pytest.approx(sum(losses) / 7)


def test_noise_moves_the_end_little_and_is_in_the_residual() -> None:
    truth = LossCurve((0.002, 0.4, 0.3))
    noise = np.random.default_rng(1).normal(1.0, 0.02, len(STEPS))
    fit = fit_loss(STEPS, [truth(step) * share for step, share in zip(STEPS, noise, strict=True)])
    assert 0.005 < fit.residual < 0.03
    assert fit.curve.steps_to(0.5) == pytest.approx(truth.steps_to(0.5), rel=0.2)


def test_a_loss_that_falls_in_steps_shows_in_the_held_out_error() -> None:
    fit = fit_loss(STEPS, [2.0 - 1.5 * (step > 2000) - step * 1e-5 for step in STEPS])
    assert fit.held_out_error > 0.5


@pytest.mark.parametrize(
    ("steps", "losses", "said"),
    [
        ([1, 2, 3], [1.0, 1.0], "3 steps and 2 losses"),
        ([1, 2, 3, 4, 5, 5], [1.0] * 6, "5 different steps"),
        ([-1, 2, 3, 4, 5, 6], [1.0] * 6, "after -1 steps"),
        ([1, 2, 3, 4, 5, 6], [1.0, 1.0, 0.0, 1.0, 1.0, 1.0], "after 3 steps is 0.0"),
        ([1, 2, 3, 4, 5, 6], [1.0, math.nan, 1.0, 1.0, 1.0, 1.0], "after 2 steps is nan"),
    ],
)
def test_losses_that_make_no_curve_are_refused(steps: list[float], losses: list[float], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        fit_loss(steps, losses)


@pytest.mark.parametrize("beta", [(-1.0, 1.0, 0.0), (math.inf, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_what_is_no_curve_is_refused(beta: tuple[float, float, float]) -> None:
    with pytest.raises(SpecError, match="loss curve"):
        LossCurve(beta)


def runs(folder: Path, *batches: int) -> Path:
    rows = [f"{gpus},{batch},{step_s!r}" for gpus, batch, step_s in runs_of(RING, *batches)]
    return write(folder / "runs.csv", "gpus,batch,step_s", *rows)


def losses(folder: Path) -> Path:
    curve = LossCurve((0.01, 0.5, 0.2))
    return write(folder / "losses.csv", "step,loss", *(f"{step},{curve(step)!r}" for step in range(0, 600, 20)))


def test_a_ring_is_found_and_can_be_pasted(tmp_path: Path) -> None:
    lines = fitted_lines(runs(tmp_path, 64, 128), NBYTES)
    assert lines[0] == "A ring fits 8 runs within 0.0 %; each run predicted from the others is off by 0.0 % at most."
    assert "ring = { theta = [0.01, 0.002, 1e-09, 0.05], model_bytes = 100000000 }   # in a jobs.toml" in lines
    assert "     4        64    291 ms    291 ms     +0.0%     +0.0%" in lines
    (pasted,) = (line for line in lines if line.startswith("ring = "))
    job = f'[[job]]\nname = "a"\nworkload = "resnet18"\nsteps = 9\nbatch_size = 64\n{pasted}\n'
    path = tmp_path / "jobs.toml"
    path.write_text(job, encoding="utf-8")
    speed = load_jobs(path).jobs[0].speed
    assert speed is not None
    assert speed(4) == pytest.approx(RingSpeed(RING, 64, NBYTES)(4))
    header = lines.index("speed_1,speed_2,speed_4,speed_8   # in a CSV of jobs, batch 128")
    names = lines[header].partition(" ")[0]
    path = write(tmp_path / "jobs.csv", f"name,arrival_s,gpus,work,{names}", f"a,0,4,100,{lines[header + 1]}")
    assert load_trace(str(path)).jobs[0].speed(4) == pytest.approx(RingSpeed(RING, 128, NBYTES)(4), rel=1e-5)
    assert fitted_lines(runs(tmp_path, 64), NBYTES)[1].startswith("Other θ fit as well")


def test_a_loss_is_reached_and_can_be_pasted(tmp_path: Path) -> None:
    """1/(0.01·k + 0.5) + 0.2 = 0.25 after 1950 steps, and the last loss is that after 580."""
    lines = fitted_lines(losses(tmp_path), target=0.25)
    assert lines[0].startswith("1/(0.01·k + 0.5) + 0.2 fits 30 losses within 0.0 %")
    assert lines[1] == "A loss of 0.25 is reached after 1950 steps, 1370 after the last of them."
    names = lines[3].partition(" ")[0]
    path = write(tmp_path / "jobs.csv", f"name,arrival_s,gpus,{names},speed_1", f"a,0,1,{lines[4]},2")
    assert load_trace(str(path)).jobs[0].work == pytest.approx(1950, rel=1e-4)
    assert fitted_lines(losses(tmp_path))[1].startswith("It tends to 0.2;")
    assert (
        fitted_lines(losses(tmp_path), target=0.7)[1] == "A loss of 0.7 is reached after 150 steps, and is among them."
    )


@pytest.mark.parametrize(
    ("header", "row", "model_bytes", "target", "said", "hint"),
    [
        ("gpus,batch,step_s", "1,8,1", None, None, "needs the bytes", "--model-bytes 97.5MiB"),
        ("gpus,batch,step_s", "1,8,1", 1.0, 0.5, "--target is for losses", "leave it out"),
        ("gpus,batch,step_s", "1,8,-1", 1.0, None, "row 2: step_s '-1' is not above zero", None),
        ("gpus,batch,step_s", "1,8", 1.0, None, "row 2", None),
        ("gpus,batch", "1,8", 1.0, None, "no column 'step_s'", "it takes gpus,batch,step_s"),
        ("step,loss", "1,8", 1.0, None, "--model-bytes is for runs", "leave it out"),
        ("step,loss", "1,x", None, None, "row 2: loss 'x' is not a number", None),
        ("step,loss", "1,1", None, None, "different steps do not determine a curve", "give at least 6"),
        ("step,gpus", "1,1", None, None, "both runs and losses", "runs: gpus,batch,step_s; losses: step,loss"),
        ("steps,loss", "1,1", None, None, "'steps'", None),
    ],
)
def test_what_makes_no_sense(
    tmp_path: Path, header: str, row: str, model_bytes: float | None, target: float | None, said: str, hint: str | None
) -> None:
    with pytest.raises(SpecError) as raised:
        fitted_lines(write(tmp_path / "my.csv", header, row), model_bytes, target)
    assert said in str(raised.value)
    assert hint is None or raised.value.hint == hint


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", "fit", str(losses(tmp_path)), "--target", "0.25"]) == 0
    assert "reached after 1950 steps" in capfd.readouterr().out
    assert cli.main(["cluster", "fit", str(runs(tmp_path, 8)), "--model-bytes", "much"]) == 2
    assert "--model-bytes" in capfd.readouterr().err
    assert cli.main(["cluster", "fit", str(tmp_path / "none.csv")]) == 2
