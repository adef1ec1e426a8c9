"""The script behind `make horovod`: what it downloads, and where it takes a wheel from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[3] / "tools" / "horovod"


def build(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHON": sys.executable} | environ
    return subprocess.run([TOOLS / "build.sh", *words], env=env, capture_output=True, text=True, timeout=120)


def test_everything_that_pip_gets_has_a_version_and_hashes() -> None:
    text, script = (TOOLS / "pinned.txt").read_text(), (TOOLS / "build.sh").read_text()
    pinned = re.findall(r"^(\S+)==(\S+) (\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert sum(hashes.count("--hash=") for _, _, hashes in pinned) == text.count("--hash=sha256:")
    imported = re.search(r"imported=\((.*)\)", script)
    assert imported is not None
    assert {name for name, _, _ in pinned} == {"horovod", "setuptools", "cmake", *imported[1].split()}
    (version,) = [version for name, version, _ in pinned if name == "horovod"]
    assert f"version={version}\n" in script


@pytest.mark.parametrize("nvcc", [True, False])
def test_a_kept_wheel_is_not_built_again(tmp_path: Path, nvcc: bool) -> None:
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    if nvcc:
        (home / "bin" / "nvcc").touch(0o755)
    kind = "cuda" if nvcc and torch.version.cuda else "cpu"
    python = f"py{sys.version_info.major}.{sys.version_info.minor}-{sysconfig.get_platform()}"
    folder = tmp_path / "horovod" / f"{torch.__version__.partition('+')[0]}-{python}-{kind}"
    folder.mkdir(parents=True)
    (folder / "horovod-0.28.1+xbench-cp311-cp311-linux_x86_64.whl").touch()
    done = build("--wheel-only", XBENCH_CACHE=str(tmp_path), CUDA_HOME=str(home))
    assert (done.returncode, Path(done.stderr.strip()).parent) == (0, folder), done.stderr


def test_no_compiler_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "mktemp", "rm", "head", "env"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or pytest.fail(name))
    done = build("--wheel-only", XBENCH_CACHE=str(tmp_path), PATH=str(tmp_path / "bin"))
    assert (done.returncode, done.stderr) == (2, "error: Horovod is C++: apt-get install g++ make\n")
