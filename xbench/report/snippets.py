"""Plans as Python to paste into a training script.

A plan may come from a stranger's record, so every text goes in as a string literal, or into a comment as one line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from xbench.characters import visible
from xbench.errors import SpecError
from xbench.planning.plans import EARLY_UPDATE
from xbench.records import FabricRecord, Plan
from xbench.schedules import parse_mode
from xbench.sockets import polling
from xbench.units import format_seconds

BUCKETS_OF_THEIR_OWN = frozenset({"ddp", "compute"})
"""Modes that take no plan."""

_SOCKETS = "group = xbench.new_socket_group({})  # as in the measurement: beside Gloo's, for gradients\n"
_TUNED = "xbench.tune_host()  # as in the measurement: keeps freed memory, raises Gloo's threads where it may\n"


def ddp_snippet(
    plan: Plan,
    caps_mib: Sequence[float],
    told: str | None = None,
    fabric: FabricRecord | None = None,
    *,
    tuned: bool = False,
) -> str:
    """DistributedDataParallel with the caps [MiB] that make it form the plan's buckets.

    `told` takes the place of the prediction in the comment. Where ranks were `tuned`, a line does the same; a process
    group is made where sockets carried on the measured `fabric`. Numbers are written so that Python reads the same
    float again, and DDP makes exact bytes of it.
    """
    conditions = _conditions(fabric, tuned)
    caps = ", ".join(repr(float(cap)) for cap in caps_mib)
    return (
        f"# {visible(f'{plan.mode}: {told or _told(plan)}')}; DDP takes them from its second step on\n"
        + ("import xbench\n" if conditions else "")
        + "from torch.nn.parallel import DistributedDataParallel\n"
        "\n" + conditions + "model = DistributedDataParallel(\n"
        "    model,\n"
        + ("    process_group=group,\n" if _by_sockets(fabric) else "")
        + f"    bucket_cap_mb_list=[{caps}],\n"
        ")\n"
    )


def attach_snippet(
    plan: Plan,
    record: str | None = None,
    told: str | None = None,
    fabric: FabricRecord | None = None,
    *,
    tuned: bool = False,
) -> str:
    """`xbench.attach` around a training loop, with the buckets written out, or with the record that holds them.

    `told` takes the place of the prediction in the comment. `fabric` and `tuned` are as in `ddp_snippet`.

    It expects `model`, `optimizer`, `criterion` and `batches`, and an initialised process group. On our own engine the
    gradients may travel until `optimizer.step()`, as the prediction says; DDP's have arrived when backward returns.
    Parts of buckets, and their order, are written out too. A plan of `auto` that another schedule carries names that
    schedule, unless the record does. Raises SpecError for a schedule that this xbench does not have.
    """
    schedule = plan.mode if record is not None else plan.carrier or plan.mode
    if not is_schedule(schedule):
        raise SpecError(f"{schedule!r} is no schedule of this xbench, so there is no line for it")
    wait = ', wait="step"' if (plan.carrier or plan.mode) in EARLY_UPDATE else ""
    group = ", process_group=group" if _by_sockets(fabric) else ""
    lines = [f"# {visible(f'{plan.mode}: {told or _told(plan)}')}", "import xbench", ""]
    source = ""
    if plan.mode not in BUCKETS_OF_THEIR_OWN:
        if record is None:
            lines += ["buckets = [", *(f"    {_names(bucket)}," for bucket in plan.buckets), "]"]
        source = f", plan={record!r}" if record is not None else ", plan=buckets"
        if record is None and plan.parts is not None:
            lines.append(f"parts = {plan.parts.model_dump()!r}")
            source = ', plan={"buckets": buckets, "parts": parts}'
    return "\n".join(
        [
            *lines,
            _conditions(fabric, tuned)
            + f"with xbench.attach(model, optimizer, schedule={quoted(schedule)}{source}{wait}{group}) as handle:",
            "    for inputs, targets in batches:",
            "        optimizer.zero_grad()",
            "        loss = criterion(handle.model(inputs), targets)",
            "        loss.backward()",
            "        optimizer.step()",
            "",
        ]
    )


def is_schedule(name: str) -> bool:
    """True if `xbench.attach` takes the name as `schedule`."""
    try:
        return not parse_mode(name.partition("@")[0]).paired
    except SpecError:
        return False


def quoted(text: str) -> str:
    """A Python string that is `text`, in double quotes: JSON's escapes mean the same in Python."""
    return json.dumps(visible(text), ensure_ascii=False)


def _conditions(fabric: FabricRecord | None, tuned: bool) -> str:
    """Lines that make a process tuned, and a group, as they were when it was measured."""
    lines = _TUNED if tuned else ""
    if fabric is None or not _by_sockets(fabric):
        return lines
    return lines + _SOCKETS.format(f"poll_s={polling.POLL_S!r}" if polling.NOTE in fabric.notes else "")


def _by_sockets(fabric: FabricRecord | None) -> bool:
    return fabric is not None and fabric.backend == "sockets"


def _names(bucket: Sequence[str]) -> str:
    return "[" + ", ".join(repr(name) for name in bucket) + "]"


def _told(plan: Plan) -> str:
    count = "1 bucket" if len(plan.buckets) == 1 else f"{len(plan.buckets)} buckets"
    return f"{count}, predicted {format_seconds(plan.predicted_step_s)} a step (simulated)"
