"""`xbench cluster fit`: what a file of runs or of losses says, and what makes no sense."""

from pathlib import Path

import pytest
from sample_traces import write

from xbench import cli
from xbench.cluster.fitting import fitted_lines
from xbench.cluster.live.jobs_file import load_jobs
from xbench.cluster.loss_curve import LossCurve
from xbench.cluster.speeds import RingSpeed
from xbench.cluster.traces import load_trace
from xbench.errors import SpecError

RING = (0.01, 0.002, 1e-9, 0.05)
NBYTES = 1e8


def runs(folder: Path, *batches: int) -> Path:
    steps = [(gpus, batch, RingSpeed(RING, batch, NBYTES).step_s(gpus)) for batch in batches for gpus in (1, 2, 4, 8)]
    rows = [f"{gpus},{batch},{step_s!r}" for gpus, batch, step_s in steps]
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


def test_speeds_can_be_pasted_into_a_csv(tmp_path: Path) -> None:
    lines = fitted_lines(runs(tmp_path, 64, 128), NBYTES)
    header = lines.index("speed_1,speed_2,speed_4,speed_8   # in a CSV of jobs, batch 128")
    names = lines[header].partition(" ")[0]
    path = write(tmp_path / "jobs.csv", f"name,arrival_s,gpus,work,{names}", f"a,0,4,100,{lines[header + 1]}")
    assert load_trace(str(path)).jobs[0].speed(4) == pytest.approx(RingSpeed(RING, 128, NBYTES)(4), rel=1e-5)


def test_one_batch_says_nothing_of_others(tmp_path: Path) -> None:
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
