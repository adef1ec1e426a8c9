"""The golden profile on other links, and contention made by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hypothesis import strategies as st
from planning_cases import line

from xbench.planning.measured import Measured, measured
from xbench.records import Contention, ContentionPoint, CostModel, Profile, load

GOLDEN = Path(__file__).parents[2] / "golden" / "profile-v1.json"


@cache
def record() -> Profile:
    found = load(GOLDEN)
    assert isinstance(found, Profile)
    return found


def beside(*points: tuple[int, int, float, float, float]) -> Contention:
    """Contention of points (bytes, in flight, alone [s], loaded [s], slow-down of computation)."""
    names = ("nbytes", "in_flight", "alone_s", "loaded_s", "compute_slowdown")
    made = [ContentionPoint(**dict(zip(names, point, strict=True))) for point in points]  # type: ignore[arg-type]
    return Contention(launch_s=1e-4, hook_s=2e-6, copy_s_per_byte=2e-11, points=made)


def given_cost(
    cost: CostModel,
    *,
    rate_bps: float | None = 1e9,
    measured_bps: float | None = 1e9,
    contention: Contention | None = None,
) -> Measured:
    """The golden profile with this cost model and contention, on links of this rate."""
    fabric = record().fabric.model_copy(
        update={"rate_bps": rate_bps, "measured_bps": measured_bps, "world_size": cost.world_size}
    )
    update = {"cost_model": cost, "fabric": fabric, "contention": contention}
    return measured(record().model_copy(update=update), "made")


# α 1 ms and 8 ns a byte at 1 Gbit/s, nothing of it the hosts': 1 MB takes 9 ms alone. Beside computation 12 ms, and
# computation takes 1.2 times as long: 2 ms of its time go to each collective.
LINE = line(0.001, 8e-9)
ONE = (1_000_000, 1, 0.009, 0.012, 1.2)


@st.composite
def contentions(draw: st.DrawFn) -> Contention:
    sizes = draw(st.lists(st.integers(1, 10**8), min_size=1, max_size=5, unique=True))
    times, slowdowns = st.floats(1e-6, 1.0), st.floats(0.5, 20.0)
    return beside(*((size, n, draw(times), draw(times), draw(slowdowns)) for size in sizes for n in (1, 2)))
