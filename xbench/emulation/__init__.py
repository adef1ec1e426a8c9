"""Emulation of a link: real computation on this device, and collectives that take the time of a cost model.

`pacer` has the arithmetic of the link and the thread that completes collectives in time, `cuda` the same on a stream of
a GPU, `group` the process group that schedules see. `xbench.fabrics.emulated` is the fabric that uses it. Here a rank
sets up its link and measures the timing error of it.

Collectives of 20 µs to 100 ms are timed alone, with the wait of a schedule: requested against measured time, the median
of several. Before that, the time between the thread's waking and its call is measured in the same way. The thread that
calls back for futures (DDP uses these) then wakes that much earlier.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from xbench.emulation.cuda import StreamLink
from xbench.emulation.group import HostWork, Send, new_group
from xbench.emulation.pacer import Lane, Pacer, PendingTransfer, SharingPacer
from xbench.host_tuning import raise_thread
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.records import CalibrationPoint, EmulatedLink
from xbench.stats.summary import median_estimate

ASKED_S = (20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3)
SECONDS_EACH = 0.05
FEWEST, MOST = 3, 20
LEAD_S, LEADS = 1e-3, 15


def emulate(link: EmulatedLink, device: torch.device) -> tuple[dist.ProcessGroup, list[CalibrationPoint], list[str]]:
    """The group of all ranks over this link, its calibration, and remarks about it.

    Call it in the thread that computes.
    """
    send: Send
    if device.type == "cuda":
        streams = StreamLink(link, device)
        points, remarks, send = _calibration_points(streams.took_s), streams.remarks, streams.send
    else:
        pacer = pacer_of(link)
        points, remarks, send = calibrate(pacer), [], partial(HostWork, pacer)
    return new_group(send, link.model.world_size, on_stream=device.type == "cuda"), points, remarks


def pacer_of(link: EmulatedLink) -> Pacer:
    """Pacer of this link. Its thread gets a high priority if that is allowed."""
    contention = contention_of(link)
    lane = Lane(CostCurve.of(link.model), contention)
    pacer = Pacer(lane) if contention is None else SharingPacer(lane)
    if pacer.thread_id is not None:
        with contextlib.suppress(OSError):
            raise_thread(pacer.thread_id)
    return pacer


def contention_of(link: EmulatedLink) -> Contention | None:
    """Slow-down of collectives and computation by each other; None without any."""
    if link.contention is not None:
        return Contention.of(link.contention, CostCurve.of(link.model))
    if link.slowdown is None:
        return None
    return replace(Contention.none(), compute=np.full((2, 1), link.slowdown))


def calibrate(pacer: Pacer) -> list[CalibrationPoint]:
    """Requested and measured times of this pacer, after setting its `lead_s`."""
    pacer.lead_s = max(0.0, statistics.median(_callback_s(pacer, LEAD_S) for _ in range(LEADS)) - LEAD_S)
    return _calibration_points(lambda asked_s: _wait_s(pacer, asked_s))


def _calibration_points(took_s: Callable[[float], float]) -> list[CalibrationPoint]:
    """Calibration points. `took_s(asked_s)` measures the time [s] of a collective of `asked_s`."""
    points = []
    for asked_s in ASKED_S:
        took_s(asked_s)
        count = min(MOST, max(FEWEST, int(SECONDS_EACH / asked_s)))
        measured = median_estimate([took_s(asked_s) for _ in range(count)])
        points.append(CalibrationPoint(asked_s=asked_s, got_s=measured.median, ci95=measured.ci95))
    return points


def _wait_s(pacer: Pacer, asked_s: float) -> float:
    """Time [s] from launch to the return of a wait."""
    begin_s = time.perf_counter()
    pacer.wait(pacer.launch_for(asked_s))
    return time.perf_counter() - begin_s


def _callback_s(pacer: Pacer, asked_s: float) -> float:
    """Time [s] from launch to the callback."""
    called: list[float] = []
    done = threading.Event()

    def callback() -> None:
        called.append(time.perf_counter())
        done.set()

    begin_s = time.perf_counter()
    pending: PendingTransfer = pacer.launch_for(asked_s)
    pacer.call(pending, callback)
    done.wait()
    return called[0] - begin_s
