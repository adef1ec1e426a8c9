"""Plans as Python code to paste into a training script.

A plan may come from a foreign record, so that every text becomes a string literal or a one-line comment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from xbench.errors import SpecError
from xbench.modes import mode_info
from xbench.planning.unit_plan import SEPARATOR
from xbench.records import Plan, Unit
from xbench.schedules import parse_mode
from xbench.spec import DeviceType, WorkloadSpec
from xbench.text import counted, visible
from xbench.units import format_seconds

_TUNED = "xbench.tune_host()  # as in the measurement: keeps freed memory, raises Gloo's threads where it may"

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}

_FIRST_COLLECTIVE = "torch.distributed.barrier()  # Gloo's threads begin with the first collective"

PLAIN_DDP = """\
# nothing to change: DistributedDataParallel's default is what was best
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model)
"""


def is_plain_ddp(plan: Plan) -> bool:
    """True if a plan of `auto` is DistributedDataParallel as it comes, so that its buckets are no argument."""
    carrier = mode_info(plan.carrier or plan.mode)
    return plan.carrier is not None and carrier.reducer == "ddp" and not carrier.takes_plan


def ddp_snippet(plan: Plan, caps_mib: Sequence[float], told: str | None = None, *, tuned: bool = False) -> str:
    """Return DistributedDataParallel with the caps [MiB] that make it form the plan's buckets.

    `told` replaces the prediction in the comment. With `tuned`, a line applies the host tuning of the measurement. It
    stands below, because Gloo's threads begin with the first collective, which DDP's constructor makes. Each number is
    written so that Python reads the same float again; DDP then computes the exact number of bytes.
    """
    return "\n".join(
        [
            f"{_comment(plan, told)}; DDP takes them from its second step on",
            *(["import xbench"] if tuned else []),
            "from torch.nn.parallel import DistributedDataParallel",
            "",
            "model = DistributedDataParallel(",
            "    model,",
            f"    bucket_cap_mb_list={list(map(float, caps_mib))!r},",
            ")",
            *([_TUNED] if tuned else []),
            "",
        ]
    )


def attach_snippet(
    plan: Plan,
    record: str | None = None,
    told: str | None = None,
    *,
    tuned: bool = False,
    workload: WorkloadSpec | None = None,
    device: DeviceType = "cpu",
) -> str:
    """Return `xbench.attach` around a training loop, with the buckets written out or with the record that holds them.

    `told` replaces the prediction in the comment. `tuned` is as in `ddp_snippet`. `workload` and `device` are those of
    the measured step, whose options the loop has.

    The code expects `model`, `optimizer`, `criterion` and `batches`, and an initialised process group. Schedules with
    an early update let gradients arrive until `optimizer.step()`, as the prediction assumes. DDP's gradients have
    arrived when backward returns. Parts of buckets and their order are written out too. Without a record, a plan of
    `auto` names the schedule that carries it. If that is DDP itself, the lines are those of DDP as it comes. Raises
    SpecError for a schedule that this xbench does not have.
    """
    if is_plain_ddp(plan):
        return PLAIN_DDP
    schedule = plan.mode if record is not None else plan.carrier or plan.mode
    if not is_schedule(schedule):
        raise SpecError(f"{schedule!r} is no schedule of this xbench, so there is no line for it")
    wait = ', wait="step"' if mode_info(plan.carrier or plan.mode).early_update else ""
    lines = ["import xbench", ""]
    source = ""
    if mode_info(plan.mode).takes_plan and record is not None:
        source = f", plan={record!r}"
    elif mode_info(plan.mode).takes_plan:
        lines += ["buckets = [", *(f"    {list(bucket)!r}," for bucket in plan.buckets), "]"]
        source = ", plan=buckets"
        if plan.parts is not None:
            lines.append(f"parts = {plan.parts.model_dump()!r}")
            source = ', plan={"buckets": buckets, "parts": parts}'
    attach = f"xbench.attach(model, optimizer, schedule={quoted(schedule)}{source}{wait})"
    spec = workload if workload is not None else WorkloadSpec(name="model")
    before = [f'scaler = torch.amp.GradScaler("{device}")'] if spec.amp == "fp16" else []
    body = _accumulated(spec, device) if spec.accumulate > 1 else [*_passes(spec, device), *_update(spec)]
    if spec.accumulate > 1:
        over = "for number, (inputs, targets) in enumerate(batches, start=1):"
    else:
        over, body = "for inputs, targets in batches:", ["optimizer.zero_grad()", *body]
    imports = ["import contextlib"] if spec.accumulate > 1 else []
    if any("torch." in line for line in [*before, *body]):
        imports.append("import torch")
    tuning = [_TUNED] if tuned else []
    loop = [*before, f"with {attach} as handle:", f"    {over}", *_indented(body, 2)]
    return "\n".join([_comment(plan, told), *imports, *lines, *tuning, *loop, ""])


def units_snippet(mode: str, units: Sequence[Unit], told: str, *, sums: bool, tuned: bool = False) -> str:
    """Return torch's own `fully_shard` around the units of a mode that plans them, the root last.

    The code expects `model` and an initialised process group. `sums`: torch sums and divides, as under Gloo. `tuned` is
    as in `ddp_snippet`.
    """
    paths = [unit.name.split(SEPARATOR) for unit in units if unit.name]
    force = [
        "for module in model.modules():",
        "    if isinstance(module, FSDPModule):",
        "        module.set_force_sum_reduction_for_comms(True)  # over Gloo, some versions of torch do not average",
    ]
    return "\n".join(
        [
            f"# {visible(f'{mode}: {told}')}",
            "# the optimizer takes model.parameters() after these lines",
            *(["import torch", "import xbench"] if tuned else []),
            f"from torch.distributed.fsdp import {'FSDPModule, ' if sums else ''}fully_shard",
            "",
            "units = [",
            *(f"    {unit!r}," for unit in paths),
            "]",
            "for unit in units:",
            "    fully_shard([model.get_submodule(path) for path in unit])",
            "fully_shard(model)",
            *(force if sums else []),
            *([_FIRST_COLLECTIVE, _TUNED] if tuned else []),
            "",
        ]
    )


def _comment(plan: Plan, told: str | None) -> str:
    buckets = counted(len(plan.buckets), "bucket")
    predicted = f"{buckets}, predicted {format_seconds(plan.predicted_step_s)} a step (simulated)"
    return f"# {visible(f'{plan.mode}: {told or predicted}')}"


def is_schedule(name: str) -> bool:
    """True if `xbench.attach` takes the name as `schedule`."""
    try:
        return not parse_mode(name.partition("@")[0]).paired
    except SpecError:
        return False


def quoted(text: str) -> str:
    """Return `text` as a Python string in double quotes. JSON's escapes mean the same in Python."""
    return json.dumps(visible(text), ensure_ascii=False)


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
