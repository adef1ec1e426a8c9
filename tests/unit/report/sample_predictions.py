"""A hand-made record of predictions on several numbers of workers."""

from __future__ import annotations

import math

from sample_records import BOUNDS, COST, FABRIC, WORKLOAD

from xbench.records import ErrorBand, LinkTerms, Scaling, ScalingPoint, ScalingSource


def scaling() -> Scaling:
    """Four modes of resnet18 from 2 to 2048 workers in a ring; one bucket is best from 512 on; 8 were measured."""
    sizes = [2, 8, 64, 512, 2048]
    points = []
    for mode, latencies, buckets in (("ddp", 3, 3), ("single", 1, 1), ("wfbp", 62, 62), ("optimal", 2, 7)):
        for workers in sizes:
            exposed_s = 0.01 + 2 * (workers - 1) * 0.0002 * latencies
            step_s, more = BOUNDS.compute_s + exposed_s, 0.1 * abs(math.log2(workers / 8))
            points.append(ScalingPoint(
                mode=mode, workers=workers, step_s=step_s, exposed_s=exposed_s, samples_per_s=8 * workers / step_s,
                step_band_s=(step_s / (1.1 + more), step_s / (0.9 - more)),
                efficiency=BOUNDS.compute_s / step_s, largest_bucket_bytes=WORKLOAD.grad_bytes,
                buckets=1 if mode == "optimal" and workers > 64 else buckets,
            ))  # fmt: skip
    return Scaling(
        created="2026-03-01T12:00:00Z",
        command="xbench plan results/resnet18.json --workers 2,8,64,512,2048",
        xbench="0.1.0",
        source=ScalingSource(path="results/resnet18.json", kind="profile", created="2026-03-01T12:00:00Z",
                             command="xbench profile resnet18"),
        workload=WORKLOAD,
        fabric=FABRIC,
        topology="ring",
        compute_scale=1.0,
        compute_s=BOUNDS.compute_s,
        modes=["ddp", "single", "wfbp", "optimal"],
        workers=sizes,
        measured_link=LinkTerms(workers=2, a_s=COST.alpha_s, b_s_per_byte=COST.beta_s_per_byte, all_gradients_s=0.416),
        links=[
            LinkTerms(workers=n, a_s=(n - 1) * COST.alpha_s, b_s_per_byte=2 * COST.beta_s_per_byte, all_gradients_s=0.8)
            for n in sizes
        ],
        error_band=ErrorBand(share=0.1, source="the largest error of this record's own predictions", workers=8,
                             growth=0.1, growth_source="held-out sizes, of 4 workers predicted from 2"),
        points=points,
        findings=["single is fastest at every size.", "From 512 workers on one bucket is best."],
        assumptions=["What was measured is taken for a ring of 2 workers.", "Each worker keeps its batch."],
        warnings=["messages get smaller than the smallest measured: their time is taken as flat"],
    )  # fmt: skip
