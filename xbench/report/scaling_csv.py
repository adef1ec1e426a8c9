"""A scaling as CSV: tidy, one row a mode and number of workers, all numbers in base units, every row labelled."""

from __future__ import annotations

import csv
import io

from xbench.records import Scaling

COLUMNS = (
    "label", "workload", "topology", "mode", "workers", "step_s", "step_low_s", "step_high_s", "exposed_s",
    "samples_per_s", "efficiency", "buckets", "largest_bucket_bytes",
)  # fmt: skip


def render(record: Scaling) -> str:
    """CSV text with a heading, RFC 4180 but for its line ends, which are those of this system's tools."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in record.points:
        low_s, high_s = point.step_band_s
        writer.writerow(
            [
                record.label,
                record.workload.title,
                record.topology,
                point.mode,
                point.workers,
                point.step_s,
                low_s,
                high_s,
                point.exposed_s,
                point.samples_per_s,
                point.efficiency,
                point.buckets,
                point.largest_bucket_bytes,
            ]
        )
    return text.getvalue()
