"""The pages about Python: their code runs and prints what they show, and the reference says what the code says.

`XBENCH_UPDATE_GOLDEN=1 pytest tests/unit/docs` writes what the code prints into the pages and the notebook, and the
reference: read the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from code_blocks import ROOT, agrees, blocks, script
from nbclient import NotebookClient

import xbench

RUN = [ROOT / "docs" / name for name in ("from-python.md", "first-visits.md", "cluster.md")]
API = script("make_api")
NOTEBOOK = ROOT / "examples" / "results.ipynb"
UPDATE = bool(os.environ.get("XBENCH_UPDATE_GOLDEN"))


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_code_of_the_page_prints_what_the_page_shows(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = page.read_text(encoding="utf-8")
    found = [block for block in blocks(page) if block.language in ("python", "text")]
    names: dict[str, object] = {}
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block.language != "python" or block.text.startswith("# bench.py"):  # a reader's own file
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, block.where, "exec"), names)
        shown = following.text if following is not None and following.language == "text" else ""
        if UPDATE:
            before = f"{block.text}```\n\n```text\n{shown}```\n"
            assert text.count(before) == (1 if shown or printed.getvalue() else 0)
            text = text.replace(before, f"{block.text}```\n\n```text\n{printed.getvalue()}```\n")
        else:
            assert agrees(tuple(shown.splitlines()), printed.getvalue()), f"{block.where} prints\n{printed.getvalue()}"
    if UPDATE:
        page.write_text(text, encoding="utf-8")


def test_the_reference_is_that_of_the_code() -> None:
    if UPDATE:
        API.main()
    assert API.PAGE.read_text(encoding="utf-8") == API.page(), "python docs/make_api.py writes it again"


def test_the_reference_has_every_public_name() -> None:
    shown = {*API.FUNCTIONS, *API.RECORDS, "XbenchError"}
    assert shown == set(xbench.__all__) - {"__version__"}
    assert [name for name in shown if f"# {name}\n" not in API.page()] == []


def test_the_notebook_shows_what_it_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    now = nbformat.read(NOTEBOOK, as_version=4)
    metadata = copy.deepcopy(now.metadata)
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(now, kernel_name="python3", record_timing=False, resources=where).execute()
    if UPDATE:
        now.metadata = metadata  # without this machine's version of Python
        nbformat.write(now, NOTEBOOK)
    assert _outputs(now) == _outputs(nbformat.read(NOTEBOOK, as_version=4))


def _outputs(notebook: Any) -> list[Any]:
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
