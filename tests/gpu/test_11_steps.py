"""Steps as people run them on a GPU: mixed precision, several micro-steps, compiled and sharded models, a loader."""

from __future__ import annotations

import pytest
import torch
from runs import DRY, ROOT, Keep, compared, errors, figures, middle, ratios

CLUSTER = "emulated:workers=4,rate=1gbit" if DRY else "emulated:workers=8,rate=25gbit"
EFFORT = ("--quick", "--rounds", "2") if DRY else ("--launches", "1", "--rounds", "4")
STEPS = {
    "bf16": ("resnet50", "--amp bf16 --accumulate 2 --clip 1.0 --optimizer adamw --optimizer-impl fused"),
    "fp16": ("gpt2-small", "--amp fp16 --checkpoint blocks --clip 1.0"),
}
SHARDED = "ddp,replicate,fsdp,zero1"
COMPILED = "compute,ddp,compute+compile,ddp+compile,fsdp+compile"


@pytest.mark.parametrize("kind", STEPS)
def test_options_of_a_step(kind: str, device: torch.device, keep: Keep, thorough: bool) -> None:
    if DRY and kind != "bf16" and not thorough:
        pytest.skip("on a CPU it is run by make test-all")
    workload, options = STEPS[kind]
    workload = "transformer-tiny" if DRY else workload
    record = compared(device.type, workload, CLUSTER, "compute,ddp,optimal", *options.split(), *EFFORT)
    found = figures(record)
    off = errors(found)
    keep(
        f"steps-{kind}", line=11, goal="median prediction error at most 3 %", held=middle(off) <= 0.03,
        finding=f"{workload} {options}: errors {', '.join(f'{value:.1%}' for value in off)}; of DDP's step: "
        + ratios(record, "compute", "optimal"), modes=found,
    )  # fmt: skip


@pytest.mark.skipif(DRY, reason="tests/integration/test_own_models.py runs this on a CPU")
def test_a_loader(device: torch.device, keep: Keep) -> None:
    record = compared(device.type, f"{ROOT}/examples/train_loader.py:make", CLUSTER, "compute,ddp,optimal", *EFFORT)
    found = figures(record)
    (job,) = record.jobs
    assert job.step.input_s > 0
    keep(
        "steps-loader", line=11, goal="the wait for batches is a part of the step", held=True,
        finding=f"a step without communication waits {job.step.input_s * 1e3:.2f} of "
        f"{job.step.uninstrumented_step_s * 1e3:.2f} ms; prediction errors "
        + ", ".join(f"{value:.1%}" for value in errors(found)), modes=found,
    )  # fmt: skip


@pytest.mark.skipif(DRY, reason="tests/integration/test_sharded.py and test_compiled_modes.py run this on a CPU")
@pytest.mark.parametrize(("kind", "modes"), [("sharded", SHARDED), ("compiled", COMPILED)])
def test_sharded_and_compiled(kind: str, modes: str, device: torch.device, keep: Keep) -> None:
    record = compared(device.type, "resnet18", "local:ranks=1", modes, *EFFORT, timeout_s=400)
    found = figures(record)
    gates = {name: mode.parity for name, mode in record.modes.items() if not name.startswith("compute")}
    assert all(gate is not None and gate.ok for gate in gates.values()), gates
    rivals = [name for name in found if name != "ddp"]
    peaks = {name: mode.memory.peak_bytes for name, mode in record.modes.items() if mode.memory is not None}
    keep(
        f"steps-{kind}", line=11, goal="every mode trains what DDP trains, one rank", held=True,
        finding=f"resnet18, of DDP's step: {ratios(record, *rivals)}", modes=found, peak_bytes=peaks,
    )  # fmt: skip
