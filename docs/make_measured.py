"""Write the tables of measured results from the committed files: `python docs/make_measured.py`.

The tables stand in PAGES between `<!-- measured: WHICH -->` and `<!-- /measured -->`; a test holds them to the files:
what schedules took to the records, how the fault suite went to faults.json, errors of predictions to the validations.
The table of drawn cells is held to the code that draws them, so it is committed before anything is measured.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

from xbench.matrix_options import MatrixOptions
from xbench.modes import MODES, mode_info
from xbench.records import Comparison, Validation, load
from xbench.report.kinds.validation import markdown as validation_markdown
from xbench.runs.validation_places import draw
from xbench.workloads import parse_workload

ROOT = Path(__file__).parent.parent
PAGES = tuple(ROOT / "docs" / name for name in ("schedules.md", "reliability.md", "validate.md"))
ONE_JOB = {
    "resnet18, batch 8": "resnet18-rivals-1gbit.json",
    "densenet121, batch 4": "densenet121-rivals-1gbit.json",
    "vgg11, batch 4": "vgg11-all-1gbit.json",
}
TWO_JOBS = {
    "resnet18 twice, batch 8": "resnet18-pair-1gbit.json",
    "batch 14": "resnet18-b14-pair-1gbit.json",
    "batch 10, over Horovod": "resnet18-b10-pair-horovod-1gbit.json",
}
DRAWN = {
    "--cells": "24",
    "--seed": "37",
    "--workloads": ",".join(
        f"{name}:batch-size={size}"
        for name, sizes in (
            ("mobilenet_v2", (4, 8, 16)), ("efficientnet_b0", (4, 8, 16)), ("densenet121", (2, 4, 8)),
            ("resnet18", (4, 8, 16)),
        )
        for size in sizes
    ),
    "--rates": "300mbit,1gbit,3gbit,10gbit",
    "--hosts": "2,2,2,2,3,4",
    "--modes": "compute,ddp,single,wfbp,mgwfbp,optimal,auto,dear,priority",
}  # fmt: skip
"""Options of the drawing on the page of validate. Its cells are fixed by them."""

MATRICES = {"whole matrix": "validation.json", "drawn matrix": "matrix.json"}

_TABLE = re.compile(r"(<!-- measured: (?P<which>[a-z ]+) -->\n)(?P<rows>.*?)(<!-- /measured -->)", re.DOTALL)


def main() -> None:
    """Write the tables of all pages again."""
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(text: str) -> str:
    """The page's text with its tables as the files have them."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_rows(found['which'])}\n{found[4]}", text)


def _rows(which: str) -> str:
    if which == "faults":
        return faults_table()
    if which == "drawing":
        return drawing_table()
    if which == "torch modes":
        return mode_errors("validation-sharded.json")
    if which == "torch modes of four hosts":
        return mode_errors("validation-hsdp.json")
    if which in MATRICES:
        return matrix_tables(MATRICES[which])
    return table({"one job": ONE_JOB, "two jobs": TWO_JOBS}[which])


def faults_table() -> str:
    """A row a family of the fault suite: how many of its cases were run, held, broke a rule, could not be run here."""
    families = json.loads((ROOT / "results" / "faults.json").read_text(encoding="utf-8"))["summary"]
    counts = ("run", "held", "broken", "skipped")
    rows = ["| cases | run | held | broke a rule | not possible here |", "| --- | --: | --: | --: | --: |"]
    rows += [f"| {one['title']} | {' | '.join(str(one[count]) for count in counts)} |" for one in families.values()]
    totals = [str(sum(one[count] for one in families.values())) for count in counts]
    return "\n".join([*rows, f"| **all** | {' | '.join(totals)} |"]) + "\n"


def drawing_table() -> str:
    """The command of the drawing, and a row a cell."""
    options = " ".join(f"{flag} {value}" for flag, value in DRAWN.items())
    command = f"<!-- needs: minutes -->\n```sh\nxbench validate {options} --json results/matrix.json\n```\n"
    matrix = MatrixOptions(rates=DRAWN["--rates"], hosts=DRAWN["--hosts"], cells=24, seed=37).read()
    workloads = [parse_workload(name) for name in DRAWN["--workloads"].split(",")]
    rows = ["| cell | workload | batch | hosts | rate | |", "| --: | --- | --: | --: | --: | --- |"]
    for number, cell in enumerate(draw(workloads, matrix.fabrics, 24, matrix.seed), start=1):
        workload, fabric = cell.workload, cell.fabric
        words = [number, workload.name, workload.batch_size, fabric.hosts, fabric.rate]
        rows.append(f"| {' | '.join(map(str, words))} | {'held out' if cell.held_out else ''} |")
    return "\n".join([command, *rows]) + "\n"


def matrix_tables(file: str) -> str:
    """The claims, errors and cells of a validation, as `xbench validate --markdown` writes them."""
    record = load(ROOT / "results" / file)
    if not isinstance(record, Validation):
        raise TypeError(f"{file} is no validation")
    return validation_markdown(record)


def mode_errors(file: str) -> str:
    """A row a mode: errors of its predictions over the cells of a validation."""
    record = load(ROOT / "results" / file)
    if not isinstance(record, Validation):
        raise TypeError(f"{file} is no validation")
    points = [point for cell in record.cells for point in cell.points]
    rows = [
        "| mode | predictions | median error | largest | bias | median at speed |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    groups = [(name,) for name in dict.fromkeys(point.mode for point in points if mode_info(point.mode).trains)]
    together = ("replicate", "fsdp", "zero1")
    for names in [*groups, *([together] if {(name,) for name in together} <= set(groups) else [])]:
        own = [point for point in points if point.mode in names]
        off = [point.error for point in own]
        again = [abs(point.error_at_speed) for point in own if point.error_at_speed is not None]
        figures = [median(map(abs, off)), max(map(abs, off)), median(off), median(again)]
        shown = [f"{100 * figure:{'+' if place == 2 else ''}.1f} %" for place, figure in enumerate(figures)]
        rows.append(f"| {', '.join(f'`{name}`' for name in names)} | {len(own)} | {' | '.join(shown)} |")
    return "\n".join(rows) + "\n"


def table(files: dict[str, str]) -> str:
    """A row a mode, a column a record: time per sample over the reference's, with its 95 % interval."""
    records = {title: _comparison(file) for title, file in files.items()}
    heads = [f"[{title}](../results/{file})" for title, file in files.items()]
    rows = [f"| mode | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    for entry in MODES:
        cells = [_cell(record, entry.name) for record in records.values()]
        if any(cell != "–" for cell in cells):
            rows.append(f"| `{entry.name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _comparison(file: str) -> Comparison:
    record = load(ROOT / "results" / file)
    if not isinstance(record, Comparison):
        raise TypeError(f"{file} is no comparison")
    return record


def _cell(record: Comparison, name: str) -> str:
    texts = [mode.text for mode in record.spec.modes if mode.name == name]
    mode = next((record.modes[text] for text in texts if text in record.modes), None)
    if mode is None:
        return "–"
    if mode.status == "failed":
        return "failed"
    if mode.mode == record.reference:
        return "1"
    if mode.ratio is None:
        return "–"
    low, high = mode.ratio.ci95
    return f"{mode.ratio.value:.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
