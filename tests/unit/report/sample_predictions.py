"""Hand-made records of predictions: a scaling, and a validation."""

from __future__ import annotations

import math

from sample_records import BOUNDS, COST, ENVIRONMENT, FABRIC, WORKLOAD

from xbench.records import (
    AutoAgainst,
    Drawing,
    DrawnCell,
    ErrorBand,
    Estimate,
    LinkTerms,
    ModePair,
    Scaling,
    ScalingPoint,
    ScalingSource,
    Validation,
    ValidationCell,
    ValidationPoint,
)
from xbench.stats.cells import shown_cells
from xbench.stats.non_inferiority import non_inferiority
from xbench.stats.prediction_skill import order, regret, skills
from xbench.stats.validation import goals, summaries


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


def validation() -> Validation:
    """Two cells of their own fabric, one that failed, and one held out."""
    cells = [
        validation_cell("1gbit", 2, {"compute": (0.4, 0.41), "ddp": (0.7, 0.68), "auto": (0.55, 0.56)}),
        validation_cell("10gbit", 2, {"compute": (0.4, 0.4), "ddp": (0.5, 0.45), "auto": (0.4, 0.45)}),
        validation_cell("1gbit", 4, {"ddp": (1.4, 1.5), "auto": (1.2, 1.21)}),
        ValidationCell(
            workload=WORKLOAD, fabric=FABRIC.model_copy(update={"spec": "shaped:hosts=2,rate=100mbit"}),
            predicted_on=2, compute_s=0.0, backward_overlap_bound_s=None, points=[], blocks=0, record="",
            error="rank 1 on host 1 died: killed by SIGKILL",
        ),
    ]  # fmt: skip
    fitted = [cell for cell in cells if cell.fabric.world_size == 2]
    return Validation(
        created="2026-03-01T12:00:00Z",
        command="xbench validate --workloads resnet18 --held-out 4",
        environment=ENVIRONMENT,
        modes=["compute", "ddp", "auto"],
        complete=True,
        cells=cells,
        errors=summaries(fitted),
        errors_at_speed=summaries(fitted, at_speed=True),
        goals=goals(fitted),
        warnings=["the machine was busy before the run: load 1.9 on 8 cores"],
    )


def drawn(*, complete: bool) -> Validation:
    """Four cells of a drawing of four, the second held out; incomplete, the last one is missing."""
    steps = {"ddp": (0.7, 0.68), "auto": (0.55, 0.56)}
    held_out = {"ddp": (0.987, 0.9), "auto": (0.5, 0.56)}
    cells = [
        validation_cell(rate, 2, held_out if number == 2 else steps).model_copy(
            update={"number": number, "held_out": number == 2, "communication_s": 0.3,
                    "pairs": [ModePair(mode="ddp", other="auto", ratio=1.21, ci95=(1.15, 1.3))]}
        )
        for number, rate in enumerate(("1gbit", "10gbit", "10gbit", "1gbit"), start=1)
    ]  # fmt: skip
    drawing = Drawing(
        seed=37,
        cells=[DrawnCell(workload=c.workload.spec, fabric=c.fabric.spec, held_out=c.held_out) for c in cells],
    )
    cells = cells if complete else cells[:3]
    shown = shown_cells(cells, complete=complete)
    return validation().model_copy(
        update={"modes": ["ddp", "auto"], "cells": cells, "drawing": drawing, "complete": complete,
                "error": None if complete else "interrupted", "discarded": ["runs/1/record.json: the links changed"],
                "errors": summaries(shown), "errors_at_speed": summaries(shown, at_speed=True),
                "skills": skills(shown), "order": order(shown), "regret": regret(shown),
                "non_inferiority": non_inferiority(shown), "goals": goals(shown)}
    )  # fmt: skip


def validation_cell(rate: str, workers: int, steps: dict[str, tuple[float, float]]) -> ValidationCell:
    """`steps`: (predicted, measured) by mode."""
    fabric = FABRIC.model_copy(
        update={"spec": f"shaped:hosts={workers},rate={rate}", "hosts": workers, "world_size": workers,
                "rate_bps": {"1gbit": 1e9, "10gbit": 1e10}[rate]}
    )  # fmt: skip
    ddp_s = steps["ddp"][1]
    points = [
        ValidationPoint(
            mode=mode,
            predicted_step_s=predicted,
            measured_step_s=Estimate(median=took, ci95=(0.98 * took, 1.02 * took)),
            error=predicted / took - 1,
            error_at_speed=0.99 * predicted / took - 1,
            ratio_to_ddp=took / ddp_s,
            against_ddp=(0.98 * took / ddp_s, 1.02 * took / ddp_s),
            verdict="reference" if mode == "ddp" else "faster" if took < 0.98 * ddp_s else "equivalent",
        )
        for mode, (predicted, took) in steps.items()
    ]
    return ValidationCell(
        workload=WORKLOAD, fabric=fabric, predicted_on=2, compute_s=0.4, compute_blocks_s=0.41,
        backward_overlap_bound_s=0.54, points=points,
        auto_against=[AutoAgainst(mode="ddp", ratio=0.82, ci95=(0.8, 0.84), verdict="faster")], auto_not_slower_p=0.004,
        blocks=6, record="results/runs/20260301-120000-comparison-resnet18/record.json",
    )  # fmt: skip
