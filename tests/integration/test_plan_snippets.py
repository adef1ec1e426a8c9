"""What `xbench plan` prints to paste, pasted: two real Gloo ranks train what DDP trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typed_commands import said_by_ranks

from xbench import cli
from xbench.planning.unit_plan import SEPARATOR
from xbench.records import Layer, Tensor, Unit, load, loads, save
from xbench.report.snippets import units_snippet
from xbench.schedules.ddp import supported

RANK = Path(__file__).parent / "ranks" / "paste_snippets.py"
GOLDEN = Path(__file__).parents[1] / "golden" / "profile-v1.json"


def record(path: Path, **step: Any) -> Path:
    """A profile of the ranks' model: seven layers, the last nearest the loss. `step`: options of its training step."""
    found = load(GOLDEN)
    layers = []
    for place, number in enumerate(range(6, -1, -1)):
        out = 8 if number == 6 else 64
        ready_s = 0.03 * (place + 1)
        tensors = [
            Tensor(name=f"{number}.{kind}", elements=count, bytes=4 * count, dtype="float32", ready_s=ready_s)
            for kind, count in (("bias", out), ("weight", 64 * out))
        ]
        layers.append(
            Layer(
                name=str(number), kind="Linear", parameters=65 * out, grad_bytes=260 * out, forward_s=0.01,
                backward_s=0.03, ready_s=ready_s, share=0.1, tensors=tensors,
            )
        )  # fmt: skip
    spec = found.workload.spec.model_copy(update=step)
    workload = found.workload.model_copy(update={"spec": spec})
    return save(found.model_copy(update={"layers": layers, "workload": workload}), path)


@pytest.mark.integration
@pytest.mark.skipif(not supported(), reason="this torch's DDP takes no list of caps")
def test_snippets_work_when_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = str(record(tmp_path / "profile.json"))
    kept = str(tmp_path / "kept.json")
    asked = {
        "python": ["--emit", "python", "--mode", "wfbp"],
        "file": ["--emit", "python", "--mode", "optimal", "--rate", "10gbit", "--json", kept],
        "ddp": ["--emit", "ddp"],
    }
    for name, words in asked.items():
        assert cli.main(["plan", profile, *words]) == 0
        (tmp_path / f"{name}.txt").write_text(capsys.readouterr().out)
    stepped = str(record(tmp_path / "stepped.json", accumulate=2, amp="bf16", clip=0.05))
    assert cli.main(["plan", stepped, "--emit", "python", "--mode", "optimal"]) == 0
    (tmp_path / "step.txt").write_text(capsys.readouterr().out)
    units = [Unit(name=SEPARATOR.join(paths), parameters=[]) for paths in (["0"], ["1", "2"], ["3", "4", "5"], [""])]
    (tmp_path / "units.txt").write_text(units_snippet("auto:shard", units, "4 units", sums=True, tuned=True))
    assert cli.main(["plan", profile, "--emit", "json", "--modes", "ddp-tuned"]) == 0
    tuned = loads(capsys.readouterr().out)
    bucket_bytes = tuned.plans["ddp-tuned"].bucket_bytes
    assert len(bucket_bytes) > 2
    outputs = said_by_ranks(2, RANK, str(tmp_path), store=tmp_path / "store")
    for output in outputs:
        for name in (*asked, "step", "units"):
            assert f"{name}: ok" in output, output[-3000:]
        assert f"DDP's buckets: {', '.join(map(str, bucket_bytes))}\n" in output
