"""Generated jobs, reproducible by seed: arrivals, sizes, GPUs and models are drawn one after another.

**Arrivals.** `poisson`: exponential gaps. `bursty`: hyperexponential gaps of two phases with balanced means, a renewal
process whose gaps have the squared coefficient of variation `burst` (1 is Poisson): with p = (1 + √((c²−1)/(c²+1)))/2 a
gap has rate 2pλ, else 2(1−p)λ (Allen, Probability, Statistics and Queueing Theory, 1990). λ = load·gpus / mean GPU
seconds of a job: the drawn jobs' requests, undisturbed, are `load` times the capacity.

**Sizes** are durations on the requested GPUs, with mean `mean_s` and a heavy tail: `lognormal` with σ = 1.8 (the
longest tenth has 70 % of all time), or `pareto` with shape 1.5 (infinite variance). GPUs follow `GPUS_MIX`.

**Models** (`MODELS`) are drawn with equal probability. Their sizes are published; their times are assumptions. A
sample's computation is 3 passes of the published multiply-adds, 2 operations each. The batch of a job is its model's
batch per GPU times the requested GPUs, and does not depend on the GPUs that it gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from xbench.cluster.jobs import Job
from xbench.cluster.speeds import RingSpeed
from xbench.cluster.traces import Trace
from xbench.errors import SpecError, unknown

FloatArray = npt.NDArray[np.float64]
Arrivals = Literal["poisson", "bursty"]
Sizes = Literal["lognormal", "pareto"]

LEAST, MOST = 1e-6, 1e9
"""Bounds of the load, of a mean duration [s] and of a burst."""

LOGNORMAL_SIGMA = 1.8
PARETO_SHAPE = 1.5
GPUS_MIX: Mapping[int, float] = {1: 57_682, 2: 1_483, 4: 2_371, 8: 7_009, 16: 381, 32: 354, 64: 71}
"""Numbers of jobs of the ITP trace, by GPUs."""

OPERATIONS_PER_S = 40e12
"""Assumed operations a second of a GPU in training."""

LINK_BYTES_PER_S = 25e9 / 8
LATENCY_S = 20e-6
HOST_LINK_BYTES_PER_S = 10e9 / 8
HOST_LATENCY_S = 50e-6
"""Latency [s] of the one link between a host and the others, which its GPUs share."""

STEP_S = 5e-3
"""Assumed constant time [s] of each step: the optimizer, launches, the loader."""


@dataclass(frozen=True)
class Model:
    """A model, and its batch on one GPU."""

    parameters: int
    multiply_adds: float
    """Multiply-adds of one sample's forward pass."""
    batch: int
    source: str


_TORCHVISION = "pytorch.org/vision/stable/models.html: parameters and GFLOPS (multiply-adds) at 224 px"
MODELS: Mapping[str, Model] = {
    "resnet18": Model(11_689_512, 1.814e9, 128, _TORCHVISION),
    "resnet50": Model(25_557_032, 4.089e9, 64, _TORCHVISION),
    "vgg16": Model(138_357_544, 15.47e9, 32, _TORCHVISION),
    "bert-base": Model(110_000_000, 110e6 * 128, 32, "Devlin et al. 2018: 110 M; one multiply-add a weight and token"),
    "bert-large": Model(340_000_000, 340e6 * 128, 8, "Devlin et al. 2018: 340 M; one multiply-add a weight and token"),
}
"""BERT's samples are sequences of 128 tokens."""


def ring_of(model: str, gpus: int) -> RingSpeed:
    """Speed [steps/s] of a job of that model that requests `gpus` GPUs. Raises SpecError for an unknown model."""
    if model not in MODELS:
        raise unknown("model", model, MODELS)
    spec = MODELS[model]
    sample_s = 3 * 2 * spec.multiply_adds / OPERATIONS_PER_S
    theta = (sample_s, 2 * LATENCY_S, 2 / LINK_BYTES_PER_S, STEP_S)
    across = (2 * HOST_LATENCY_S, 2 / HOST_LINK_BYTES_PER_S)
    return RingSpeed(theta, float(spec.batch * gpus), 4.0 * spec.parameters, across)


def generate(
    *,
    jobs: int = 1000,
    load: float = 0.8,
    gpus: int = 64,
    arrivals: Arrivals = "poisson",
    burst: float = 16.0,
    sizes: Sizes = "lognormal",
    mean_s: float = 3600.0,
    seed: int = 0,
) -> Trace:
    """Generate jobs for a cluster of `gpus` GPUs (see the module). Raises SpecError for an invalid value."""
    for name, number in (("load", load), ("mean_s", mean_s)):
        if not number > 0:
            raise SpecError(f"{name}={number} is not above zero")
        if not LEAST <= number <= MOST:
            raise SpecError(f"{name}={number} is out of range {LEAST:g} to {MOST:g}")
    if not burst <= MOST:
        raise SpecError(f"burst={burst} is above {MOST:g}", hint="16 is bursty")
    if not burst >= 1:
        raise SpecError(f"burst={burst} is below 1, which is Poisson already", hint="16 is bursty")
    for name, word, known in (("arrivals", arrivals, get_args(Arrivals)), ("sizes", sizes, get_args(Sizes))):
        if word not in known:
            raise unknown(name, word, known)
    random = np.random.default_rng(seed)
    mix = {size: count for size, count in GPUS_MIX.items() if size <= gpus}
    requested = random.choice(list(mix), jobs, p=np.array(list(mix.values())) / sum(mix.values()))
    durations_s = mean_s * _sizes(random, sizes, jobs)
    models = random.choice(list(MODELS), jobs)
    rate = load * gpus / float(np.mean(requested * durations_s))
    variation = 1.0 if arrivals == "poisson" else burst
    probability = (1 + math.sqrt((variation - 1) / (variation + 1))) / 2
    phase = random.random(jobs) < probability
    gaps_s = random.exponential(1.0, jobs) / np.where(phase, 2 * probability, 2 * (1 - probability)) / rate
    arrivals_s = np.cumsum(gaps_s) - gaps_s[0]
    speeds = {(str(model), size): ring_of(str(model), size) for model in MODELS for size in mix}
    generated = []
    digits = len(str(jobs - 1))
    for index in range(jobs):
        size, model = int(requested[index]), str(models[index])
        speed = speeds[model, size]
        generated.append(
            Job(
                f"{model}-{index:0{digits}}",
                float(arrivals_s[index]),
                size,
                float(durations_s[index]) * speed(size),
                speed,
                most=int(speed.batch),
                facts={"application": model, "exposed": speed.exposed_share(size)},
            )
        )
    title = f"generated:jobs={jobs},load={load:g},gpus={gpus},arrivals={arrivals}"
    title += f",burst={burst:g}" if arrivals == "bursty" else ""
    note = "models' sizes are published, their times are assumed"
    return Trace(f"{title},sizes={sizes},mean_s={mean_s:g},seed={seed}", tuple(generated), notes=(note,))


def _sizes(random: np.random.Generator, sizes: Sizes, jobs: int) -> FloatArray:
    """Draws with mean one."""
    if sizes == "lognormal":
        return random.lognormal(-(LOGNORMAL_SIGMA**2) / 2, LOGNORMAL_SIGMA, jobs)
    return (1.0 + random.pareto(PARETO_SHAPE, jobs)) * (PARETO_SHAPE - 1) / PARETO_SHAPE
