"""`xbench converge` as a user types it: real ranks, real data, a short training."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from typed_commands import left_behind, xbench

from xbench.records import Convergence, load

NET = Path(__file__).parents[2] / "examples" / "digits_cnn.py"
HAS_SKLEARN = importlib.util.find_spec("sklearn") is not None


@pytest.mark.integration
@pytest.mark.skipif(not HAS_SKLEARN, reason="scikit-learn is not installed")
def test_modes_train_the_same_samples_and_the_synchronous_ones_the_same_network(tmp_path: Path) -> None:
    told = xbench("converge", f"{NET}:make", "--modes", "ddp,wfbp,spb,spb:variant=temporal,k=2,crossover", "--seeds",
                  "1", "--samples", "512", "--fabric", "local:ranks=2", results=tmp_path)  # fmt: skip
    assert told.returncode == 0, told.stderr
    (path,) = tmp_path.glob("*/record.json")
    record = load(path)
    assert isinstance(record, Convergence)
    assert record.complete
    assert record.training.steps == 8
    curves = {curve.mode: curve for curve in record.curves}
    assert all(len(curve.train_loss) == 8 for curve in curves.values())
    assert all(curve.ranks_agree for curve in curves.values())
    for mode in ("wfbp", "crossover"):
        assert curves[mode].train_loss == pytest.approx(curves["ddp"].train_loss, rel=1e-2), mode
    assert curves["spb"].train_loss[0] == pytest.approx(curves["ddp"].train_loss[0], rel=1e-4)
    whole = record.modes["ddp"]
    for mode in ("spb", "spb:variant=temporal,k=2"):
        part = record.modes[mode]
        assert part.activation_peak_bytes == pytest.approx(whole.activation_bytes, rel=0.05)
        assert part.activation_bytes < 0.95 * whole.activation_bytes
        assert part.backward_flops < 0.95 * whole.backward_flops
        assert part.activation_bytes == pytest.approx(part.formula.activation_bytes, rel=0.05)
        assert part.backward_flops == pytest.approx(part.formula.backward_flops, rel=0.05)
    assert not left_behind()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("transformer-tiny",), "the digits are images, and transformer-tiny takes none"),
        (("resnet18", "--modes", "ddp,compute"), "'compute' trains no network of its own"),
        (("resnet18", "--fabric", "local:ranks=1"), "one worker has nobody to average gradients with"),
        (("resnet18", "--fabric", "local:ranks=2", "--samples", "3"), "less than one batch"),
    ],
)
def test_what_cannot_be_trained_is_said_in_a_sentence(words: tuple[str, ...], said: str) -> None:
    told = xbench("converge", *words)
    assert told.returncode == 2
    assert said in told.stderr
    assert "Traceback" not in told.stderr
