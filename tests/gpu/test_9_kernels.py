"""Pack and unpack against the speed of memory: bytes moved a second over those of a copy on the device.

The device's time has none of the host's: a kernel occupies the stream while the host launches what is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from runs import DRY, Keep

from xbench.kernels.pack import Layout, describe_pack_backend, pack, slices, unpack
from xbench.kernels.wait import head_start

MIB = 1024 * 1024
BUCKET_BYTES = MIB if DRY else 256 * MIB
TENSORS = 8 if DRY else 160
REPEATS = 3 if DRY else 20
SHARE = 0.9


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Median time of one call, on the device's own clock where it has one."""
    work()
    took = []
    for _ in range(REPEATS):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            head_start(torch.cuda.current_stream(device))
            begin.record()
            work()
            end.record()
            end.synchronize()
            took.append(begin.elapsed_time(end) * 1e-3)
        else:
            begin_s = time.perf_counter()
            work()
            took.append(time.perf_counter() - begin_s)
    return statistics.median(took)


def host_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Median time for which one call keeps the host."""
    took = []
    for _ in range(REPEATS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin_s = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin_s)
    return statistics.median(took)


def test_bytes_a_second(device: torch.device, keep: Keep) -> None:
    elements = BUCKET_BYTES // 4 // TENSORS
    tensors = [torch.randn(elements, device=device) for _ in range(TENSORS)]
    source, target = (torch.empty(BUCKET_BYTES // 4, device=device) for _ in range(2))
    copy = 2 * BUCKET_BYTES / seconds(lambda: target.copy_(source), device)
    rows: dict[str, float] = {}
    hosts: dict[str, float] = {}
    for wire in (torch.float32, torch.bfloat16):
        layout = Layout.of([elements] * TENSORS, 16 // wire.itemsize)
        flat = torch.zeros(layout.length, dtype=wire, device=device)
        moved = BUCKET_BYTES + TENSORS * elements * wire.itemsize
        packed = moved / seconds(lambda flat=flat, layout=layout: pack(tensors, flat, layout, 0.5), device)
        assert torch.equal(slices(flat, layout, tensors)[3], (tensors[3] * 0.5).to(wire))
        hosts[str(wire).removeprefix("torch.")] = host_seconds(
            lambda flat=flat, layout=layout: pack(tensors, flat, layout, 0.5), device
        )
        unpacked = moved / seconds(lambda flat=flat, layout=layout: unpack(flat, tensors, layout), device)
        name = str(wire).removeprefix("torch.")
        rows[f"pack to {name}"], rows[f"unpack from {name}"] = packed / copy, unpacked / copy
    worst = min(rows.values())
    keep(
        "kernels", line=9, goal="at least 90 % of a copy's bytes a second", held=worst >= SHARE,
        finding=f"copy {copy / 1e9:.0f} GB/s; " + ", ".join(f"{name} {share:.0%}" for name, share in rows.items())
        + f"; packing {TENSORS} tensors keeps the host for {hosts['float32'] * 1e6:.0f} µs",
        copy_bytes_per_s=copy, shares=rows, host_s=hosts, kernel=describe_pack_backend(device),
    )  # fmt: skip
