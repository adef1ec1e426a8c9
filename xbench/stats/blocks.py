"""Metric of a block by which modes are compared: seconds per sample over all jobs that share the devices.

For one job (or twins, of which one represents both) that is the step over the batch of all ranks. For two different
jobs one after the other it is the sum of their steps over the sum of their batches. For simultaneous jobs it is defined
through weighted progress. Job j makes rate_j steps a second and would take s_j alone, so Σ rate_j · s_j steps' worth of
device time are done per second, and seconds per sample are the sequential metric divided by it. With twins that is the
plain time over samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from xbench.modes import IN_SEQUENCE, mode_info
from xbench.records import Sample
from xbench.spec import ModeSpec, RunSpec
from xbench.stats.compare import BlockValue
from xbench.stats.windows import weighted_progress


def twins(run: RunSpec) -> bool:
    """True if all jobs are the same workload, so that one of them represents all in single-job modes."""
    return len(set(run.workloads)) == 1


def mode_values(run: RunSpec, mode: ModeSpec, samples: Sequence[Sample]) -> list[BlockValue]:
    """Seconds per sample of every block of a mode, as (launch, round, value)."""
    blocks: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        if sample.mode == mode.text:
            blocks.setdefault((sample.launch, sample.round), []).append(sample)
    jobs = len(run.workloads)
    needed_jobs = 1 if twins(run) and not mode.paired else jobs
    together = mode_info(mode.name).together
    alone_s = _alone_step_s(run, samples) if together and not twins(run) else None
    result = []
    for (launch, round_), parts in sorted(blocks.items()):
        if len(parts) < needed_jobs or not all(part.samples_per_step for part in parts):
            continue
        if not together:
            value = sum(p.step_s for p in parts) / sum(p.samples_per_step for p in parts)
        elif twins(run):
            value = 1.0 / sum(p.samples_per_step / p.step_s for p in parts)
        elif alone_s is not None:
            alone = [alone_s[p.job] for p in parts]
            sequential = sum(alone) / sum(p.samples_per_step for p in parts)
            value = sequential / weighted_progress([1.0 / p.step_s for p in parts], alone)
        else:
            continue
        result.append(BlockValue(launch, round_, value))
    return result


def _alone_step_s(run: RunSpec, samples: Sequence[Sample]) -> dict[int, float] | None:
    """Each job's step [s] with the device to itself: one job after the other, else under the reference."""
    names = [m.text for m in run.modes if m.name == IN_SEQUENCE]
    names += [m.text for m in run.modes if not mode_info(m.name).together and m.name != "compute"]
    for name in names:
        steps = {j: [s.step_s for s in samples if s.mode == name and s.job == j] for j in range(len(run.workloads))}
        if all(steps.values()):
            return {job: statistics.median(values) for job, values in steps.items()}
    return None
