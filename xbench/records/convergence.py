"""Record of `xbench converge`: training curves of every mode and seed, and the cost of a step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Count, PositiveSeconds, Text
from xbench.records.parts import Environment, FabricRecord, Headed, Interval, Label, Part, WorkloadRecord


class SeedMean(Part):
    """Mean over seeds, with Student's 95 % interval cut to possible values; None for fewer than two seeds."""

    mean: float
    ci95: Interval | None = None


class Dataset(Part):
    """Real data and its source."""

    name: Text
    source: Text
    train: Count = Field(description="samples")
    test: Count = Field(description="samples")
    classes: Count


class Training(Part):
    """Training setup of every mode: the same samples in the same order, and for each seed the same initial weights."""

    seeds: list[int]
    steps: Count
    samples: Count = Field(description="over all workers, of one seed")
    epochs: float
    batch_size: Count = Field(description="samples a worker and step")
    optimizer: Text
    lr: float = Field(description="of the first step; it falls linearly to zero")


class WorkFormula(Part):
    """Predicted work of one worker in a step of `spb`: mean over a cycle of cut bands. Simulated."""

    sent_bytes: float = Field(description="of gradients; the network device also counts headers")
    activation_bytes: float = Field(description="kept for backward without parameters")
    backward_flops: float


class Curve(Part):
    """One mode trained from one seed. Raw."""

    mode: Text
    seed: int
    train_loss: list[float] = Field(description="by step, mean over the workers' batches")
    test_loss: list[float] = Field(description="by epoch, the last after the last step")
    test_accuracy: list[float] = Field(description="by epoch, the last after the last step")
    steps_s: list[PositiveSeconds] = Field(
        description="until the last rank has done it; in turns: between a job's own steps"
    )
    sent_bytes: float | None = Field(None, description="a step and worker, as the network device counted")
    activation_bytes: list[float] = Field(
        [], description="by rank: kept for backward without parameters, mean over a cycle of steps"
    )
    activation_peak_bytes: list[float] = Field([], description="the same, largest of a cycle")
    backward_flops: list[float] = Field([], description="by rank: counted, mean over a cycle of steps")
    formula: list[WorkFormula] = Field([], description="by rank, of `spb`")
    device_peak_bytes: list[Count] = Field([], description="by rank: the most that a GPU had allocated")
    ranks_agree: bool = Field(description="whether all ranks ended with the same bits")


class Converged(Part):
    """One mode over all its seeds. Numbers are None if it failed."""

    mode: Text
    status: Literal["ok", "failed", "not trained"] = Field(description="not trained: the run ended before its turn")
    error: Text | None = None
    accuracy: SeedMean | None = None
    test_loss: SeedMean | None = None
    difference: SeedMean | None = Field(None, description="accuracy minus the reference's of the same seeds")
    verdict: Literal["reference", "within", "below", "above", "unknown"] | None = Field(
        None, description="by the interval of `difference`; in records with `outside`, by the reference's interval"
    )
    detectable: float | None = Field(
        None, description="difference that so many seeds find in 80 of 100 runs; null in older records"
    )
    outside: float | None = Field(None, description="how far outside of the reference's interval; older records alone")
    step_s: PositiveSeconds | None = Field(None, description="median; of whole cycles where steps differ")
    sent_bytes: float | None = Field(None, description="a step and worker, as the network device counted")
    activation_bytes: float | None = Field(None, description="mean over ranks and a cycle of steps")
    activation_peak_bytes: float | None = Field(None, description="of the rank and step that kept most")
    backward_flops: float | None = Field(None, description="mean over ranks and a cycle of steps")
    formula: WorkFormula | None = Field(None, description="mean over ranks, of `spb`")
    device_peak_bytes: Count | None = None


class Convergence(Headed):
    """Result of `xbench converge`."""

    kind: Literal["convergence"] = "convergence"
    environment: Environment
    fabric: FabricRecord
    label: Label
    complete: bool
    error: Text | None = Field(None, description="why the run ended early, one sentence")
    warnings: list[Text] = []
    workload: WorkloadRecord
    dataset: Dataset
    training: Training
    reference: Text
    modes: dict[Text, Converged]
    curves: list[Curve]
