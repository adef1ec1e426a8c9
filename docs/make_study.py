"""The published scaling study of MG-WFBP, computed again: `python docs/make_study.py`.

Reads results/study-googlenet.json and results/study-resnet50.json (profiles), writes results/published-study.json and
docs/images/published-study.svg, and prints the tables of docs/published-study.md. Everything is simulated.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from study_chart import Chart, Line, Mark, draw

from xbench.planning.scale import scale
from xbench.planning.step import Gradient, StepModel
from xbench.planning.topology import Topology, parse_topology, terms
from xbench.records import CostModel, Profile, load

ROOT = Path(__file__).parent.parent
MODES = ("wfbp", "single", "mgwfbp", "optimal")
WORKERS = tuple(2**k for k in range(2, 12))
TOPOLOGIES = ("ring", "tree")
AT = 64
STEPS_S = tuple(0.05 * 2 ** (k / 4) for k in range(22))
"""Step times [s] for the question which one the published gains go with: 0.05 s to 1.9 s."""

FORWARD_SHARE = 1 / 3
"""A backward pass multiplies twice for each product of the forward pass."""

K80 = CostModel(
    backend="nccl", world_size=16, alpha_s=9.72e-4, beta_s_per_byte=1.97e-9, alpha_ci95=(9.72e-4, 9.72e-4),
    beta_ci95=(1.97e-9, 1.97e-9), max_relative_residual=0.0, points=[],
)  # fmt: skip
"""The paper's fit for 16 K80 on 10GbE; it gives no interval."""


RING = Topology("ring")
AUTHORS_FITS = {
    "V100, 10GbE": {
        8: (5.230272768511732e-4, 8.570746975492128e-10),
        16: (9.080981007148093e-4, 7.395651186836712e-10),
    },
    "V100, 56 Gbit/s InfiniBand": {
        4: (4.204298980348825e-5, 2.0589360830118177e-10),
        8: (9.75367204301171e-5, 3.0568230536676206e-10),
        16: (2.3583677659915685e-4, 4.0594787739537565e-10),
    },
}
"""a [s] and b [s/B] by workers, from the authors' code (github.com/HKBU-HPML/MG-WFBP, distributed_optimizer.py)."""


@dataclass(frozen=True)
class Net:
    """One model of the study: our profile of it, the step of a K80, and what the paper reports at 64 workers."""

    title: str
    profile: str
    batch: int
    step_s: float
    step_source: str
    over_wfbp: float
    over_single: float
    by_layer: bool
    other_steps_s: tuple[float, ...] = ()


NETS = (
    Net("GoogLeNet", "results/study-googlenet.json", 64, 0.72,
        "Keuper and Pfreundt 2016, table 1: 0.36 s for a batch of 32", 1.78, 1.35, by_layer=True,
        other_steps_s=(0.50,)),
    Net("ResNet-50", "results/study-resnet50.json", 32, 32 / 49.5,
        "TensorFlow's benchmarks of 2017: 49.5 images/s on one K80 with a batch of 32", 1.75, 1.45, by_layer=False),
)  # fmt: skip


def model(net: Net, step_s: float, forward_share: float = FORWARD_SHARE) -> StepModel:
    """The profiled layers on a device whose forward and backward take `step_s`; no optimizer, as in the paper."""
    record = load(ROOT / net.profile)
    assert isinstance(record, Profile)
    assert record.step is not None
    measured = StepModel.of(record.layers, record.step)
    gradients = _by_layer(measured.gradients) if net.by_layer else measured.gradients
    backward_s = step_s * (1 - forward_share)
    factor = backward_s / measured.backward_s
    moved = tuple(replace(gradient, ready_s=gradient.ready_s * factor) for gradient in gradients)
    return StepModel(moved, step_s * forward_share, backward_s, 0.0)


def _by_layer(gradients: Sequence[Gradient]) -> tuple[Gradient, ...]:
    """A convolution or matrix with its bias and its batch-norm as one tensor, ready when its last part is."""
    together: dict[str, list[Gradient]] = {}
    for gradient in gradients:
        name = re.sub(r"\.(weight|bias)$", "", gradient.name)
        together.setdefault(re.sub(r"\.(conv|bn)$", "", name), []).append(gradient)
    merged = [
        Gradient(
            name, sum(g.nbytes for g in parts), max(g.ready_s for g in parts), elements=sum(g.elements for g in parts)
        )
        for name, parts in together.items()
    ]
    return tuple(sorted(merged, key=lambda gradient: gradient.ready_s))


@dataclass(frozen=True)
class Curves:
    """Steps [s] and buckets by mode, a number a size."""

    steps_s: dict[str, list[float]]
    buckets: dict[str, list[int]]

    def gain(self, over: str, of: str = "mgwfbp") -> list[float]:
        """How many times as long `over` takes as `of`."""
        return [slow / fast for slow, fast in zip(self.steps_s[over], self.steps_s[of], strict=True)]


def curves(step: StepModel, topology: str, workers: Sequence[int], batch: int) -> Curves:
    """All modes of the study on one topology."""
    points = scale(step, K80, parse_topology(topology), workers, MODES, batch_size=batch, band=0.0)
    return Curves(
        {mode: [point.step_s for point in points if point.mode == mode] for mode in MODES},
        {mode: [point.buckets for point in points if point.mode == mode] for mode in MODES},
    )


def gains_at(net: Net, step_s: float, forward_share: float = FORWARD_SHARE) -> tuple[float, float]:
    """mgwfbp's gains over wfbp and over single with 64 workers in a ring."""
    found = curves(model(net, step_s, forward_share), "ring", [AT], net.batch)
    return found.gain("wfbp")[0], found.gain("single")[0]


def implied_step_s(net: Net, which: int, wanted: float) -> float | None:
    """The longest step at which the gain over wfbp (0) or single (1) is the published one; None: there is none."""
    low, high = 0.02, 20.0
    grid = [low * (high / low) ** (k / 200) for k in range(201)]
    values = [gains_at(net, step_s)[which] for step_s in grid]
    for k in range(200, 0, -1):
        if values[k] <= wanted <= values[k - 1]:
            share = (values[k - 1] - wanted) / (values[k - 1] - values[k])
            return grid[k - 1] * (grid[k] / grid[k - 1]) ** share
    return None


def main() -> None:
    """Compute, write, draw, print."""
    result: dict[str, object] = {
        "label": "simulated",
        "made_by": "python docs/make_study.py",
        "cost_model": K80.model_dump(),
        "workers": list(WORKERS),
    }
    charts: list[Chart] = []
    for net in NETS:
        step = model(net, net.step_s)
        found = {topology: curves(step, topology, WORKERS, net.batch) for topology in TOPOLOGIES}
        gains = [gains_at(net, step_s) for step_s in STEPS_S]
        published = (net.over_wfbp, net.over_single)
        implied = [implied_step_s(net, which, wanted) for which, wanted in enumerate(published)]
        between_s = math.sqrt(math.prod(s for s in implied if s is not None))
        rows = [at_step(net, step_s) for step_s in (net.step_s, *net.other_steps_s, between_s)]
        rows.append(at_step(net, net.step_s, 0.5))
        result[net.title] = {
            "profile": net.profile,
            "batch": net.batch,
            "tensors": len(step.gradients),
            "grad_bytes": step.grad_bytes,
            "step_s": net.step_s,
            "step_source": net.step_source,
            "curves": {name: {"steps_s": c.steps_s, "buckets": c.buckets} for name, c in found.items()},
            "published_over_wfbp_and_single_at_64": published,
            "steps_that_give_these": implied,
            "at_steps": rows,
            "gains_by_step": {"step_s": list(STEPS_S), "over_wfbp_and_single": gains},
        }
        _print(net, step, found, rows)
        for topology, c in found.items():
            marks = []
            if topology == "ring":
                marks = [Mark(AT, net.over_wfbp, "wfbp"), Mark(AT, net.over_single, "single")]
            charts.append(
                Chart(
                    f"{net.title}, {'ring' if topology == 'ring' else 'double binary trees'}",
                    "workers",
                    [Line(mode, WORKERS, c.gain(mode)) for mode in ("wfbp", "single", "optimal")],
                    marks,
                )
            )
        charts.append(
            Chart(
                f"{net.title}, ring of {AT}, by step time",
                "forward + backward of one worker, s",
                [Line("wfbp", STEPS_S, [g[0] for g in gains]), Line("single", STEPS_S, [g[1] for g in gains])],
                [Mark(net.step_s, net.over_wfbp, "wfbp"), Mark(net.step_s, net.over_single, "single")],
                levels=True,
            )
        )
    result["held_out"] = held_out()
    for row in held_out():
        print(row)
    (ROOT / "results" / "published-study.json").write_text(json.dumps(result, indent=1) + "\n")
    (ROOT / "docs" / "images" / "published-study.svg").write_text(
        draw(charts, columns=3, y_title="step, as a multiple of mgwfbp's (simulated)", marks="published, 64 workers")
    )


def at_step(net: Net, step_s: float, forward_share: float = FORWARD_SHARE) -> dict[str, float | int | None]:
    """What the ring says of one step time: the gains at 64 workers, and from where on one bucket is planned."""
    found = curves(model(net, step_s, forward_share), "ring", WORKERS, net.batch)
    at = WORKERS.index(AT)
    since: dict[str, int | None] = {}
    for mode in ("mgwfbp", "optimal"):
        several = [n for n, count in zip(WORKERS, found.buckets[mode], strict=True) if count > 1]
        beyond = [n for n in WORKERS if n > max(several, default=0)]
        since[mode] = beyond[0] if beyond else None
    return {
        "step_s": step_s,
        "forward_share": forward_share,
        "over_wfbp": found.gain("wfbp")[at],
        "over_single": found.gain("single")[at],
        "mgwfbp_one_bucket_from": since["mgwfbp"],
        "optimal_one_bucket_from": since["optimal"],
    }


def held_out() -> list[dict[str, float | int | str]]:
    """The authors' own fits for several numbers of workers, each predicted from the next smaller one as a ring."""
    found: list[dict[str, float | int | str]] = []
    for link, fits in AUTHORS_FITS.items():
        for few, many in itertools.pairwise(sorted(fits)):
            known = K80.model_copy(update={"world_size": few, "alpha_s": fits[few][0], "beta_s_per_byte": fits[few][1]})
            a_s, b_s_per_byte = RING.line(*terms(known), many)
            for nbytes in (1_000_000, 100_000_000):
                measured_s = fits[many][0] + fits[many][1] * nbytes
                error = (a_s + b_s_per_byte * nbytes) / measured_s - 1
                found.append({"link": link, "from": few, "to": many, "nbytes": nbytes, "error": error})
    return found


def _print(net: Net, step: StepModel, found: dict[str, Curves], rows: Sequence[dict[str, float | int | None]]) -> None:
    print(f"{net.title}: {len(step.gradients)} tensors, {step.grad_bytes / 4e6:.1f} M")
    for row in rows:
        print("  ", {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()})
    for topology, c in found.items():
        print(f"  {topology}: workers, wfbp/mgwfbp, single/mgwfbp, optimal/mgwfbp, buckets mgwfbp, optimal")
        for place, n in enumerate(WORKERS):
            gains = " | ".join(f"{c.gain(mode)[place]:.2f}" for mode in ("wfbp", "single", "optimal"))
            print(f"  | {n} | {gains} | {c.buckets['mgwfbp'][place]} | {c.buckets['optimal'][place]} |")


if __name__ == "__main__":
    main()
