"""Lines of a training loop under `xbench.attach`, with the training step that was measured.

Accumulation, autocast, a GradScaler and clipping stand in the loop as `workloads.training_step` runs them.
"""

from __future__ import annotations

from xbench.spec import DeviceType, WorkloadSpec

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def loop_lines(attach: str, spec: WorkloadSpec | None, device: DeviceType) -> tuple[list[str], list[str]]:
    """Return the imports and the lines of a loop in the context `attach`, the call of `xbench.attach`.

    The code expects `criterion` and `batches`, besides what `attach` uses. `spec` is the workload with the options of
    its step; None is a step without options. `device`: 'cpu' or 'cuda'.
    """
    if spec is None:
        spec = WorkloadSpec(name="model")
    before = [f'scaler = torch.amp.GradScaler("{device}")'] if spec.amp == "fp16" else []
    body = _accumulated(spec, device) if spec.accumulate > 1 else [*_passes(spec, device), *_update(spec)]
    if spec.accumulate > 1:
        over = "for number, (inputs, targets) in enumerate(batches, start=1):"
    else:
        over, body = "for inputs, targets in batches:", ["optimizer.zero_grad()", *body]
    lines = [*before, f"with {attach} as handle:", f"    {over}", *_indented(body, 2)]
    imports = ["import contextlib"] if spec.accumulate > 1 else []
    if any("torch." in line for line in [*before, *body]):
        imports.append("import torch")
    return imports, lines


def _passes(spec: WorkloadSpec, device: DeviceType) -> list[str]:
    """Return the forward and the backward pass of a batch."""
    share = f" / {spec.accumulate}" if spec.accumulate > 1 else ""
    forward = [f"loss = criterion(handle.model(inputs), targets){share}"]
    if spec.amp is not None:
        forward = [f'with torch.autocast("{device}", dtype=torch.{_DTYPES[spec.amp]}):', *_indented(forward, 1)]
    return [*forward, "scaler.scale(loss).backward()" if spec.amp == "fp16" else "loss.backward()"]


def _update(spec: WorkloadSpec) -> list[str]:
    """Return the update, with whatever reads gradients before it."""
    if spec.amp != "fp16" and spec.clip is None:
        return ["optimizer.step()"]
    lines = ["handle.synchronize()  # gradients have arrived before anything reads them"]
    if spec.clip is not None:
        lines += ["scaler.unscale_(optimizer)"] if spec.amp == "fp16" else []
        lines.append(f"torch.nn.utils.clip_grad_norm_(handle.model.parameters(), {spec.clip!r})")
    return [*lines, *(["scaler.step(optimizer)", "scaler.update()"] if spec.amp == "fp16" else ["optimizer.step()"])]


def _accumulated(spec: WorkloadSpec, device: DeviceType) -> list[str]:
    """Return the passes of a batch, and the update after the last one of a step."""
    return [
        f"sends = number % {spec.accumulate} == 0",
        "with contextlib.nullcontext() if sends else handle.no_sync():",
        *_indented(_passes(spec, device), 1),
        "if sends:",
        *_indented([*_update(spec), "optimizer.zero_grad()"], 1),
    ]


def _indented(lines: list[str], depth: int) -> list[str]:
    return [f"{'    ' * depth}{line}" for line in lines]
