"""A wheel made of the tracked files, installed and used away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import xbench
from xbench.records import KINDS

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
RECORDS = sorted(GOLDEN.glob("*-v1.json"))


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def data_files(prefix: str = "") -> set[str]:
    """Tracked files of the package that are no Python, by their place in an installation."""
    placed = (name.replace("cuda/", "xbench/cuda/", 1) if name.startswith("cuda/") else name for name in tracked())
    return {prefix + name for name in placed if name.startswith("xbench/") and not name.endswith(".py")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files in a folder of their own: building writes beside them."""
    folder = tmp_path_factory.mktemp("source")
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", "made", "."], cwd=source, check=True)
    (made,) = (source / "made").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has xbench and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True)
    return target


def ran(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "xbench", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_the_distribution_is_not_called_as_the_stranger_on_pypi(wheel: Path) -> None:
    assert wheel.name.startswith("xbench_schedules-0.")
    metadata = next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    assert "\nVersion: " + xbench.__version__ + "\n" in zipfile.ZipFile(wheel).read(metadata).decode()


def test_a_wheel_has_every_tracked_data_file(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if not name.endswith(".py") and ".dist-info/" not in name} == data_files()
    modules = {name for name in tracked() if name.startswith("xbench/") and name.endswith(".py")}
    assert {name for name in names if name.endswith(".py")} == modules


def test_a_source_distribution_has_them_too(source: Path) -> None:
    build = "from setuptools import build_meta; print(build_meta.build_sdist('.'))"
    said = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=True).stdout
    with tarfile.open(source / said.split()[-1]) as archive:
        names = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    there = {name.replace("xbench/cuda/", "cuda/", 1) for name in data_files()}
    assert there <= names


def test_the_command_is_the_installed_one(installed: Path, tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(installed)}
    where = [sys.executable, "-c", "import xbench; print(xbench.__file__)"]
    said = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(installed / "xbench" / "__init__.py")


def test_it_trains_with_the_torch_that_is_there(installed: Path, tmp_path: Path) -> None:
    code = (
        "import torch, xbench\n"
        "model = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with xbench.attach(model, optimizer, schedule='wfbp') as handle:\n"
        "    handle.model(torch.ones(1, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "    print(handle.buckets, xbench.__file__)\n"
    )
    env = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == f"[['bias'], ['weight']] {installed / 'xbench' / '__init__.py'}", done.stderr


def test_a_page_of_every_kind_of_record(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from xbench.cli import main\n"
        "for number, record in enumerate(sys.argv[1:]):\n"
        "    assert main(['report', record, '--html', f'{number}.html']) == 0\n"
    )
    env = os.environ | {"PYTHONPATH": str(installed)}
    words = [sys.executable, "-c", code, *map(str, RECORDS)]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {record.name for record in RECORDS} == {f"{kind}-v1.json" for kind in KINDS}
    for number in range(len(RECORDS)):
        assert "</html>" in (tmp_path / f"{number}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["report", str(GOLDEN / "comparison-v1.json")],
        ["plan", str(GOLDEN / "profile-v1.json"), "--rate", "10gbit"],
        ["plan", str(GOLDEN / "profile-v1.json"), "--workers", "2..2048"],
        ["cluster", "compare", "--policies", "fifo,doubling", "--seeds", "1"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_commands_that_start_no_ranks(installed: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = ran(installed, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout or done.stderr
