from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.policy import Cluster
from xbench.cluster.simulator import check_jobs
from xbench.cluster.traces.generated import GPUS_MIX, MODELS, generate, ring_of
from xbench.errors import SpecError


def _variation(arrivals_s: list[float]) -> float:
    gaps = np.diff(arrivals_s)
    return float(np.var(gaps) / np.mean(gaps) ** 2)


def test_a_seed_is_a_trace() -> None:
    assert generate(jobs=50, seed=4) == generate(jobs=50, seed=4)
    assert generate(jobs=50, seed=4).jobs != generate(jobs=50, seed=5).jobs


@given(
    st.integers(1, 40), st.sampled_from([1, 3, 8, 64]), st.sampled_from(["poisson", "bursty"]),
    st.sampled_from(["lognormal", "pareto"]), st.integers(0, 99),
)  # fmt: skip
def test_every_job_can_run_on_the_cluster(jobs: int, gpus: int, arrivals: str, sizes: str, seed: int) -> None:
    trace = generate(jobs=jobs, gpus=gpus, arrivals=arrivals, sizes=sizes, seed=seed)  # type: ignore[arg-type]
    assert len(trace.jobs) == jobs
    assert trace.jobs[0].arrival_s == 0
    check_jobs(trace.jobs, Cluster(gpus))
    for job in trace.jobs:
        assert job.gpus in GPUS_MIX
        assert job.gpus <= gpus
        assert job.facts["application"] in MODELS
        assert job.speed(2 * gpus) > 0
        assert not job.rigid


@pytest.mark.parametrize("arrivals", ["poisson", "bursty"])
def test_the_jobs_offer_the_load(arrivals: str) -> None:
    trace = generate(jobs=20_000, load=0.7, gpus=32, arrivals=arrivals, burst=4.0, seed=1)  # type: ignore[arg-type]
    assert trace.gpu_hours * 3600 / (trace.span_s * 32) == pytest.approx(0.7, rel=0.03)


def test_bursts_are_as_bursty_as_asked_for() -> None:
    poisson = generate(jobs=20_000, seed=2)
    assert _variation([job.arrival_s for job in poisson.jobs]) == pytest.approx(1.0, rel=0.05)
    bursty = generate(jobs=20_000, arrivals="bursty", burst=9.0, seed=2)
    assert _variation([job.arrival_s for job in bursty.jobs]) == pytest.approx(9.0, rel=0.1)


@pytest.mark.parametrize(("sizes", "share"), [("lognormal", (0.6, 0.8)), ("pareto", (0.4, 0.7))])
def test_the_longest_tenth_has_most_of_the_time(sizes: str, share: tuple[float, float]) -> None:
    trace = generate(jobs=20_000, sizes=sizes, mean_s=600.0, seed=3)  # type: ignore[arg-type]
    times = np.sort([job.duration_s for job in trace.jobs])
    assert share[0] < times[-2000:].sum() / times.sum() < share[1]
    assert times.mean() == pytest.approx(600, rel=0.2)


def test_gpus_are_asked_for_as_in_the_itp_trace() -> None:
    asked = [job.gpus for job in generate(jobs=20_000, seed=5).jobs]
    for gpus, count in GPUS_MIX.items():
        assert asked.count(gpus) / 20_000 == pytest.approx(count / sum(GPUS_MIX.values()), abs=0.01)
    assert sum(GPUS_MIX.values()) == 69_351


def test_a_model_s_ring_holds_the_batch_of_its_request() -> None:
    ring = ring_of("resnet50", 4)
    assert (ring.batch, ring.model_bytes) == (256.0, 4 * 25_557_032)
    assert ring.step_s(4) == pytest.approx(64 * 6 * 4.089e9 / 40e12 + 120e-6 + 1.5 * ring.model_bytes / 3.125e9 + 5e-3)
    with pytest.raises(SpecError, match="unknown model 'resnet5'"):
        ring_of("resnet5", 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"load": 0.0}, "load=0.0"), ({"mean_s": float("inf")}, "mean_s=inf"), ({"burst": 0.9}, "burst=0.9")],
)  # fmt: skip
def test_values_that_make_no_trace_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        generate(**options)  # type: ignore[arg-type]
