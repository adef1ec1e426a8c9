"""The emulated link on its own: times asked for against times got, and what waiting costs a computation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from runs import DRY, Keep

from xbench.emulation import ASKED_S, pacer_of
from xbench.emulation.cuda import StreamLink
from xbench.records import CostModel, EmulatedLink
from xbench.stats.compare import paired_ratio

WAIT_S = 0.1
ROUNDS = 2 if DRY else 12
PRODUCTS = 20 if DRY else 120
SIZE = 128 if DRY else 4096


def line(alpha_s: float) -> CostModel:
    return CostModel(
        backend="formula", world_size=8, alpha_s=alpha_s, beta_s_per_byte=0.0, alpha_ci95=(alpha_s, alpha_s),
        beta_ci95=(0.0, 0.0), max_relative_residual=0.0, points=[],
    )  # fmt: skip


def waits(device: torch.device) -> tuple[Callable[[float], float], list[str], Callable[[], object]]:
    """(time that a wait of so long took, remarks, launch a wait of WAIT_S that nobody waits for)."""
    link = EmulatedLink(model=line(WAIT_S))
    if device.type == "cuda":
        streams = StreamLink(link, device)
        token = torch.zeros(1, device=device)
        return streams.took_s, streams.remarks, lambda: streams.send([token], None, 4, 1.0)
    pacer = pacer_of(link)

    def took_s(asked_s: float) -> float:
        begin_s = time.perf_counter()
        pacer.wait(pacer.launch_for(asked_s))
        return time.perf_counter() - begin_s

    return took_s, [], lambda: pacer.call(pacer.launch(4), lambda: None)


def asked_and_got(took_s: Callable[[float], float]) -> list[dict[str, float]]:
    rows = []
    for asked_s in ASKED_S:
        took_s(asked_s)
        got_s = statistics.median(took_s(asked_s) for _ in range(3 if DRY else 15))
        rows.append({"asked_s": asked_s, "got_s": got_s, "off": got_s / asked_s - 1})
    return rows


def test_times_asked_for_and_got(device: torch.device, keep: Keep) -> None:
    took_s, remarks, _ = waits(device)
    rows = asked_and_got(took_s)
    held = all(abs(row["got_s"] - row["asked_s"]) <= max(0.02 * row["asked_s"], 5e-6) for row in rows)
    worst = max(rows, key=lambda row: abs(row["got_s"] - row["asked_s"]) / max(0.02 * row["asked_s"], 5e-6))
    keep(
        "link", line=4, goal="within 2 % or 5 µs, 20 µs to 100 ms", held=held,
        finding=f"median {statistics.median(abs(r['off']) for r in rows):.2%}; worst: asked "
        f"{worst['asked_s'] * 1e6:.0f} µs, got {worst['got_s'] * 1e6:.1f} µs", points=rows, remarks=remarks,
    )  # fmt: skip
    assert all(row["got_s"] > 0 for row in rows)


def test_a_computation_beside_a_wait(device: torch.device, keep: Keep) -> None:
    a = torch.randn(SIZE, SIZE, device=device)
    _, remarks, launch = waits(device)

    def block() -> float:
        begin_s = time.perf_counter()
        for _ in range(PRODUCTS):
            a @ a
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - begin_s

    length_s = min(block() for _ in range(2))
    blocks: dict[str, list[tuple[int, int, float]]] = {"alone": [], "beside": []}
    for number in range(ROUNDS):
        order = ("alone", "beside") if number % 2 == 0 else ("beside", "alone")
        for kind in order:
            if kind == "beside":
                for _ in range(int(1.5 * length_s / WAIT_S) + 1):
                    launch()
            blocks[kind].append((0, number, block()))
            if kind == "beside":
                time.sleep(1.5 * length_s + 2 * WAIT_S)
    ratio = paired_ratio(blocks["beside"], blocks["alone"])
    low, high = ratio.ci95
    keep(
        "beside", line=4, goal="computation beside a wait at most 1 % slower", held=ratio.value <= 1.01,
        finding=f"{ratio.value:.4f} [{low:.4f}, {high:.4f}]", ratio=ratio.model_dump(), remarks=remarks,
    )  # fmt: skip
