"""A training script given in place of a factory: what it lacks, and how its step differs from the measured one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from xbench import cli
from xbench.errors import SpecError, WorkloadError
from xbench.spec import WorkloadSpec
from xbench.workloads import parse_workload, preflight
from xbench.workloads.build import build
from xbench.workloads.user_script import FACTORY, differing

SCRIPT = """
import torch
import torch.distributed as dist

raise SystemExit("imported")

def main(steps=3):
    def rate(step):
        return 1 / (1 + step)

    dist.init_process_group("gloo")
    model = torch.nn.Linear(3, 2)
    for _ in range(steps):
        model(torch.randn(4, 3)).sum().backward()
"""


LINES = "\n".join(FACTORY)
WITH_MODEL = f"""
import torch
from torch import nn

def MyModel():
    return nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(588, 1000))

{LINES}

"""


def refused(file: Path, name: str) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        build(parse_workload(f"{file}:{name}"), torch.device("cpu"))
    return caught.value


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def test_a_script_without_a_factory_gets_its_lines_and_is_not_run(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = refused(script, "make")
    assert "'make' does not exist in train.py" in str(missing)
    assert "train.py:make" in (missing.hint or "")
    assert tuple(missing.lines) == FACTORY
    main = refused(script, "main")
    assert "'main' returns nothing" in str(main)
    assert tuple(main.lines) == FACTORY
    assert len(FACTORY) == 4
    assert cli.main(["compare", str(script)]) == 2
    assert capsys.readouterr().err.endswith("".join(f"\n    {line}" for line in FACTORY) + "\n")


def test_the_lines_of_a_factory_are_one(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(WITH_MODEL)
    assert build(parse_workload(f"{file}:make"), torch.device("cpu")).batch_size == 8


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (SCRIPT, "train.py:make"),
        ("def data():\n    return 1\ndef made():\n    return net, (x, y), loss\n", "train.py:made"),
        ("def data():\n    return 1\n", "train.py:make"),
        ("def f(:", "train.py:make"),
    ],
)
def test_a_file_alone_is_told_its_factory_or_the_lines_of_one(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(SpecError, match="does not name a factory") as caught:
        parse_workload(str(tmp_path / "train.py"))
    assert hint in (caught.value.hint or "")
    assert bool(caught.value.lines) == (hint == "train.py:make")


def test_a_file_that_cannot_be_read_is_named(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert f"{str(script)!r} cannot be read: Permission denied" in str(refused(script, "make"))
    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(SpecError, match=r"train\.py' cannot be read: permission denied"):
        parse_workload(f"{script}:make")


ADAMW = "torch.optim.AdamW(p, lr=1e-3)\n"


@pytest.mark.parametrize(
    ("lines", "options", "told"),
    [
        ("SGD(p, lr=0.1)\n", {}, None),
        (ADAMW, {"optimizer": "adamw"}, None),
        (ADAMW, {}, "uses AdamW, and this run measures sgd: --optimizer adamw"),
        ("import torch.optim as optim\noptim.Adam(p)\n", {}, "uses Adam, and this run measures sgd: --optimizer adamw"),
        (f"{ADAMW}torch.optim.SGD(p)\n", {}, None),  # which one is not certain
        (
            f"{ADAMW}CLIP = 1.0\ntorch.autocast('cuda', dtype=torch.bfloat16)\nclip_grad_norm_(p, CLIP)\n",
            {},
            "uses AdamW, autocast bf16 and clipping at 1, and this run measures sgd, fp32 and no clipping: "
            "--optimizer adamw --amp bf16 --clip 1",
        ),
        ("torch.autocast('cuda', torch.float16)\n", {}, "autocast fp16, and this run measures fp32: --amp fp16"),
        ("torch.autocast('cuda')\nautocast('cuda', torch.half, enabled=amp)\n", {}, None),
        ("clip_grad_norm_(p, max_norm=0.5)\n", {"clip": 1.0}, "clipping at 0.5, and this run measures 1: --clip 0.5"),
        ("clip_grad_norm_(p, args.clip)\n", {}, None),
    ],
)
def test_a_step_unlike_that_of_its_script_is_told(
    tmp_path: Path, lines: str, options: dict[str, object], told: str | None
) -> None:
    (tmp_path / "train.py").write_text(lines)
    said = differing(tmp_path / "train.py", WorkloadSpec(name="train.py:make", **options))
    assert (said or "").endswith(told or "")
    assert (said is None) == (told is None)


def test_the_check_before_the_start_tells_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{WITH_MODEL}def main(p):\n    {ADAMW}")
    tried = preflight.examine_one(parse_workload(f"{tmp_path / 'train.py'}:make"), torch.device("cpu"))
    assert any("--optimizer adamw" in one for one in tried.warnings)
