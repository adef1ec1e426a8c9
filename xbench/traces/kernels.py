"""Kernels of a device and their launches on the host, as rows of numbers.

A row of `kernels` is correlation, start [s], end [s], shape (below zero: a collective), stream, and whether it is a
copy. A row of `launches` is correlation, start [s], thread, and whether it launches one kernel; rows are sorted by
correlation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

ROUNDING_S = 2e-6
"""Times may be rounded by this [s]."""

DISORDER_S = 1e-3
"""A kernel that is out of the order of launches by more than this has a wrong time [s]."""


def repeated(launches: FloatArray, kernels: FloatArray) -> npt.NDArray[np.bool_]:
    """True for each kernel of a collective but the first of its launch, unless the launch is that of a CUDA graph."""
    place = launch_of(launches, kernels[:, 0])
    is_one = launches[place, 3] == 1 if len(launches) else False
    found = np.flatnonzero(is_one & (place >= 0) & (kernels[:, 3] < 0))
    found = found[np.argsort(kernels[found, 1], kind="stable")]
    again = np.zeros(len(kernels), dtype=np.bool_)
    again[found] = True
    again[found[np.unique(kernels[found, 0], return_index=True)[1]]] = False
    return again


def disordered(launches: FloatArray, kernels: FloatArray) -> int:
    """Number of kernels, sorted by stream and start, that began before their launch or after a later one's.

    The clocks of host and device may differ. So a launch is known from the kernels that followed theirs the fastest.
    """
    place = launch_of(launches, kernels[:, 0])
    kernels, place = kernels[place >= 0], place[place >= 0]
    if not len(kernels):
        return 0
    launched_s, stream = launches[place, 1], kernels[:, 4]
    delay_s = kernels[:, 1] - launched_s
    is_early = delay_s < np.quantile(delay_s, 0.02) - DISORDER_S
    is_after = (stream[1:] == stream[:-1]) & (launched_s[1:] < launched_s[:-1] - DISORDER_S) & ~is_early[:-1]
    return int(is_early.sum() + is_after.sum())


def cut(kernels: FloatArray) -> int:
    """End kernels, sorted by stream and start, that outlast the next launch of their stream, where that began.

    Returns how many there were. A dependent launch may begin before its predecessor ends, but not end before it.
    Kernels of one launch may run side by side: those of a CUDA graph.
    """
    if not len(kernels):
        return 0
    correlation, stream = kernels[:, 0], kernels[:, 4]
    opens = (stream[1:] != stream[:-1]) | (correlation[1:] != correlation[:-1]) | (correlation[1:] < 0)
    first = np.concatenate([[0], np.flatnonzero(opens) + 1])
    group = np.concatenate([[0], np.cumsum(opens)])
    after = np.append(first[1:], len(kernels))[group]
    following = np.minimum(after, len(kernels) - 1)
    goes_on = (after < len(kernels)) & (stream[following] == stream)
    long = goes_on & (kernels[:, 2] > kernels[following, 2] + ROUNDING_S)
    kernels[long, 2] = kernels[following[long], 1]
    return int(long.sum())


def launch_of(launches: FloatArray, correlations: FloatArray) -> npt.NDArray[np.intp]:
    """Row of the launch of each correlation; -1 where the trace does not have it."""
    if not len(launches):
        return np.full(len(correlations), -1)
    place = np.minimum(np.searchsorted(launches[:, 0], correlations), len(launches) - 1)
    return np.where(launches[place, 0] == correlations, place, -1)
