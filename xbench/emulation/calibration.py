"""Sets an emulated link up in a rank, and finds out how well it keeps to its times.

Collectives of 20 µs to 100 ms by themselves, waited for as a schedule waits: asked for against got, median of several.
Before that, the time between the thread's waking and its call is measured the same way and taken off: the thread that
calls those who wait for a future (DDP does) wakes so much earlier.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from xbench.emulation import cuda
from xbench.emulation.group import host_send, new_group
from xbench.emulation.lane import Lane
from xbench.emulation.pacer import Flight, Pacer, SharingPacer
from xbench.emulation.shared_link import SharedLink
from xbench.host.tuning import raise_thread
from xbench.planning.contention import Contention
from xbench.planning.cost import Curve
from xbench.records import CalibrationPoint, ContentionPoint, EmulatedLink
from xbench.records import Contention as ContentionRecord
from xbench.stats.summary import median_estimate

ASKED_S = (20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3)
SECONDS_EACH = 0.05
FEWEST, MOST = 3, 20
LEAD_S, LEADS = 1e-3, 15


def emulate(
    link: EmulatedLink, device: torch.device, *, shared: bool, meet_at: Path | None = None
) -> tuple[dist.ProcessGroup, list[CalibrationPoint], list[str]]:
    """The group of all ranks over this link, its calibration, and what there is to say about it.

    Call it in the thread that will compute. `shared`: whether other processes compute on this device too. `meet_at`:
    the file of the link that it has in common with other jobs' processes, once each has been calibrated by itself.
    Raises OSError where that cannot be made.
    """
    common = None if meet_at is None else SharedLink(meet_at)
    if device.type == "cuda":
        streams = cuda.link_of(link, device, shared=shared)
        points, remarks, send = _calibrated(streams.took_s), streams.remarks, streams.send
        if common is not None and isinstance(streams, cuda.FlagLink):
            streams.share(common)
    else:
        pacer = pacer_of(link, in_common=common is not None)
        points, remarks, send = calibrate(pacer), [], host_send(pacer)
        if common is not None and isinstance(pacer, SharingPacer):
            pacer.share(common)
    return new_group(send, link.model.world_size), points, remarks


def pacer_of(link: EmulatedLink, *, in_common: bool = False) -> Pacer:
    """The lane of this link, and the thread beside it, which goes before others where that is allowed.

    `in_common`: other processes will share the link.
    """
    contention = contention_of(link)
    lane = Lane(Curve.of(link.model), contention)
    pacer = Pacer(lane) if contention is None and not in_common else SharingPacer(lane)
    if pacer.thread_id is not None:
        with contextlib.suppress(OSError):
            raise_thread(pacer.thread_id)
    return pacer


def contention_of(link: EmulatedLink) -> Contention | None:
    """What its collectives and a computation cost each other; None for nothing."""
    if link.contention is not None:
        return Contention.of(link.contention, Curve.of(link.model))
    if link.slowdown is None:
        return None
    same = {"nbytes": 1, "alone_s": 1.0, "loaded_s": 1.0, "compute_slowdown": link.slowdown}
    points = [ContentionPoint(in_flight=count, **same) for count in (1, 2)]
    return Contention.of(ContentionRecord(launch_s=0.0, points=points))


def calibrate(pacer: Pacer) -> list[CalibrationPoint]:
    """Times asked for against times got, of this pacer; its `lead_s` is set first."""
    pacer.lead_s = max(0.0, statistics.median(_called_s(pacer, LEAD_S) for _ in range(LEADS)) - LEAD_S)
    return _calibrated(lambda asked_s: _waited_s(pacer, asked_s))


def _calibrated(took_s: Callable[[float], float]) -> list[CalibrationPoint]:
    """`took_s(asked_s)`: how long a collective took that was to take so long."""
    points = []
    for asked_s in ASKED_S:
        took_s(asked_s)
        count = min(MOST, max(FEWEST, int(SECONDS_EACH / asked_s)))
        got = median_estimate([took_s(asked_s) for _ in range(count)])
        points.append(CalibrationPoint(asked_s=asked_s, got_s=got.median, ci95=got.ci95))
    return points


def _waited_s(pacer: Pacer, asked_s: float) -> float:
    """From launch to the return of a wait."""
    begin_s = time.perf_counter()
    pacer.wait(pacer.launch_for(asked_s))
    return time.perf_counter() - begin_s


def _called_s(pacer: Pacer, asked_s: float) -> float:
    """From launch to the call."""
    called: list[float] = []
    done = threading.Event()

    def back() -> None:
        called.append(time.perf_counter())
        done.set()

    begin_s = time.perf_counter()
    flight: Flight = pacer.launch_for(asked_s)
    pacer.call(flight, back)
    done.wait()
    return called[0] - begin_s
