"""The source of a tree whose xbench answers at once, its suite, git for its repository, and whole checks of it."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

from regress_fakes import MACHINE, WORKLOAD
from rich.console import Console

from xbench.records import Baseline, Regression, load
from xbench.regress import load_suite
from xbench.regress.baseline import baseline
from xbench.regress.check import check
from xbench.regress.session import Layer, RegressRequest
from xbench.runs.run_folder import Kept

SUITE = """
[regress]
pairs = 7

[[regress.check]]
name = "step"
workload = "resnet18"
modes = ["ddp"]
metrics = ["step_time", "collectives"]
"""
FAKE = f"""
import json, os, signal, sys, time
from pathlib import Path


tree = Path(__file__).parents[1]
step_s = float((tree / "step_s").read_text())
if "--protocol" in sys.argv:
    print('{{"protocol": 1}}')
    sys.exit()
order = json.loads(Path(sys.argv[3]).read_text())
made = {{"xbench": "0.1.0"}}
if order["kind"] == "look":
    made |= {{"environment": json.loads({MACHINE.model_dump_json()!r}), "resolved": {{}}, "samples_per_step": 4}}
    workload = json.loads({WORKLOAD.model_dump_json()!r})
    if (tree / "parameters").exists():
        workload["parameters"] = int((tree / "parameters").read_text())
    made |= {{"workload": workload, "planned": {{}}}}
    made["counted"] = {{"ddp": {{"collectives": 3, "wire_bytes": 40, "peak_bytes": 64}}}}
    needed = (tree / "needs").read_text() if (tree / "needs").exists() else "step_s"
    if not (tree / needed).exists():
        made = {{"xbench": "0.1.0", "error": f"No such file or directory: {{needed!r}}"}}
    made["takes_turns"] = (tree / "takes_turns").exists()
else:
    count = tree / "launches"
    number = int(count.read_text()) + 1 if count.exists() else 0
    count.write_text(str(number))
    if (tree / "stop_at").exists() and number == int((tree / "stop_at").read_text()):
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
    blocks = 1
    if order.get("turn_folder"):
        turns, blocks = Path(order["turn_folder"]), order["rounds"] * order["turns"]
        (turns / "at-0").touch()
        while not (turns / "go-0").exists():
            time.sleep(0.001)
        with (tree.parent / "log").open("a") as log:
            log.write(turns.name + " ")
        (turns / "done-0").touch()
    jitter = 1 + 0.001 * ((7 * number + int(10_000 * step_s)) % 5)
    block = {{"mode": "ddp", "round": 0, "steps_s": [step_s * jitter] * order["steps"]}}
    made |= {{"blocks": [block] * blocks, "samples_per_step": 4}}
Path(sys.argv[4]).write_text(json.dumps(made))
"""


def git(folder: Path, *words: str) -> str:
    settings = ("user.name=a", "user.email=a@b", "commit.gpgsign=false", "init.defaultBranch=main")
    command = ["git", *(word for one in settings for word in ("-c", one)), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path, message: str) -> None:
    """Commit everything that the folder holds."""
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", message)


class InThisProcess:
    """A `checkout.Running` whose job is done at once, and without a process of its own."""

    alive = False

    def __init__(self, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        (_, _, package, *words), root = command, environ["PYTHONPATH"].split(os.pathsep)[0]
        out, self._code, self._log = io.StringIO(), 0, ""
        with mock.patch.object(sys, "argv", [package, *words]), redirect_stdout(out):
            try:
                runpy.run_path(f"{root}/{package}/__main__.py", run_name="__main__")
            except SystemExit as ended:
                if isinstance(ended.code, str):
                    self._code, self._log = 1, ended.code
                else:
                    self._code = ended.code or 0
        self._out = out.getvalue()

    def wait(self, longest_s: float) -> tuple[int, str, str]:
        return self._code, self._out, self._log

    def end(self) -> None:
        pass


def request(root: Path, **fields: object) -> RegressRequest:
    suite = load_suite(root / "xbench.toml")
    return RegressRequest(suite, root, output=root / "results" / "runs", **fields)  # type: ignore[arg-type]


def checked(root: Path, **fields: object) -> tuple[Regression, str]:
    said = io.StringIO()
    kept = check(request(root, **fields), Console(file=said, width=200))
    assert isinstance(kept.record, Regression)
    assert load(kept.path) == kept.record
    assert list(root.parent.joinpath("temporary").glob("xb*")) == []
    assert git(root, "worktree", "list").count("\n") == 0
    if kept.error is not None:
        raise kept.error
    return kept.record, said.getvalue()


def verdicts(record: Regression) -> dict[str, str]:
    return {case.metric: case.verdict for case in record.cases}


def based(root: Path, layers: tuple[Layer, ...], said: io.StringIO | None = None, **fields: object) -> Kept[Baseline]:
    return baseline(request(root, layers=layers, **fields), Console(file=said or io.StringIO(), width=200))


def stored(root: Path, layers: tuple[Layer, ...] = ("deterministic",), **fields: object) -> list[Path]:
    """The files that a baseline was stored in."""
    assert based(root, layers, **fields).error is None
    return sorted((root / "results" / "baselines").glob("*/*.json"))
