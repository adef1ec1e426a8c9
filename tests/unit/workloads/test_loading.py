"""A user's file is imported as Python would import it; what it raises is one sentence with its line and a way out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from xbench.errors import WorkloadError
from xbench.workloads import parse_workload
from xbench.workloads.build import build
from xbench.workloads.loading import module_name
from xbench.workloads.workload import Workload

HEAD = "import sys\nimport torch\nfrom torch import nn\n"
MAKE = "def make():\n    return net(), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), nn.CrossEntropyLoss()\n"
NET = "def net():\n    return nn.Linear(3, 2)\n"


def made(file: Path) -> Workload:
    return build(parse_workload(f"{file}:make"), torch.device("cpu"))


def refused(file: Path, text: str) -> WorkloadError:
    file.write_text(f"{text}make = None\n")
    with pytest.raises(WorkloadError) as caught:
        made(file)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a package in it, of a name that no other test has."""
    root = tmp_path / "bench_pack"
    (root / "deep").mkdir(parents=True)
    for folder in (root, root / "deep"):
        (folder / "__init__.py").touch()
    (root / "models.py").write_text(HEAD + NET)
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench_pack"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("train.py", "from .models import net\n"),
        ("train.py", "from bench_pack.models import net\n"),
        ("train.py", "from models import net\n"),
        ("deep/train.py", "from ..models import net\n"),
        ("deep/train.py", "from bench_pack.models import net\n"),
    ],
)
def test_a_script_inside_a_package_imports_as_it_does_there(package: Path, file: str, line: str) -> None:
    (package / file).write_text(HEAD + line + MAKE)
    (package / f"{package.name}.py").write_text("raise ImportError('a module, and not the package')\n")
    before = list(sys.path)
    assert made(package / file).parameters_count == 8
    assert sys.path == before


def test_a_relative_import_without_a_package_gets_a_hint(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    error = refused(folder / "train.py", "from .models import net\n")
    assert "train.py:1 raised ImportError: attempted relative import" in str(error)
    assert error.hint == "an __init__.py in 'scripts' makes it a package, or import absolutely"


def test_a_module_in_a_folder_above_is_named_with_the_path_to_set(tmp_path: Path) -> None:
    (tmp_path / "bench_lib_above").mkdir()
    (tmp_path / "scripts").mkdir()
    error = refused(tmp_path / "scripts" / "train.py", "import bench_lib_above.models\n")
    assert error.hint is None or "PYTHONPATH" in error.hint
    (tmp_path / "scripts" / "deep").mkdir()
    error = refused(tmp_path / "scripts" / "deep" / "train.py", "import bench_not_there\n")
    assert error.hint is None


def test_a_name_that_is_taken_or_is_none_gets_a_private_one(tmp_path: Path) -> None:
    assert module_name(tmp_path / "bench_unheard_of.py") == "bench_unheard_of"
    for taken in ("random.py", "profile.py", "torch.py", "__main__.py", "my-train.py", "train.v2.py"):
        assert module_name(tmp_path / taken).startswith("xbench_workload_"), taken
    (tmp_path / "profile.py").write_text(HEAD + NET + MAKE)
    assert made(tmp_path / "profile.py").parameters_count == 8
    assert "xbench_workload_profile" in sys.modules


def test_the_file_sees_no_arguments_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["worker.py", "program.json", "--job", "0"])
    file = tmp_path / "train.py"
    parsing = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', default=1.0)\n"
    file.write_text(HEAD + parsing + "parser.parse_args()\nassert sys.argv == [__file__]\n" + NET + MAKE)
    assert made(file).parameters_count == 8
    assert sys.argv == ["worker.py", "program.json", "--job", "0"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--data', required=True)\n"
            "parser.parse_args()\n",
            "train.py:4 raised SystemExit: 2 (train.py: error: the following arguments are required: --data)",
        ),
        (
            "import click\n@click.command()\n@click.argument('data')\ndef run(data):\n    pass\nrun()\n",
            "train.py:6 raised SystemExit: 2 (Error: Missing argument 'DATA'.)",
        ),
        ("import sys\nsys.exit('no GPU')\n", "train.py:2 raised SystemExit: no GPU"),
    ],
)
def test_a_file_that_ends_the_process_says_what_it_wanted(tmp_path: Path, body: str, said: str) -> None:
    error = refused(tmp_path / "train.py", body)
    assert str(error) == f"train.py:make cannot be built: {said}"
    assert error.hint == "parse arguments under if __name__ == '__main__': the file is imported, without arguments"


LOADER = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((3,), float(i)), i % 2


def make():
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    inputs, targets = next(iter(loader))
    return nn.Linear(3, 2), (inputs, targets), nn.CrossEntropyLoss()
"""


def test_a_process_that_the_factory_spawns_imports_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "bench_spawning.py").write_text(HEAD + LOADER)
    inputs = made(tmp_path / "bench_spawning.py").inputs
    assert isinstance(inputs, torch.Tensor)
    assert inputs[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_loader_whose_worker_dies_gets_a_hint(tmp_path: Path) -> None:
    body = "raise RuntimeError('DataLoader worker (pid(s) 13194) exited unexpectedly')\n"
    assert "num_workers=0" in (refused(tmp_path / "train.py", body).hint or "")
