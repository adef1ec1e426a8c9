"""Everything that only a GPU can say, in half an hour: measured, kept as small JSON files, and summed up in a table.

    make gpu                                   # on a machine with a GPU: files and README.md under results/gpu/
    XBENCH_GPU_DEVICE=cpu pytest tests/gpu     # the same code on a CPU, small, into a temporary folder: proves nothing

Without a GPU, and without that variable, all of it is skipped. Measurements never fail for being slow: a goal that was
missed is written down as missed. They fail when something does not work.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import DEVICE, DRY, ROOT, Keep, write_table

# xbench need not be installed: the processes that it starts find it here too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(600))
            if not DEVICE:
                item.add_marker(pytest.mark.skip(reason="there is no GPU; XBENCH_GPU_DEVICE=cpu runs it small"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda", 0) if DEVICE == "cuda" else torch.device(DEVICE or "cpu")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where files go: into the repository from a GPU, else nowhere that lasts."""
    lasting = tmp_path_factory.mktemp("gpu") if DRY else ROOT / "results" / "gpu"
    where = Path(os.environ.get("XBENCH_GPU_RESULTS", lasting))
    where.mkdir(parents=True, exist_ok=True)
    return where


@pytest.fixture
def keep(results: Path, request: pytest.FixtureRequest) -> Keep:
    """`keep(name, goal, held, finding, **figures)`: one file, with where it was made and how long it took."""
    began_s = time.monotonic()

    def write(name: str, *, line: int, goal: str, held: bool | None, finding: str, **figures: Any) -> None:
        from xbench import environment

        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        facts = environment.capture().model_dump(mode="json")
        found = {
            "line": line,
            "what": name,
            "goal": goal,
            "held": held,
            "finding": finding,
            "gpu": gpu,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "xbench": facts["xbench"],
            "commit": facts["commit"],
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "took_s": round(time.monotonic() - began_s, 1),
            "command": f"pytest tests/gpu/{request.path.name}::{request.node.name}",
            **figures,
        }
        (results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"\n{name}: {finding}")

    return write


@pytest.fixture(scope="session", autouse=True)
def summed_up(results: Path) -> Any:
    yield
    write_table(results)
